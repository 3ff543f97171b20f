import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.outline import (
    LONGEST_LINE,
    MOST_LINES,
    Outline,
    detect_binary,
    detect_kind,
    outline,
    outline_csv,
    outline_json,
    outline_json_lines,
    outline_markdown,
    outline_python,
    outline_toml,
    outline_tsv,
    outline_yaml,
    preview,
    remove_line_numbers,
)

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


def test_json() -> None:
    value = {
        "s": "x",
        "n": 1,
        "f": 1.5,
        "b": True,
        "z": None,
        "o": {"a": 1, "b": 2},
        "e": {},
        "l": [{"id": 1}, 2],
        "m": [],
    }
    assert outline_json(json.dumps(value)) == [
        "s: string",
        "n: number",
        "f: number",
        "b: boolean",
        "z: null",
        "o: object of a, b",
        "e: object of nothing",
        "l: array of 2, the first: object of id",
        "m: array of 0",
    ]
    assert outline_json("[[1], 2]") == ["array of 2, the first: array"]
    assert outline_json('"x"') == []


def test_of_many_keys_some_are_shown() -> None:
    many = {f"key{i}": i for i in range(50)}
    assert outline_json(json.dumps(many))[-1] == "and 10 more keys"
    assert outline_json(json.dumps({"a": many}))[0].endswith("key11, …")


def test_lines_of_json() -> None:
    assert outline_json_lines('{"a":1}\n{"a":2}\n{"a":3}') == ["2 lines below the first", "a: number"]
    assert outline_json_lines('{"a":1}') == ["0 lines below the first", "a: number"]
    assert outline_json_lines("x\n") == outline_json_lines("[" * 2_000_000) == []
    assert outline_json_lines(f'{{"a":"{"x" * 1_000_000}"}}') == []


def test_toml() -> None:
    text = "when = 2020-01-01\n[tool.x]\na = 1\n[[point]]\nx = 1\n[[point]]\n"
    assert outline_toml(text) == ["when: date", "tool: object of x", "point: array of 2, the first: object of x"]


@pytest.mark.parametrize(
    "text", ["a = ", "a = " + "[" * 90_000, "a" + ".a" * 49_000 + " = 1", "\0", "\ud800", "a = " + "9" * 9000]
)
def test_what_is_no_toml(text: str) -> None:
    assert outline_toml(text) == []


def test_yaml() -> None:
    text = "a: 1\nb:\n  c: &x [1, {no: 1}]\n  d: {e: {f: 1}}\n? [k]\n: v\ng:\n- h: 1\ni: *x\n---\nother: 1\n"
    assert outline_yaml(text) == [
        "a · line 1",
        "b · line 2",
        "  c · line 3",
        "  d · line 4",
        "g · line 7",
        "i · line 9",
    ]
    assert outline_yaml("") == outline_yaml("words") == outline_yaml("- a: 1\n") == []


def test_of_much_yaml_the_beginning_is_shown() -> None:
    assert len(outline_yaml("".join(f"k{i}: 1\n" for i in range(1000)))) == 81


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "[" * 99_000,
        "- " * 49_000,
        "a: \0",
        "\ud800: 1",
        "{a: " * 20_000,
        "[" + "1," * 49_000 + "]",
        "%x\n",
        "a: *b\n- c",
    ],
)
def test_what_is_no_yaml(text: str) -> None:
    assert outline_yaml(text) == []


