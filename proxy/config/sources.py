"""Where settings come from: flags, environment, file. Rule: a source only reads; the tree decides what is right."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from proxy.config.problems import ConfigError, Problem, spell
from proxy.config.settings import Settings

PREFIX = "PALIMPSEST_"
FILE_VARIABLE = "PALIMPSEST_CONFIG"

_TOO_DEEP = "is nested too deep, or holds itself (&name ... *name)"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Environment(EnvSettingsSource):
    """Variables `PALIMPSEST_SECTION__KEY`; lists are JSON. What the tree does not know goes on, to be refused there."""

    def __init__(self) -> None:
        super().__init__(Settings)

    def __call__(self) -> dict[str, Any]:
        """The values of all variables with our prefix, as a tree."""
        values: dict[str, Any] = super().__call__()
        for name in self.env_vars:
            key = name.removeprefix(PREFIX.lower()).split("__")[0]
            if name.startswith(PREFIX.lower()) and name != FILE_VARIABLE.lower() and key not in Settings.model_fields:
                values[key] = None
        return values

    def name_variable(self, path: Sequence[str | int]) -> str:
        """The variable that gave the value at a path."""
        names = takewhile(lambda part: isinstance(part, str), path)
        wanted = f"{PREFIX}{'__'.join(map(str, names))}".upper()
        return next((name.upper() for name in self.env_vars if name.upper().startswith(wanted)), wanted)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """A list or section from its JSON; other text as it stands, to be refused with all other errors at once."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class _Repeated(yaml.MarkedYAMLError):
    """A key stands twice in one mapping."""


class _Unfit(yaml.MarkedYAMLError):
    """A value has the form of a date or a number, or a tag that says so, and is none."""


class _UniqueKeys(yaml.SafeLoader):
    """Plain YAML in which a key stands once: of two equal ones the first would be lost without a word."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A value, as of SafeLoader; which has no errors of its own for those that do not fit."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            raise _Unfit(problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, as of SafeLoader."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _Repeated(problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_environment() -> Mapping[str, str]:
    """The process environment, for `${VAR}` and the name of the file."""
    return os.environ  # noqa: TID251 - the one place that reads it


def read_file(path: Path) -> dict[str, Any]:
    """The tree in a YAML file. Raises ConfigError if there is none."""
    try:
        value = yaml.load(path.expanduser().read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, str(path))]) from None
    except RuntimeError:  # how pathlib says that nobody has this name
        raise ConfigError([Problem("", "begins with the name of a user who is not known", str(path))]) from None
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror}; check the path", str(path))]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem("", "is not UTF-8 text", str(path))]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem("", _describe(error), str(path))]) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError([Problem("", "must hold keys and values, such as mode: observe", str(path))])
    return value


def _describe(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    if isinstance(error, _Unfit):
        return f"{place}is no such date or number; text that looks like one needs quotes"
    if isinstance(error, _Repeated):
        return f"{place}this key stands twice in its section; keep one"
    return f"{place}is not YAML; text with special characters needs quotes"


def interpolate(tree: dict[str, Any], variables: Mapping[str, str], source: str, problems: list[Problem]) -> Any:
    """The tree with `${VAR}` and `${VAR:-default}` filled in, and without keys that have no value.

    A variable that is not set and has no default goes to `problems`.
    """

    def fill(value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            return {str(key): fill(inner, (*path, key)) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            return [fill(inner, (*path, i)) for i, inner in enumerate(value)]
        return _VARIABLE.sub(lambda found: look_up(found, path), value) if isinstance(value, str) else value

    def look_up(found: re.Match[str], path: tuple[str | int, ...]) -> str:
        name, default = found[1], found[2]
        if name not in variables and default is None:
            what = f"the variable {name} is not set; set it, or write ${{{name}:-default}}"
            problems.append(Problem(spell(path), what, source))
        return variables.get(name) or default or ""

    try:
        return fill(tree, ())
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, source)]) from None


def nest(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`{"server.port": 1}` as a tree; flags that were not given (None) are left out."""
    tree: dict[str, Any] = {}
    for path, value in flags.items():
        *sections, key = path.split(".")
        if value is not None:
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
            branch[key] = value
    return tree
