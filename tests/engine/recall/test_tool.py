"""The tool `context_recall`: its size, and the reading of arguments that models write."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.recall.tool import DESCRIPTION, PARAMETERS, Misused, RecallCall, find_reference, parse_call
from proxy.model.messages import RECALL_TOOL
from proxy.upstream.tokenizer import CountingTokenizer


def test_the_tool_costs_at_most_250_tokens() -> None:
    function = {"name": RECALL_TOOL, "description": DESCRIPTION, "parameters": PARAMETERS}
    text = json.dumps({"type": "function", "function": function})
    tokens, is_estimate = CountingTokenizer().count(text, "o200k_base")
    assert tokens <= 250 and not is_estimate


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ({"action": "search", "query": "why"}, RecallCall("search", "why")),
        ({"action": " Search ", "query": " why "}, RecallCall("search", "why")),
        ({"action": "search", "query": ["the", "cache"], "page": "2"}, RecallCall("search", "the cache", page=2)),
        ({"action": "search", "query": 404, "page": 3.0}, RecallCall("search", "404", page=3)),
        ({"action": "expand", "ref": "abcdefghij"}, RecallCall("expand", reference="abcdefghij")),
        ({"action": "expand", "ref": "ref:ABCDEFGHIJ"}, RecallCall("expand", reference="abcdefghij")),
        ({"action": "describe", "ref": "[ref:abcdefghij]"}, RecallCall("describe", reference="abcdefghij")),
        ({"action": "expand", "ref": "`REF: abcdefghij`", "page": None}, RecallCall("expand", reference="abcdefghij")),
        ({"action": "expand", "ref": "12-14 ran it ref:abcdefghij"}, RecallCall("expand", reference="abcdefghij")),
        (
            {"action": "expand", "ref": ["ref:abcdefghij", "ref:bbbbbbbbbb"]},
            RecallCall("expand", reference="abcdefghij"),
        ),
        ({"action": "expand", "query": "ref:abcdefghij"}, RecallCall("expand", reference="abcdefghij")),
        ({"action": "read", "query": "src/app.py @ 12"}, RecallCall("read", "src/app.py @ 12")),
        ({"action": "read", "ref": "abcdefghij", "page": ""}, RecallCall("read", reference="abcdefghij")),
        ({"ref": "abcdefghij"}, RecallCall("expand", reference="abcdefghij")),
        ({"query": "why", "ref": []}, RecallCall("search", "why")),
        ({"action": "search", "query": "why", "unknown": {}}, RecallCall("search", "why")),
    ],
)
def test_arguments_are_read_however_they_are_written(arguments: dict[str, object], call: RecallCall) -> None:
    assert parse_call(json.dumps(arguments)) == call
    assert parse_call(json.dumps(json.dumps(arguments))) == call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "There is no action: use search"),
        ("{}", "There is no action: use search"),
        ("[]", "no JSON object"),
        ("null", "no JSON object"),
        ('{"action":"expand"', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ('{"action":7,"query":"x"}', "'7' is no action: use search"),
        ('{"action":"open","query":"x"}', "'open' is no action: use search"),
        ('{"action":"search"}', "search needs a query: the words"),
        ('{"action":"search","ref":"abcdefghij"}', "use action expand with that ref"),
        ('{"action":"search","query":{"a":1}}', "query is a text"),
        ('{"action":"search","query":[1,"b"]}', "query is a text"),
        ('{"action":"search","query":true}', "query is a text"),
        ('{"action":"expand"}', "expand needs a ref, as the ledger"),
        ('{"action":"describe","query":"the log"}', "use action search with this query"),
        ('{"action":"expand","ref":"somewhere"}', "'somewhere' is no reference"),
        ('{"action":"expand","ref":{"id":"abcdefghij"}}', "is no reference"),
        ('{"action":"read"}', "read needs a query with a path"),
        ('{"action":"search","query":"x","page":0}', "'0' is no page"),
        ('{"action":"search","query":"x","page":true}', "'True' is no page"),
        ('{"action":"search","query":"x","page":"two"}', "'two' is no page"),
        ('{"action":"search","query":"x","page":1.5}', "'1.5' is no page"),
    ],
)
def test_what_makes_no_sense_is_told_what_to_do(arguments: str, said: str) -> None:
    found = parse_call(arguments)
    assert isinstance(found, Misused) and said in found.answer
    assert len(found.answer) < 400


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)


@given(st.text() | st.dictionaries(st.sampled_from(["action", "query", "ref", "page"]), _JSON).map(json.dumps))
def test_any_arguments_are_a_call_or_an_answer(arguments: str) -> None:
    found = parse_call(arguments)
    if isinstance(found, RecallCall):
        assert found.query or found.reference
        assert found.action != "search" or found.query
        assert found.page >= 1
    else:
        assert isinstance(msgspec.to_builtins(found)["answer"], str)


def test_a_reference_is_found_only_where_there_is_nothing_else() -> None:
    assert find_reference(" [ref:abcdefghij] ") == "abcdefghij"
    assert find_reference("ABCDEFGHIJ") == "abcdefghij"
    assert find_reference("see ref:abcdefghij") == find_reference("") == find_reference("abcdefghijk") == ""
