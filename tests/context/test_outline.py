"""Outlines: the type by path or content, a structure if there is one, else a preview, and never too much of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.outline import LONGEST_LINE, MOST_LINES, Outline, name_kind, outline, preview


@pytest.mark.parametrize(
    ("text", "path", "kind"),
    [
        ("", "a/b.PY", "python"),
        ("", "x.yml", "yaml"),
        ("", "main.rs", "rs"),
        ("", "Makefile", "unknown"),
        ('{"a": 1}', "", "json"),
        ("[[1]]", "", "json"),
        ("[x]", "", "unknown"),
        ("import os\n", "", "python"),
        ("from a.b import c\n", "", "python"),
        ("#!/usr/bin/env python3\n", "", "python"),
        ("---\na: 1\n", "", "yaml"),
        ("# Title\n", "", "markdown"),
        ("words", "", "unknown"),
    ],
)
def test_types_of_contents(text: str, path: str, kind: str) -> None:
    assert name_kind(text, path) == kind


def test_a_structure_where_there_is_one() -> None:
    assert outline('{"a": 1}\n', "x.json") == Outline("json", 1, ("a: number",))


@pytest.mark.parametrize(("text", "path"), [("def f(:\n  x", "a.py"), ("fn main() {\n  x", "a.rs"), ("one\ntwo", "")])
def test_else_a_preview(text: str, path: str) -> None:
    found = outline(text, path)
    assert (found.lines, found.structure) == (2, tuple(text.splitlines()))


def test_a_preview_is_of_both_ends() -> None:
    lines = [f"line {i}" for i in range(100)]
    assert preview("\n".join(lines)) == [*lines[:8], "…", *lines[-4:]]


def test_of_a_long_last_line_the_end_is_shown() -> None:
    assert preview("x" * 30_000 + "end")[-1] == "x" * (LONGEST_LINE - 3) + "end"


def test_what_is_too_large_for_its_parser_gets_a_preview() -> None:
    text = "import os\n" + "x = 1\n" * 50_000
    assert outline(text, "a.py").structure[0] == "import os"


def test_an_empty_content_has_no_lines() -> None:
    assert outline("") == Outline("unknown", 0, ())


KINDS = ["", "a.py", "a.json", "a.jsonl", "a.yaml", "a.toml", "a.md", "a.csv", "a.tsv", "a.rs"]
HOSTILE = [
    "[" * 10_000_000,
    "x" * 5_000_000,
    "\n" * 1_000_000,
    "\0" * 100_000,
    "\ud800" * 99_999,
    '{"a":' * 90_000,
    "- " * 45_000,
]
HOSTILE += [
    "# x\n" * 90_000,
    "a,b\n" * 90_000,
    "a.b = 1\n" * 9_000,
    " " * 10_000_000,
    "def f(): pass\n" * 10_000,
    "\r" * 99_999,
]
HOSTILE += ["import x\n\ud800", "k: " * 33_000, "`" * 400_000, '"' * 199_999, "{" * 99_999 + "}" * 99_999]


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_has_a_short_outline(text: str, path: str) -> None:
    check(outline(text, path))


@given(st.text(), st.sampled_from(KINDS))
def test_any_content_has_a_short_outline(text: str, path: str) -> None:
    check(outline(text, path))


def check(found: Outline) -> None:
    assert len(found.structure) <= MOST_LINES
    assert all(len(line) <= LONGEST_LINE for line in found.structure)


def test_a_kind_without_a_parser_here_is_parsed_by_whoever_is_passed_in() -> None:
    asked: list[tuple[str, str]] = []

    def parse(text: str, kind: str) -> list[str]:
        asked.append((text, kind))
        return ["fn x"] if kind == "rs" else []

    found = [outline("one", path, parse).structure for path in ("a.rs", "a.go", "a.json")]
    assert found == [("fn x",), ("one",), ("one",)]
    assert asked == [("one", "rs"), ("one", "go")]
