"""Templates that are checked by their syntax tree, and answers that have to fit a schema."""

from datetime import date
from typing import Any

import pytest
from jinja2 import UndefinedError
from jinja2.exceptions import SecurityError
from pydantic import BaseModel

from proxy.engine.mapping.prompts import ItemTemplate, OutputSchema, Unfit, find_json, write_correction

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


class Person(BaseModel):
    """A model that an answer becomes."""

    name: str
    born: date | None = None


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
    assert OutputSchema(SCHEMA).read(text) == {"name": "Ada"}


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
    with pytest.raises(Unfit, match=why) as caught:
        OutputSchema(SCHEMA).read(text)
    assert str(caught.value) in write_correction(caught.value)


def test_only_the_first_errors_are_told() -> None:
    schema = OutputSchema({"type": "array", "items": {"type": "string", "maxLength": 1}})
    with pytest.raises(Unfit) as caught:
        schema.read("[" + ",".join(["1"] * 9) + ',"' + "x" * 5000 + '"]')
    lines = str(caught.value).splitlines()
    assert lines[0] == "$[0]: 1 is not of type 'string'"
    assert lines[-1] == "and 5 more"
    assert max(map(len, lines)) <= 300


def test_any_json_value_may_be_an_answer() -> None:
    assert OutputSchema({"type": "integer"}).read("3") == 3
    assert find_json("null") is None


def test_a_pydantic_model_makes_instances() -> None:
    schema = OutputSchema(Person)
    assert schema.read('{"name": "Ada", "born": "1815-12-10"}') == Person(name="Ada", born=date(1815, 12, 10))
    assert '"born"' in schema.orders
    with pytest.raises(Unfit, match=r"\$\.born: Input should be a valid date"):
        schema.read('{"name": "Ada", "born": "long ago"}')


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("object", "not str"),
        (int, "not type"),
        ({"type": "objekt"}, "no valid JSON Schema"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"properties": {"a": {"items": {"$ref": "#/$defs/missing"}}}}, "not in it"),
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
    schema = OutputSchema(tree)
    assert schema.read("[[], [[]]]") == [[], [[]]]
    with pytest.raises(Unfit, match=r"\$\[0\]\[0\]: 1 is not of type 'array'"):
        schema.read("[[1]]")


def test_a_schema_that_nothing_fits_rejects_every_answer() -> None:
    with pytest.raises(Unfit, match="False schema does not allow 1"):
        OutputSchema({"properties": {"a": False}, "required": ["a"]}).read('{"a": 1}')
