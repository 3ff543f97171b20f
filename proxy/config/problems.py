"""What is wrong with settings, in words. Rule: key, what is wrong, what to do, where it was set; never the value."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import ErrorDetails

_WORDS = {
    "model_type": "must be a section: keys and values below it",
    "tuple_type": 'must be a list; in an environment variable as JSON, such as ["a", "b"]',
    "missing": "is required",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right. `key` is empty where the problem is not one key's, `source` where that is plain."""

    key: str
    what: str
    source: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.key, self.what)))


class ConfigError(ValueError):
    """The settings cannot be used; the text lists every problem, ready to print."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings are wrong", *lines]))


def spell(path: Sequence[str | int]) -> str:
    """A key as it is written in prose: `upstreams[0].base_url`."""
    spelt = ""
    for part in path:
        spelt += f"[{part}]" if isinstance(part, int) else f".{part}" if spelt else part
    return spelt


def describe(error: ErrorDetails, known: Collection[str]) -> str:
    """What is wrong and what to do about it. `known` are all key paths, without indexes."""
    if error["type"] == "extra_forbidden":
        return f"unknown key; {_suggest(error['loc'], known)}"
    return _WORDS.get(error["type"]) or error["msg"].replace("Input should", "must", 1)


def _suggest(path: Sequence[str | int], known: Collection[str]) -> str:
    spelt = spell([part for part in path if isinstance(part, str)])
    same_name = [key for key in known if key.rpartition(".")[2] == path[-1]]
    near = difflib.get_close_matches(spelt, known, n=1) or same_name[:1]
    if near:
        return f"did you mean {near[0]}?"
    return "`palimpsest config schema` lists all keys"
