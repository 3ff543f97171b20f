"""From all sources to one tree. Rule: flags before environment before file before defaults; all errors at once."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import InitSettingsSource

from proxy.config.keys import name_keys
from proxy.config.problems import ConfigError, Problem, describe, spell
from proxy.config.settings import Settings
from proxy.config.sources import FILE_VARIABLE, Environment, interpolate, nest, read_environment, read_file

_LABEL = re.compile(r"[a-z-]+\[.+\]", re.DOTALL)

_Path = Sequence[str | int]
_Place = tuple[Any, Callable[[_Path], str]]


def load_settings(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this start. Raises ConfigError, whose text is ready to print.

    `file` is a YAML file; without it the one that PALIMPSEST_CONFIG names, if any. `flags` are values by key path
    (`{"server.port": 1}`); None means not given.
    """
    variables = read_environment()
    if file is None and variables.get(FILE_VARIABLE):
        file = Path(variables[FILE_VARIABLE])
    problems: list[Problem] = []
    from_file = interpolate(read_file(file), variables, str(file), problems) if file else {}
    from_flags, environment = nest(flags or {}), Environment()
    from_environment = environment()
    layers = tuple(InitSettingsSource(Settings, tree) for tree in (from_flags, from_environment, from_file))
    try:
        settings = Settings(_build_sources=(layers, {}))
    except ValidationError as error:
        told = {problem.key for problem in problems}
        places: tuple[_Place, ...] = (
            (from_flags, lambda _: "command line"),
            (from_environment, environment.name_variable),
            (from_file, lambda _: str(file)),
        )
        problems += [problem for problem in _describe_all(error, places) if problem.key not in told]
    if problems:
        raise ConfigError(problems)
    return settings


def _describe_all(error: ValidationError, places: Sequence[_Place]) -> Iterator[Problem]:
    known = name_keys()
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path = _leave_labels(detail["loc"], [tree for tree, _ in places])
        source = next((name(path) for tree, name in places if _holds(tree, path)), "")
        yield Problem(spell(path), describe(detail, known), source)


def _leave_labels(path: _Path, trees: Sequence[Any]) -> _Path:
    """A path without the names that pydantic gives the kinds of a value that may be of several."""
    kept: list[str | int] = []
    for part in path:
        is_label = isinstance(part, str) and _LABEL.fullmatch(part)
        if not is_label or any(_holds(tree, (*kept, part)) for tree in trees):
            kept.append(part)
    return kept


def _holds(tree: Any, path: _Path) -> bool:
    for part in path:
        items = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
        if part not in items:
            return False
        tree = items[part]
    return True
