"""Errors in settings. They name the key, the fault, the remedy and the source, but not the value: it may be secret."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxy.model.errors import ProxyError

Path = Sequence[str | int]
# A tree of values from one source, and a function that names the place of a path in it.
Source = tuple[Any, Callable[[Path], str]]

_MESSAGES = {
    "dataclass_type": "must be a section: keys and values below it",
    "model_type": "must be a section: keys and values below it",
    "tuple_type": 'must be a list; in an environment variable as JSON, such as ["a", "b"]',
    "missing": "is required",
}
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
# The labels that pydantic adds to a path for the members of a union type, such as `tuple[...]`.
_LABEL = re.compile(r"[a-z-]+\[.+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error to correct. `key` is empty if no single key is wrong, `source` if it is obvious."""

    key: str
    what: str
    source: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.key, self.what)))


class ConfigError(ProxyError):
    """The settings cannot be used; the text lists every problem, ready to print."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings are wrong", *lines]))


def format_path(path: Path) -> str:
    """Return a key as documentation writes it: `upstreams[0].base_url`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def list_problems(error: ValidationError, sources: Sequence[Source], known: Collection[str]) -> Iterator[Problem]:
    """Yield each error of a validation, with the first source that set the key. `known` are all keys, no indexes."""
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path = _drop_labels(detail["loc"], [tree for tree, _ in sources])
        place = next((name(path) for tree, name in sources if _has(tree, path)), "")
        yield Problem(format_path(path), describe_error(detail, known), place)


def describe_error(error: ErrorDetails, known: Collection[str]) -> str:
    """Return what is wrong and what to do about it. For an unknown key, suggest the most similar known one."""
    if error["type"] not in _UNKNOWN_KEY:
        what = error["msg"].removeprefix("Value error, ")
        return _MESSAGES.get(error["type"]) or what.replace("Input should", "must", 1)
    path = error["loc"]
    key = format_path([part for part in path if isinstance(part, str)])
    same_name = [each for each in known if each.rpartition(".")[2] == path[-1]]
    if similar := difflib.get_close_matches(key, known, n=1) or same_name[:1]:
        return f"unknown key; did you mean {similar[0]}?"
    return "unknown key; `palimpsest config schema` lists all keys"


def _drop_labels(path: Path, trees: Sequence[Any]) -> Path:
    kept: list[str | int] = []
    for part in path:
        is_label = isinstance(part, str) and _LABEL.fullmatch(part)
        if not is_label or any(_has(tree, (*kept, part)) for tree in trees):
            kept.append(part)
    return kept


def _has(tree: Any, path: Path) -> bool:
    for part in path:
        items = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
        if part not in items:
            return False
        tree = items[part]
    return True
