"""Outlines of Python, Markdown and tables; nothing where the text is none of it."""

import pytest

from proxy.context.structure import outline_csv, outline_markdown, outline_python, outline_tsv

PYTHON = r'''"""Doc."""
import os, re
from a.b import c
from . import d
import os

PATTERN = "\d"


class A(B):
    """It."""
    x = 1

    def f(self, a, /, b, *, c):
        def inner(): ...

    class C:
        pass


async def g():
    pass
'''


def test_python() -> None:
    assert outline_python(PYTHON) == [
        "imports os, re, a.b, .",
        "class A · lines 10-18",
        "  def f takes self, a, b, c · lines 14-15",
        "  class C · lines 17-18",
        "def g takes nothing · lines 21-22",
    ]
    assert outline_python("x = 1") == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(:",
        "[" * 200_000,
        "-" * 199_999 + "1",
        "1" + "+1" * 99_000,
        "x" + ".a" * 99_000,
        "\0",
        "\ud800",
        "not " * 49_000,
        "1 " + "if 1 else 1 " * 16_000,
        "'" * 3,
        "lambda:" * 28_000,
        "  x",
        "{1:" * 50_000,
        "9" * 10_000,
        "if 1:\n" * 9,
        "'\\",
    ],
)
def test_what_is_no_python(text: str) -> None:
    assert outline_python(text) == []


def test_what_is_nested_deeply_is_left_alone() -> None:
    shallow, deep = (f"x = {'[' * depth}{']' * depth}\ndef f(): pass" for depth in (60, 61))
    assert outline_python(shallow) == ["def f takes nothing · lines 2-2"]
    assert outline_python(deep) == []


def test_markdown() -> None:
    text = "# One\n```\n# code\n~~~\n```\n## Two  \n~~~\n# no\n~~~\n#none\n### Three\n"
    assert outline_markdown(text) == ["One · line 1", "  Two · line 6", "    Three · line 11"]
    assert outline_markdown("words") == []


def test_tables() -> None:
    assert outline_csv('a,b\n1,"x\ny"\n2,z\n') == [
        "2 columns, 3 lines below the first",
        "columns: a, b",
        "row: 1, xy",
        "row: 2, z",
    ]
    assert outline_csv("a;b,c\n1;2;3") == ["2 columns, 1 lines below the first", "columns: a, b,c", "row: 1, 2, 3"]
    assert outline_tsv("a\tb") == ["2 columns, 0 lines below the first", "columns: a, b"]


@pytest.mark.parametrize("text", ["", "words", "a" * 5_000_000, "," + "x" * 190_000, "\n"])
def test_what_is_no_table(text: str) -> None:
    assert outline_csv(text) == []
