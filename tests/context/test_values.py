"""Outlines of JSON, TOML and YAML; nothing where the text is none of it."""

import json

import pytest

from proxy.context.values import outline_json, outline_json_lines, outline_toml, outline_yaml


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
