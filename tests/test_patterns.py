"""Every regular expression of the package takes time linear in its text, whatever the text is.

A pattern is run by each method by which its module uses it. Where the source does not show that, `MATCHED` does.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import proxy
from tests.support.pumping import find_slow_string

ROOT = Path(proxy.__file__).parent
_SCANS = {"sub": "finditer", "subn": "finditer", "split": "finditer", "findall": "finditer"}
_METHODS = {"search", "match", "fullmatch", "finditer", *_SCANS}
_FUNCTIONS = _METHODS | {"compile"}
# The one that imports an optional library, and those that run when they are imported.
_NOT_IMPORTED = ("proxy.__main__", "proxy.worker.outline_program")
# Patterns that are handed to a function, or stand in a table, and of which only `match` is called there.
MATCHED = {
    "proxy.context.budget": {"_KINDS"},
    "proxy.context.outline": {"_GUESSES"},
    "proxy.context.read_only": {"_NEEDED_OPTIONS", "_WRITING_OPTIONS"},
    "proxy.retrieval.dates": {"_STATED"},
    "proxy.wire.body": {"_ELEMENT_GAP", "_EMPTY_OBJECT", "_MEMBER_GAP", "_OBJECT_END"},
}
# Calls whose pattern is made when they run, and what bounds it.
MADE_LATER = {
    "proxy.context.budget": "one for each kind of run: the patterns themselves are found as values of the module",
    "proxy.context.read_only": "one for each program: the patterns themselves are found as values of the module",
    "proxy.context.user_rules": "the end of a fence or of one of ten tags: it has no repetition but of its own mark",
    "proxy.demo.workspace": "the pattern is the demo's own, and the text its own repository",
    "proxy.upstream.model_catalog": "the patterns are the proxy's own data, matched with names of models",
    "proxy.retrieval.dates": "a list of forms, as in the next",
    "proxy.wire.overflow": "a list of forms: the patterns themselves are found as values of the module",
}
"""The modules in which a call of `re` has a pattern that its module's names alone do not tell."""


class Found(NamedTuple):
    """A pattern with its name, and the methods by which it is used."""

    name: str
    pattern: "re.Pattern[Any]"
    methods: tuple[str, ...]


@cache
def list_modules() -> dict[str, Any]:
    names = (each.name for each in pkgutil.walk_packages(proxy.__path__, "proxy."))
    return {name: importlib.import_module(name) for name in names if name not in _NOT_IMPORTED}


@cache
def read_module(name: str) -> tuple[dict[str, set[str]], tuple[ast.Call, ...]]:
    """Return what `list_uses` and `list_calls` find in a module; the tree itself is not kept."""
    tree = ast.parse(Path(list_modules()[name].__file__).read_text(encoding="utf-8"))
    nodes = tuple(ast.walk(tree))
    return list_uses(nodes), tuple(list_calls(nodes))


def list_values(value: object, depth: int = 0) -> Iterator["re.Pattern[Any]"]:
    """Yield the patterns that a value is or has."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Enum):  # each has all the others
        yield from list_values(value.value, depth + 1)
    elif depth < 6 and isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from list_values(each, depth + 1)
    elif depth < 6 and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from list_values(each, depth + 1)
    elif depth < 6 and type(value).__module__.startswith("proxy.") and not isinstance(value, type):
        for name in dir(value):
            yield from (
                list_values(vars(type(value)).get(name) or getattr(value, name, None), depth + 1)
                if not name.startswith("__")
                else ()
            )


def list_named(holder: object, name: str) -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    """Yield the patterns among the values of a module, or of its classes, with their names."""
    for key, value in list(vars(holder).items()):
        if isinstance(value, type) and value.__module__ == name and not isinstance(holder, type):
            yield from list_named(value, name)
        elif not key.startswith("__"):
            yield from ((key, each) for each in list_values(value))


def list_uses(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Return the methods that are called, or handed on, of each name."""
    uses: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            uses.setdefault(name, set()).add(node.attr)
    return uses


