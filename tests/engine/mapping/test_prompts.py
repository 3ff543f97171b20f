"""Templates that are checked by their syntax tree, and answers that have to fit a schema."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from jinja2.exceptions import SecurityError

from proxy.engine.mapping.prompts import ItemTemplate, OutputSchema, find_json
from proxy.engine.mapping.sandbox import Unfit, substitute

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


def read(schema: dict[str, Any], text: str) -> object:
    """Return the value of an answer that has to fit a schema."""
    _, value = find_json(text)
    OutputSchema(schema).check(value)
    return value


@pytest.mark.parametrize(
    ("text", "item", "prompt"),
    [
        ("Sum up: {{ item }}\n", "x", "Sum up: x\n"),
        ("{{ item.name | upper }} {{ item['n'] }}", {"name": "a", "n": 1}, "A 1"),
        ("{% for each in item %}{{ loop.index }}{{ each }}{% endfor %}", ["a", "b"], "1a2b"),
        ("{% if item is string %}{{ range(2) | list }}{% endif %}", "x", "[0, 1]"),
        ("{{ item | tojson }}", {"a": [1]}, '{"a": [1]}'),
    ],
)
def test_a_template_is_rendered_for_an_item(text: str, item: object, prompt: str) -> None:
    assert ItemTemplate(text).render(item) == prompt


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Sum up the text", "does not use item"),
        ("{# {{ item }} #} {{ 'item' }}", "does not use item"),
        ("{% raw %}{{ item }}{% endraw %}", "does not use item"),
        ("{% set item = 1 %}{{ item }}", "does not use item"),
        ("{{ items }}", "does not use item"),
        ("{{ item }} {{ question }} {{ answer }}", "uses answer, question"),
        ("{{ item }", "not valid"),
        ("{{ item | nothing }}", "not valid"),
        ("{{ item }}{% include 'other' %}", "load other templates"),
    ],
)
def test_a_template_that_cannot_work_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ItemTemplate(text)


KEYS = st.sampled_from(["a", "b", "items", "__class__", "", "0"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800") | st.just(2**10_000)
ITEMS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(0, 2), inner, max_size=4),
    max_leaves=8,
)
STEPS = st.sampled_from(
    [".a", ".b", ".items", "['a']", "['items']", "['__class__']", ".__class__", "['']", "[0]", "[1]"]
)
WAYS = st.lists(STEPS | st.sampled_from([".0", "[-1]", "[true]", "[1.0]", "[:1]", "['a' ~ '']"]), max_size=3)
TEXTS = st.sampled_from(
    ["", " a\n", "\r\n", "<&>'", "{# no #}", "{% raw %}{{ item }}{% endraw %}", "{{ 1 }}", "\u00e9"]
)
TEMPLATES = st.lists(st.tuples(TEXTS, WAYS), min_size=1, max_size=3)


@given(ITEMS, TEMPLATES)
@example({"a": "x"}, [("", [".a"])])
@example({"items": 1}, [("", [".items"])])
@example("x" * 70_000, [("", [])])
def test_what_is_substituted_is_what_jinja_renders(item: object, pieces: list[tuple[str, list[str]]]) -> None:
    template = ItemTemplate("".join(f"{text}{{{{ item{''.join(way)} }}}}" for text, way in pieces))
    prompt = substitute(template.parts, item) if template.parts else None
    assert prompt is None or prompt == template.render(item)


@pytest.mark.parametrize(
    ("text", "item", "prompt"),
    [
        ("Sum up: {{ item }}\n", "x", "Sum up: x\n"),
        ("{{ item.a }}, {{ item['b'][1] }}{# no #}", {"a": None, "b": [1, 2.5]}, "None, 2.5"),
        ("{{ item.a.b }}{% raw %}{{ item }}{% endraw %}", {"a": {"b": True}}, "True{{ item }}"),
        ("{{ item.a }}", {"b": 1}, None),
        ("{{ item[1] }}", [1], None),
        ("{{ item[0] }}", "x", None),
        ("{{ item }}", {"a": 1}, None),
        ("{{ item }}", 2**10_000, None),
        ("{{ item }}", "x" * 70_000, None),
    ],
)
def test_scalars_of_plain_data_are_substituted(text: str, item: object, prompt: str | None) -> None:
    assert substitute(ItemTemplate(text).parts, item) == prompt


@pytest.mark.parametrize(
    "text",
    [
        "{{ item | upper }}",
        "{{ item.get('a') }}",
        "{{ item.items }}",
        "{{ item[9999999999] }}",
        "{% if item %}{{ item }}{% endif %}",
        "{% for each in item %}{{ each }}{% endfor %}",
        "{{ item }}" * 65,
        "{{ item" + ".a" * 17 + " }}",
    ],
)
def test_anything_but_names_of_values_is_for_jinja(text: str) -> None:
    assert ItemTemplate(text).parts == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ item.missing }}", UndefinedError),
        ("{{ item.__class__.__mro__ }}", SecurityError),
        ("{{ item / 0 }}", ZeroDivisionError),
    ],
)
def test_what_a_template_does_with_an_item_may_fail(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        ItemTemplate(text).render(1)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada"}',
        ' \n{"name": "Ada"}\n',
        '```json\n{"name": "Ada"}\n```',
        'Here it is:\n```\n{"name": "Ada"}\n```\nAnything else?',
        'The answer is {"name": "Ada"} and no other.',
        '<think>{"name": 1}</think>\n{"name": "Ada"}',
    ],
)
def test_an_answer_is_found_in_what_surrounds_it(text: str) -> None:
    assert read(SCHEMA, text) == {"name": "Ada"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the answer is empty"),
        ("I cannot.", "not JSON"),
        ("{broken", "not JSON"),
        ("[" * 2000 + "]" * 2000, "nested too deeply|not JSON"),
        ("{}", r"\$: 'name' is a required property"),
        ('{"name": "Ada", "age": "old"}', r"\$\.age: 'old' is not of type 'integer'"),
    ],
)
def test_an_answer_that_does_not_fit_says_why(text: str, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        read(SCHEMA, text)


def test_only_the_first_errors_are_told() -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 1}}
    with pytest.raises(Unfit) as caught:
        read(schema, "[" + ",".join(["1"] * 9) + ',"' + "x" * 5000 + '"]')
    lines = str(caught.value).splitlines()
    assert lines[0] == "$[0]: 1 is not of type 'string'"
    assert lines[-1] == "and 5 more"
    assert max(map(len, lines)) <= 300


def test_any_json_value_may_be_an_answer() -> None:
    assert read({"type": "integer"}, "3") == 3
    assert find_json(" null ") == ("null", None)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "no valid JSON Schema"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"properties": {"a": {"items": {"$ref": "#/$defs/missing"}}}}, "not in it"),
        ({"$dynamicRef": "https://example.com/schema.json"}, "nothing is fetched"),
        (
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "https://example.com/"},
            "not in it",
        ),
        ({"$ref": "http://["}, "not in it"),
        ({"$ref": "#/required", "required": ["a"]}, "which is no schema"),
        ({"$ref": "#/mine", "mine": {"type": "objekt"}}, "no valid JSON Schema"),
        ({"$ref": "#/mine", "mine": {"not": {"$ref": "https://example.com/"}}}, "not in it"),
        ({"pattern": "("}, "no valid JSON Schema"),
        (json.loads('{"not":' * 900 + "{}" + "}" * 900), "nested too deeply"),
        (json.loads('{"not":' * 200 + "{}" + "}" * 200), "nested too deeply"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OutputSchema(schema)


def test_a_schema_may_refer_to_itself() -> None:
    tree = {
        "$id": "https://example.com/tree",
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "$ref": "#/$defs/node",
    }
    assert read(tree, "[[], [[]]]") == [[], [[]]]
    with pytest.raises(Unfit, match=r"\$\[0\]\[0\]: 1 is not of type 'array'"):
        read(tree, "[[1]]")


def test_a_schema_that_nothing_fits_rejects_every_answer() -> None:
    with pytest.raises(Unfit, match="False schema does not allow 1"):
        read({"properties": {"a": False}, "required": ["a"]}, '{"a": 1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$dynamicRef": "#"},
        {"$dynamicAnchor": "a", "$dynamicRef": "#a"},
        {"allOf": [{"$ref": "#"}]},
        {"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/a"}]}}},
        {"properties": {"a": {"not": {"$ref": "#/$defs/b"}}}, "$defs": {"b": {"$ref": "#/properties/a"}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": {"$ref": "#"}}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
        {"$ref": "#/mine", "mine": {"oneOf": [{"$ref": "#/mine"}]}},
    ],
)
def test_a_schema_that_never_ends_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="never ends"):
        OutputSchema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#"}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object"}}, "allOf": [{"$ref": "#/$defs/a"}] * 2},
        {"$defs": {"a": {"not": True}}, "anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}, True]},
        {"$dynamicAnchor": "node", "type": "object", "properties": {"child": {"$dynamicRef": "#node"}}},
        {"properties": {"$ref": {"type": "string"}}, "propertyNames": {"$ref": "#/mine"}, "mine": True},
    ],
)
def test_a_schema_that_comes_to_an_end_is_taken(schema: dict[str, Any]) -> None:
    assert read(schema, "{}") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ " + "(" * 3000 + "item" + ")" * 3000 + " }}", "nested too deeply"),
        ("{% for each in item %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    ],
)
def test_a_template_that_is_nested_too_deeply_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ItemTemplate(text).compile()


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 2000000000 }}",
        "{{ 9 ** (9 ** 8) }}",
        "{{ -(9 ** (9 ** 8)) }}",
        "{{ 'a' | center(1500000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% set a = 'a' | center(1500000000) | length %}",
        "{{ '\"' | tojson" + " | tojson" * 40 + " }}",
        "{% if 1 is divisibleby(9 ** (9 ** 8)) %}{% endif %}",
    ],
)
def test_a_template_is_checked_without_evaluating_any_of_it(text: str) -> None:
    began = time.process_time()
    ItemTemplate("{{ item }}" + text)
    assert time.process_time() - began < 5  # of minutes, or of all memory


def test_what_is_told_of_a_schema_is_short() -> None:
    with pytest.raises(ValueError, match="no valid JSON Schema") as caught:
        OutputSchema({"type": "x" * 100_000})
    assert len(str(caught.value)) < 400
    with pytest.raises(ValueError, match="uses a") as caught:
        ItemTemplate("{{ item }}{{ " + "a" * 100_000 + " }}")
    assert len(str(caught.value)) < 400
