"""Every function of one text takes time linear in it, whatever the text is.

Patterns that are linear can still be used in a loop that begins again and again; those loops are what is found here.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.support.pumping import GENERIC, find_slowness, pump
from tests.test_patterns import list_modules

CORE = ("proxy.context.", "proxy.retrieval.", "proxy.wire.", "proxy.transcripts.", "proxy.engine.")
UNITS = (
    *GENERIC,
    *(
        "word ",
        "\u6587",
        "```\n",
        "```diff\n",
        "<tag>\n",
        "</tag>\n",
        '- m1: "a"\n',
        "ref:abcdefghij ",
        "## Goal\n",
        "1. a\n",
    ),
    *(
        "[FILE: a]\n",
        "- [fact] a\n",
        "def f():\n",
        "a: 1\n",
        "a,b\n",
        "\\u00",
        "class A {\n",
        "2024-01-01 ",
        "/Type /Pages ",
        "<think>",
    ),
    *("data: {}\n\n", "event: a\n", '{"a":1},', '"a":[', "<<a\n", "Traceback (most recent call last):\n", "I/O (a) "),
)
PREFIXES = ("", '{"messages":[', '{"a":"', "```json\n", "m1 ")
MOST_SECONDS = 0.4
"""Processor time for 20,000 characters: what Python does for each is more than what a pattern does."""


def list_functions() -> Iterator[tuple[str, Callable[..., Any], type]]:
    """Yield functions whose only parameter without a default is a text, or bytes, with their names."""
    for name, module in list_modules().items():
        for key, value in vars(module).items() if name.startswith(CORE) else ():
            function = getattr(value, "__wrapped__", value)  # without its cache
            if (
                inspect.isfunction(function)
                and function.__module__ == name
                and (kind := find_kind(function)) is not None
            ):
                yield f"{name}.{key}", function, kind


def find_kind(function: Callable[..., Any]) -> type | None:
    """Return the type of a function's only required parameter, if that is `str` or `bytes`."""
    parameters = inspect.signature(function).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    kind = function.__annotations__.get(needed[0]) if len(needed) == 1 else None
    return kind if kind in (str, bytes) and not inspect.iscoroutinefunction(function) else None


def call(function: Callable[..., Any], text: Any) -> None:
    with suppress(Exception):  # what is said of a text that cannot be read is not the question here
        found = function(text)
        if isinstance(found, Iterator):
            for _ in found:
                pass


def find_slow_text(function: Callable[..., Any], kind: type) -> str:
    for prefix in PREFIXES:
        for unit in UNITS if not prefix else UNITS[:12]:

            def make(size: int, prefix: str = prefix, unit: str = unit) -> Any:
                text = pump(prefix, unit, "", size)
                return text if kind is str else text.encode()

            if why := find_slowness(partial(call, function), make, MOST_SECONDS):
                return f"{prefix!r} + {unit!r} * n: {why}"
    return ""


def test_functions_of_a_text_are_linear() -> None:
    functions = list(list_functions())
    assert len(functions) > 150
    slow = [f"{name}: {why}" for name, function, kind in functions if (why := find_slow_text(function, kind))]
    assert not slow, "\n".join(slow)


def scan_again(text: str) -> int:
    """A quadratic function: it looks through the rest of the text from each line on."""
    return sum(text[at:].count("] ") for at, each in enumerate(text) if each == "\n")


@pytest.mark.parametrize(("function", "is_linear"), [(scan_again, False), (str.split, True)])
def test_a_quadratic_function_is_rejected(function: Callable[..., Any], is_linear: bool) -> None:
    assert (not find_slow_text(function, str)) is is_linear