@pytest.mark.parametrize("text", ["", "{", "[" * 3_000_000, '{"a":' * 500_000, '"\ud800"', "[1e999999999]", "nul"])
def test_what_is_no_json(text: str) -> None:
    assert outline_json(text) == []


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
    assert detect_kind(text, path) == kind


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


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "png"),
        (b"%PDF-1.7\n" + b"\xe2\xe3\xcf\xd3 stream " * 99, "pdf"),
        (b"\x7fELF\x02\x01" + b"\0" * 999, "elf"),
        (bytes(range(256)) * 9, "binary"),
        (b"QUJD" * 300 + b"==", "base64"),
        (b"data:image/jpeg;base64," + (b"QUJD" * 19 + b"\n") * 30, "image/jpeg"),
    ],
)
def test_what_is_no_text_is_not_shown(content: bytes, kind: str) -> None:
    """Whatever its path says: a parser would show bytes that are no text, or take one for another."""
    found = outline(content.decode(errors="replace"), "report.md")
    assert (found.kind, found.structure) == (kind, ("not text: none of it is shown",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x1b[31mred\x1b[0m\n" * 99,
        "\tgröße\r\n" * 99,
        "漢字仮名\n" * 99,
        "one \ufffd of many words\n" * 9,
        "\n" * 999,
        "QUJD",
    ],
)
def test_text_is_no_binary_content(text: str) -> None:
    assert detect_binary(text) == ""


def test_an_empty_content_has_no_lines() -> None:
    assert outline("") == Outline("unknown", 0, ())


KINDS = ["", "a.py", "a.json", "a.jsonl", "a.yaml", "a.toml", "a.md", "a.csv", "a.tsv", "a.rs"]
HOSTILE = [
    "[" * 2_000_000,
    "x" * 2_000_000,
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
    " " * 2_000_000,
    "def f(): pass\n" * 10_000,
    "\r" * 99_999,
]
HOSTILE += ["import x\n\ud800", "k: " * 33_000, "`" * 400_000, '"' * 199_999, "{" * 99_999 + "}" * 99_999]


@pytest.mark.no_cover
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


SCRIPT = """import React, { useState } from "react";
import type { Shape } from './shape';
import "./side.css";
const fs = require("fs");
export * from "./all";

export default class Reader extends Base {
  read(raw) {}
}
export const parse = async (raw: string): Shape => ({});
export function readShape(raw) {
  function inner() {}
  return "no import"
}
interface Local { a: number }
const local = 1;
export { local as renamed, other };
export type Name = string;
"""


def test_a_script_has_its_imports_and_exports_with_and_without_a_grammar() -> None:
    head = (
        "imports react, ./shape, ./side.css, fs, ./all",
        "exports Reader, parse, readShape, renamed, other, Name",
    )
    plain = outline(SCRIPT, "src/reader.ts")
    assert (plain.kind, plain.shows) == ("ts", "structure")
    assert plain.structure == (
        *head,
        "class Reader · line 7",
        "function parse · line 10",
        "function readShape · line 11",
        "  function inner · line 12",
        "interface Local · line 15",
    )
    assert outline(SCRIPT, "a.tsx", lambda text, kind: [f"class of {kind}"]).structure == (*head, "class of tsx")
    old = outline("exports.a = 1;\nmodule.exports = {b, c: d};\nmodule.exports = e\n", "a.cjs").structure
    assert old == ("exports a, b, c, e",)
    assert outline("let a = 1", "a.js").shows == "preview"
    assert outline(f"export const a = 1;\n{'x' * 400_000}", "a.js").shows == "preview"


def number_lines(text: str, first: int, form: str) -> str:
    return "\n".join(form.format(i, line) for i, line in enumerate(text.splitlines(), first))


@pytest.mark.parametrize("form", ["{:>6}→{}", "{:>6}\t{}", "{:05}| {}"])
def test_a_numbered_text_is_outlined_as_the_text_that_it_shows(form: str) -> None:
    shown = f"<file>\n{number_lines(PYTHON, 1, form)}\n\n(End of file)\n</file>"
    assert outline(shown, "a.py").structure == tuple(outline_python(PYTHON))
    assert outline(number_lines(PYTHON, 1, form)).kind == "python"
    excerpt = "\n".join(PYTHON.splitlines()[13:20])
    assert outline(number_lines(excerpt, 14, form), "a.py").structure == (
        "def f takes self, a, b, c · lines 14-15",
        "class C · lines 17-18",
    )
    cut = "        return 1\n" + PYTHON
    assert outline(number_lines("    if x:\n" + cut, 76, form), "a.py").structure[:2] == (
        "imports os, a.b, .",
        "class A · line 87",
    )


@pytest.mark.parametrize(
    "text",
    [
        "1\ta\n2\tb\n3\tc\n",
        "   1→a\n   2→b\n   7→c\n",
        "   1→a\nb\n",
        "200001→a\n200002→b\n200003→c\n",
        "1: a\n2: b\n3: c\n",
    ],
)
def test_other_numbers_are_content(text: str) -> None:
    assert remove_line_numbers(text) == text
