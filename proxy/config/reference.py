"""The reference of all settings, generated from their classes: the list of keys and the commented example file."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.config.settings import Settings
from proxy.config.value_types import AUTO

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


def list_keys() -> list[SettingKey]:
    """Return all sections and keys in order, a section before its keys; `upstreams` stands for each of its elements."""
    return list(_walk(Settings, ()))


def name_keys() -> list[str]:
    """Return the paths of all sections and keys, joined by dots; of mappings, too (`pricing.MODEL.input`)."""
    keys = list_keys()
    for name, field in Settings.model_fields.items():
        if get_origin(field.annotation) is dict:
            for kind in filter(_is_section, get_args(field.annotation)):
                keys += _walk(kind, (name, "MODEL"))
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


def _walk(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[SettingKey]:
    for name, field in model.model_fields.items():
        section = _find_section(field)
        path = (*above, name)
        if section is None:
            yield SettingKey(path, _render_default(field.default), field.description or "", is_section=False)
        else:
            yield SettingKey(path, None, field.description or section.__doc__ or "", is_section=True)
            yield from _walk(section, path)


def _find_section(field: FieldInfo) -> type[BaseModel] | None:
    if get_origin(field.annotation) is dict or field.default == ():
        return None  # its keys are the user's own, or its entries, of which there are none without the user
    return next((kind for kind in (field.annotation, *get_args(field.annotation)) if _is_section(kind)), None)


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _render_default(default: Any) -> Any:
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    if default is None:
        return AUTO
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, str | int | float | dict) else str(default)


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]