def list_calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Yield the calls of functions of `re` that take a pattern."""
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _FUNCTIONS and ast.unparse(called.value) == "re":
            yield cast(ast.Call, node)


def find_pattern(call: ast.Call, module: Any) -> "re.Pattern[Any] | None":
    """Return the pattern of a call of `re`, None if the names of its module do not tell it."""
    flags = [each.value for each in call.keywords if each.arg == "flags"] + (
        call.args[1:2] if ast.unparse(call.func).removeprefix("re.") == "compile" else []
    )
    try:
        values = [eval(compile(ast.Expression(each), "", "eval"), vars(module)) for each in (call.args[0], *flags)]
    except NameError:
        return None
    return re.compile(*values)


@cache
def find_patterns() -> tuple[Found, ...]:
    """Return all patterns: values of modules, and those in calls within functions."""
    everywhere: dict[str, set[str]] = {}
    for module_name in list_modules():
        for name, methods in read_module(module_name)[0].items():
            everywhere.setdefault(name, set()).update(methods)
    found: dict[tuple[object, int], Found] = {}
    for name, module in list_modules().items():
        uses, calls = read_module(name)
        for key, pattern in list_named(module, name):
            is_matched = key in MATCHED.get(name, ())
            methods = {"match"} if is_matched else uses.get(key) or everywhere.get(key) or _METHODS
            _add(found, f"{name}.{key}", pattern, methods)
        for call in calls:
            made = find_pattern(call, module)
            if made is not None and (made.pattern, made.flags) not in found:
                _add(
                    found,
                    f"{name}:{call.lineno}",
                    made,
                    {ast.unparse(call.func).removeprefix("re.")} & _METHODS or _METHODS,
                )
    return tuple(found.values())


def _add(found: dict[tuple[object, int], Found], name: str, pattern: "re.Pattern[Any]", methods: set[str]) -> None:
    key = pattern.pattern, pattern.flags
    used = {_SCANS.get(each, each) for each in methods} | set(found[key].methods if key in found else ())
    found[key] = Found(name, pattern, tuple(sorted(used - ({"search"} if "finditer" in used else set()))))


def test_every_pattern_is_found() -> None:
    """A pattern that is made when a function runs escapes the gate, unless it is listed with what bounds it."""
    unknown = {
        name for name in list_modules() for call in read_module(name)[1] if not find_pattern(call, list_modules()[name])
    }
    assert unknown == MADE_LATER.keys()
    assert len(find_patterns()) > 250
    matched = {f"{module}.{name}" for module, names in MATCHED.items() for name in names}
    assert matched <= {each.name for each in find_patterns()}


def test_patterns_are_linear() -> None:
    slow = [f"{each.name}: {why}" for each in find_patterns() if (why := find_slow_string(each.pattern, each.methods))]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"<(?=\s*/?\s*(?:\||user\b))", "search"),
        (r"^\W*(?:action|tool)\b[^\n]*:", "finditer"),
        (r"\s+$", "search"),
        (r"\s+$", "finditer"),
        (r"(a+)+$", "search"),
        (r"```[a-z]*\s*\n(.*?)\n?\s*```", "search"),
    ],
)
def test_quadratic_patterns_are_rejected(pattern: str, method: str) -> None:
    assert find_slow_string(re.compile(pattern, re.MULTILINE | re.DOTALL), [method])


def test_patterns_that_read_runs_again_are_rejected() -> None:
    runs = re.compile(r"[A-Za-z\u0080-\U0010ffff]{4096,}|[^A-Za-z0-9\s]{4096,}|\s{4096,}")
    assert find_slow_string(runs, ["finditer"])


@pytest.mark.parametrize(
    "pattern", [r"<(?=\s*+/?+\s*+(?:\||user\b))", r"[\w.]+@[\w.]+"[:6], r"\s++", r"(?m)^[^\w\n]*+tool\b[^\n]*:"]
)
def test_linear_patterns_are_accepted(pattern: str) -> None:
    assert not find_slow_string(re.compile(pattern), ["search", "finditer", "match", "fullmatch"])
