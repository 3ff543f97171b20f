"""Load the settings from flags, environment variables and a file: each key from the first of these that sets it."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, InitSettingsSource

from proxy.config.errors import ConfigError, Problem, Source, format_path, list_problems
from proxy.config.reference import name_keys
from proxy.config.settings import Settings

KEPT_FILE = "settings.json"
"""The file in the data directory that has what commands need of its server's settings (`Settings.dump_judging`)."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
PREFIX = "PALIMPSEST_"
FILE_VARIABLE, MEMORY_VARIABLE = "PALIMPSEST_CONFIG", "PALIMPSEST_MEMORY_DIR"
_NO_SETTINGS = frozenset({FILE_VARIABLE.lower(), MEMORY_VARIABLE.lower()})

_TOO_DEEP = "is nested too deep, or holds itself (&name ... *name)"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*+)(?::-([^}]*+))?(?:\}|\Z)")


def load_settings(
    file: Path | None = None, flags: Mapping[str, Any] | None = None, kept: Mapping[str, Any] = NOTHING
) -> Settings:
    """Return the settings of this start. Raises ConfigError, whose text is ready to print.

    `file` is a YAML file; without it the one that PALIMPSEST_CONFIG names, if any. `flags` are values by key path
    (`{"server.port": 1}`); None means not given. `kept` are values in place of defaults.
    """
    variables = read_environment()
    if file is None and variables.get(FILE_VARIABLE):
        file = Path(variables[FILE_VARIABLE])
    problems: list[Problem] = []
    from_file = interpolate(read_file(file), variables, str(file), problems) if file else {}
    from_flags, environment = nest(flags or {}), Environment()
    from_environment = environment()
    trees = (from_flags, from_environment, from_file, dict(kept))
    layers = tuple(InitSettingsSource(Settings, tree) for tree in trees)
    try:
        settings = Settings(_build_sources=(layers, {}))
    except ValidationError as error:
        known_problems = {problem.key for problem in problems}
        sources: tuple[Source, ...] = (
            (from_flags, lambda _: "command line"),
            (from_environment, environment.name_variable),
            (from_file, lambda _: str(file)),
        )
        found = list_problems(error, sources, name_keys())
        problems += [problem for problem in found if problem.key not in known_problems]
    if problems:
        raise ConfigError(problems)
    return settings


def load_report_settings(file: Path | None, data: Path | None) -> Settings:
    """Return the settings of a command that reads the log: what nobody set for it is as its last server had it.

    Patterns of models are not mixed, since the first match counts. Raises ConfigError. What a server of another version
    kept, and this one cannot read, does not count.
    """
    settings = load_settings(file, {"data": data})
    stated = {name for name in ("models", "pricing") if getattr(settings, name)}
    try:
        kept = json.loads((settings.data / KEPT_FILE).read_bytes())
        used = {name: value for name, value in kept.items() if name not in stated}
        return load_settings(file, {"data": data}, used)
    except (OSError, ValueError, AttributeError, ConfigError):
        return settings


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Return settings with these values by key path and defaults besides: no file, and nothing of the environment."""
    return Settings(_build_sources=((InitSettingsSource(Settings, nest(values)),), {}))


def find_memory_folder() -> Path:
    """Return where memory is exported unless a command says otherwise: PALIMPSEST_MEMORY_DIR, or `memory` here."""
    return Path(read_environment().get(MEMORY_VARIABLE) or "memory").expanduser()


def read_environment() -> dict[str, str]:
    """Return the variables of this process."""
    return dict(os.environ)  # noqa: TID251 - the one place that reads it


class Environment(EnvSettingsSource):
    """Variables `PALIMPSEST_SECTION__KEY`; lists are JSON. Unknown keys are kept: all errors are reported at once."""

    def __init__(self) -> None:
        super().__init__(Settings)

    def __call__(self) -> dict[str, Any]:
        """Return the values of all variables with our prefix, as a tree."""
        values: dict[str, Any] = super().__call__()
        for name in self.env_vars:
            key = name.removeprefix(PREFIX.lower()).split("__")[0]
            if name.startswith(PREFIX.lower()) and name not in _NO_SETTINGS and key not in Settings.model_fields:
                values[key] = None
        return values

    def name_variable(self, path: Sequence[str | int]) -> str:
        """Return the variable that gave the value at a path."""
        names = takewhile(lambda part: isinstance(part, str), path)
        wanted = f"{PREFIX}{'__'.join(map(str, names))}".upper()
        return next((name.upper() for name in self.env_vars if name.upper().startswith(wanted)), wanted)

    def next_field(self, field: Any, key: str, case_sensitive: bool | None = None) -> FieldInfo | None:
        """Return the field of a section, or of what its source does know, that a part of a name means."""
        section = getattr(field, "annotation", field)
        if is_dataclass(section):
            kind = get_type_hints(section).get(key)
            return FieldInfo.from_annotation(kind) if kind else None
        return super().next_field(field, key, case_sensitive)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Parse a list or section from JSON; keep other text, so that it is refused with all other errors at once."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class DuplicateKey(yaml.MarkedYAMLError):
    """A mapping has the same key twice."""


class InvalidScalar(yaml.MarkedYAMLError):
    """A value looks like, or is tagged as, a date or a number, but is not a valid one."""


class UniqueKeyLoader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, of which SafeLoader would silently keep the last."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return a value as SafeLoader does. Turn any error of it into a YAML error."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            raise InvalidScalar(problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping as SafeLoader does. Raises DuplicateKey."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise DuplicateKey(problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> dict[str, Any]:
    """Return the tree in a YAML file. Raises ConfigError if there is none."""
    try:
        value = yaml.load(path.expanduser().read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, str(path))]) from None
    except RuntimeError:  # pathlib does not know the user of `~name`
        raise ConfigError([Problem("", "begins with the name of a user who is not known", str(path))]) from None
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror}; check the path", str(path))]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem("", "is not UTF-8 text", str(path))]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem("", _describe_yaml_error(error), str(path))]) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError([Problem("", "must hold keys and values, such as mode: observe", str(path))])
    return value


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    if isinstance(error, InvalidScalar):
        return f"{place}is no such date or number; text that looks like one needs quotes"
    if isinstance(error, DuplicateKey):
        return f"{place}this key stands twice in its section; keep one"
    return f"{place}is not YAML; text with special characters needs quotes"


def interpolate(tree: dict[str, Any], variables: Mapping[str, str], source: str, problems: list[Problem]) -> Any:
    """Return the tree with `${VAR}` and `${VAR:-default}` filled in, and without keys that have no value.

    A variable that is not set and has no default is added to `problems`.
    """

    def fill(value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            return {str(key): fill(inner, (*path, key)) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            return [fill(inner, (*path, i)) for i, inner in enumerate(value)]
        return _VARIABLE.sub(lambda found: look_up(found, path), value) if isinstance(value, str) else value

    def look_up(found: re.Match[str], path: tuple[str | int, ...]) -> str:
        name, default = found[1], found[2]
        if not found[0].endswith("}"):
            return found[0]
        if name not in variables and default is None:
            what = f"the variable {name} is not set; set it, or write ${{{name}:-default}}"
            problems.append(Problem(format_path(path), what, source))
        return variables.get(name) or default or ""

    try:
        return fill(tree, ())
    except RecursionError:
        raise ConfigError([Problem("", _TOO_DEEP, source)]) from None


def nest(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"server.port": 1}` as a tree, without flags that were not given (None)."""
    tree: dict[str, Any] = {}
    for path, value in flags.items():
        *sections, key = path.split(".")
        if value is not None:
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
            branch[key] = value
    return tree
