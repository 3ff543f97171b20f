"""The reference of all settings, generated from their classes: JSON Schema, list of keys, commented example file."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema

from proxy.config.settings import Settings
from proxy.model.settings import AUTO

_HEAD = """\
Settings of palimpsest. Every key stands here with its default, commented out: remove the # in front of a key to set it.
Flags come before environment variables (PALIMPSEST_SECTION__KEY; lists as JSON), these before this file.
${NAME} is the value of an environment variable; ${NAME:-text} is text where it is not set.
Sizes are in bytes, or such as "64MiB". Check this file with: palimpsest config check FILE\
"""
_WIDTH = 118
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key or section. `default` is in YAML, or None for a section."""

    path: tuple[str, ...]
    default: Any
    description: str
    is_section: bool


class DescribingSchema(GenerateJsonSchema):
    """JSON Schema in which each field of a section is described by the text below it.

    The sources are read when a schema is made: pydantic's `use_attribute_docstrings` reads them with every start.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of all settings."""
        return _describe(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a section."""
        return _describe(super().dataclass_schema(schema), schema["cls"])


def _describe(schema: dict[str, Any], section: type) -> dict[str, Any]:
    (tree,) = ast.parse(inspect.getsource(section)).body
    for field, text in pairwise(cast("ast.ClassDef", tree).body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                if name in schema["properties"]:
                    schema["properties"][name]["description"] = " ".join(meaning.split())
    return schema


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of the settings."""
    return Settings.model_json_schema(schema_generator=DescribingSchema)


def list_keys() -> list[SettingKey]:
    """Return all sections and keys in order, a section before its keys; `upstreams` stands for each of its elements."""
    schema = make_schema()
    return list(_walk(schema, schema["$defs"], ()))


def name_keys() -> list[str]:
    """Return the paths of all sections and keys, joined by dots; of mappings, too (`pricing.MODEL.input`)."""
    schema = make_schema()
    keys = list(_walk(schema, schema["$defs"], ()))
    for name, each in schema["properties"].items():
        if section := _find_section(each.get("additionalProperties", {}), schema["$defs"]):
            keys += _walk(section, schema["$defs"], (name, "MODEL"))
    return [".".join(key.path) for key in keys]


def render_example() -> str:
    """Return a YAML file in which all keys are commented out; without the `#` before keys it sets the defaults."""
    lines = [line for paragraph in _HEAD.splitlines() for line in _comment(paragraph, "")]
    for key in list_keys():
        *sections, name = key.path
        indent = "  " * len(sections)
        if not indent:
            lines.append("")
        lines += _comment(key.description, indent)
        if key.is_section:
            lines.append(f"{indent}{name}:")
        else:
            bullet = {"name": "- "}.get(name, "  ") if key.path[0] == "upstreams" else ""
            lines.append(f"{indent}#{bullet}{name}: {format_default(key)}")
    return "\n".join(lines) + "\n"


def format_default(key: SettingKey) -> str:
    """Return a key's default as YAML."""
    if key.path[-1].endswith("_bytes"):
        for size, unit in _UNITS:
            if key.default and key.default % size == 0:
                return f"{key.default // size}{unit}"
    return f"{key.default:g}" if isinstance(key.default, float) else json.dumps(key.default)


def _walk(schema: Any, sections: Any, above: tuple[str, ...]) -> Iterator[SettingKey]:
    for name, each in schema["properties"].items():
        path = (*above, name)
        # Entries of a list of which there are none without the user are the user's own.
        section = _find_section(each, sections) or (
            each.get("default") and _find_section(each.get("items", {}), sections)
        )
        if section:
            yield SettingKey(path, None, each.get("description") or section["description"], is_section=True)
            yield from _walk(section, sections, path)
        else:
            default = each.get("default")
            yield SettingKey(path, AUTO if default is None else default, each["description"], is_section=False)


def _find_section(node: Any, sections: Any) -> Any:
    return sections.get(node.get("$ref", "").rpartition("/")[2])


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]
