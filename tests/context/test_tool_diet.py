"""Which tools are shortened, and that a shortened schema allows nothing that the whole one forbids."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from proxy.context.tool_diet import choose_shortened, read_tools, shorten_schema, take_sentence, write_tools
from tests.support.examples import examples

LONG = "Reads a file from the disk. " + "It takes lines, offsets and encodings, and says where it ends. " * 16
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Read",
    "properties": {
        "path": {"type": "string", "description": "where it is"},
        "lines": {"type": "integer", "description": "how many", "default": 2000},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}, "all": {"type": "boolean", "description": "each one"}},
                "required": ["old"],
            },
        },
    },
    "required": ["path", "edits"],
}
SHORT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"old": {"type": "string"}},
                "required": ["old"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["path", "edits"],
    "additionalProperties": False,
}


def spell(wire: str, name: str, description: str = LONG, schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    """A tool as a client of a wire sends it."""
    if wire == "messages":
        return {"name": name, "description": description, "input_schema": schema, **more}
    function = {"name": name, "description": description, "parameters": schema, **more}
    return {"type": "function", "function": function} if wire == "chat" else {"type": "function", **function}


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_a_shortened_tool_has_its_name_a_sentence_and_what_is_required(wire: str) -> None:
    raw = json.dumps([spell(wire, "read"), spell(wire, "write")], indent=1).encode()
    tools = read_tools(raw)
    assert [each.name for each in tools] == ["read", "write"]
    whole, short = write_tools(tools, {"write"})
    assert whole in raw
    assert json.loads(short) == spell(wire, "write", "Reads a file from the disk.", SHORT)
    assert short == write_tools(read_tools(raw), ["write"])[1]


@pytest.mark.parametrize(
    "tool",
    [
        spell("chat", "read", strict=True),
        spell("responses", "read", strict=True),
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "custom", "name": "apply_patch", "description": LONG, "format": {"type": "grammar"}},
        {"type": "namespace", "name": "crm", "description": LONG, "tools": [spell("responses", "read")]},
        spell("chat", "", LONG),
        "text",
    ],
)
def test_a_tool_of_another_kind_stays_as_it_is(tool: Any) -> None:
    raw = json.dumps([tool]).encode()
    assert [each.short == each.whole for each in read_tools(raw)] == [True]


def test_tools_that_the_provider_loads_later_stay_as_they_are() -> None:
    raw = json.dumps([spell("messages", "read"), spell("messages", "write", defer_loading=True)]).encode()
    assert [each.saved for each in read_tools(raw)] == [0, 0]


def test_tools_of_one_name_stay_as_they_are() -> None:
    raw = json.dumps([spell("messages", "read"), spell("messages", "read"), spell("messages", "write")]).encode()
    assert [each.saved > 0 for each in read_tools(raw)] == [False, False, True]


@pytest.mark.parametrize("raw", [b"", b"null", b"{}", b"[", b"[1" + b"[" * 5000, b'["\\ud800"]'])
def test_tools_that_cannot_be_read_are_none(raw: bytes) -> None:
    assert read_tools(raw) == ()


def test_what_belongs_to_a_cache_or_to_the_client_stays() -> None:
    tool = spell("messages", "read", cache_control={"type": "ephemeral"}, input_examples=[{"path": "a", "lines": 3}])
    (read,) = read_tools(json.dumps([tool]).encode())
    short = json.loads(read.short)
    assert short["cache_control"] == {"type": "ephemeral"}
    assert "input_examples" not in short  # they may have parameters that the shortened schema has not


@pytest.mark.parametrize(
    ("said", "first"),
    [
        (LONG, "Reads a file from the disk."),
        ("# Reads.\n\nMore of it", "Reads."),
        ("Takes paths, e.g. a/b.py and more. Then ends.", "Takes paths, e.g. a/b.py and more."),
        ("No end of a sentence", "No end of a sentence"),
        ("x" * 900, "x" * 200),
        ("", ""),
    ],
)
def test_the_first_sentence(said: str, first: str) -> None:
    assert take_sentence(said) == first


def test_a_schema_that_refers_to_its_parts_loses_remarks_alone() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/b", "description": "x"}, "b": {"type": "integer", "title": "y"}},
        "required": ["a"],
    }
    short = {**schema, "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}}
    assert shorten_schema(schema) == short


def test_parameters_are_not_taken_for_remarks() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": "d"} for name in ("title", "description", "default")},
        "required": ["title", "description", "default"],
    }
    shown: Any = shorten_schema(schema)
    assert shown["properties"] == {name: {"type": "string"} for name in ("title", "description", "default")}
    assert shorten_schema({"enum": [{"title": "x"}], "const": {"default": 1}}) == {
        "enum": [{"title": "x"}],
        "const": {"default": 1},
    }


_TWO = {"a": {"type": "string"}, "b": {"type": "string"}}


@pytest.mark.parametrize(
    "more",
    [
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"minProperties": 1},
        {"required": ["a"], "dependentRequired": {"a": ["b"]}},
        {"required": ["c"]},
        {"patternProperties": {"^b": {}}},
    ],
)
def test_an_object_that_may_require_more_keeps_its_parameters(more: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": _TWO, **more}
    assert shorten_schema({**schema, "title": "x"}) == schema


def test_each_of_several_kinds_of_value_is_shortened() -> None:
    bare = {"type": "object", "properties": {}, "additionalProperties": False}
    assert shorten_schema({"anyOf": [{"type": "object", "properties": _TWO}, {"type": "null"}]}) == {
        "anyOf": [bare, {"type": "null"}]
    }


_names = st.sampled_from(["a", "b", "title"])
_plain = st.sampled_from(
    [{}, {"type": "string"}, {"type": "integer", "description": "d"}, {"enum": [1, "x"]}, {"const": {"a": 1}}, True]
)


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(_names, inner, max_size=3)},
        optional={
            "required": st.lists(_names, max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "minProperties": st.integers(0, 2),
            "description": st.just("d"),
            "not": inner,
            "default": st.just({}),
        },
    )
    lists = st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"minItems": st.just(1)})
    several = st.lists(inner, min_size=1, max_size=2)
    combined = [st.fixed_dictionaries({name: several}) for name in ("anyOf", "allOf", "oneOf")]
    return st.one_of(objects, lists, *combined)


_schemas = st.recursive(_plain, _grow, max_leaves=8)
_values = st.recursive(
    st.sampled_from([1, "x", None, True]),
    lambda inner: st.one_of(st.dictionaries(_names, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=6,
)


@example({"oneOf": [SCHEMA, {"type": "object"}]}, {"path": "a", "edits": [], "lines": 3})
@example({"type": "object", "properties": {"a": {}}, "minProperties": 1}, {})
@example({"not": {"type": "object", "properties": {"a": {"type": "string"}}}}, {"a": 1})
@examples(300)
@given(_schemas, st.lists(_values, min_size=1, max_size=5))
def test_what_a_shortened_schema_allows_the_whole_one_allows(schema: Any, values: Any) -> None:
    whole, short = Draft202012Validator(schema), Draft202012Validator(shorten_schema(schema))
    for value in values if isinstance(values, list) else [values]:
        assert whole.is_valid(value) or not short.is_valid(value)


def choose(used: set[str], before: tuple[str, ...] = (), *, is_long: bool = True, is_first: bool = False) -> Any:
    tools = read_tools(json.dumps([spell("chat", name) for name in ("a", "b", "c", "d", "e", "f", "g", "h")]).encode())
    return "".join(choose_shortened(tools, used, before, is_long=is_long, is_first=is_first))


@pytest.mark.parametrize(
    ("used", "before", "options", "chosen"),
    [
        ({"a", "c"}, "", {"is_first": True}, "bdefgh"),
        ({"a", "c"}, "", {}, "bdefgh"),
        ({"a", "c"}, "", {"is_first": True, "is_long": False}, ""),
        (set("abc"), "", {"is_first": True}, ""),  # five save too little
        (set("ab"), "", {"is_first": True}, "cdefgh"),
        (set("abcd"), "ef", {}, "ef"),
        ({"a"}, "bcdefg", {}, "bcdefg"),  # h saves too little
        ({"a"}, "bc", {}, "bc"),
        ({"a"}, "b", {}, "bcdefgh"),
        ({"a", "b"}, "bcdefg", {}, "cdefgh"),  # b was called: the tools change anyway
        ({"a", "b"}, "bcdefg", {"is_long": False}, "cdefg"),
        (set("abcdefgh"), "bc", {}, ""),
        ({"a"}, "bx", {}, "bcdefgh"),  # x is gone from the client's tools
    ],
)
def test_which_tools_are_shortened(used: set[str], before: str, options: dict[str, bool], chosen: str) -> None:
    assert choose(used, tuple(before), **options) == chosen


def test_tools_do_not_change_for_a_small_part_of_them() -> None:
    tools = read_tools(json.dumps([spell("chat", f"{n}") for n in range(40)]).encode())
    used, options = {f"{n}" for n in range(33)}, {"is_long": True}
    seven = tuple(each.name for each in tools[33:])
    assert choose_shortened(tools, used, (), **options, is_first=True) == seven
    assert choose_shortened(tools, used, (), **options, is_first=False) == ()
    assert choose_shortened(tools, (), seven, **options, is_first=False) == tuple(each.name for each in tools)


def test_a_tool_that_hardly_becomes_shorter_stays_whole() -> None:
    tools = read_tools(json.dumps([spell("chat", "a", "Reads.", {"type": "object"}), spell("chat", "b")] * 1).encode())
    many = [*tools, *[each._replace(name=f"{each.name}{n}") for n in range(9) for each in tools]]
    chosen = choose_shortened(many, (), (), is_long=True, is_first=True)
    assert all(name.startswith("b") for name in chosen) and len(chosen) == 10
