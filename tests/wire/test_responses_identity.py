"""Responses items: every change that clients make to what they echo keeps the form, and no other change does."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.body import split_body
from proxy.wire.responses import Responses
from proxy.wire.streams import read_events
from tests.support.echoes import (
    Change,
    Message,
    ids,
    inputs,
    mutate,
    names,
    pairwise_different,
    read,
    read_one,
    spell,
    spell_like_javascript,
    texts,
)

WIRE = Responses()
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
TEXTS = ("input_text", "output_text", "text")


def text(said: str, kind: str = "input_text") -> Message:
    return {"type": kind, "text": said}


def say(role: str, content: object) -> Message:
    return {"type": "message", "role": role, "content": content}


def call(call_id: str = "call_1", name: str = "f", arguments: str = '{"a":1}') -> Message:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str = "call_1", said: object = "ok") -> Message:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def find_content(item: Message) -> str:
    return "output" if item["type"] == "function_call_output" else "content"


def fold_content(item: Message, random: Random) -> None:
    key = find_content(item)
    content = item.get(key)
    if isinstance(content, str) and random.random() < 0.5:
        item[key] = [text(content, random.choice(TEXTS))]
    elif isinstance(content, list) and len(content) == 1 and content[0]["type"] in TEXTS:
        item[key] = content[0]["text"]


def rename_text(item: Message, random: Random) -> None:
    content = item.get(find_content(item))
    for part in content if isinstance(content, list) else ():
        if part["type"] in TEXTS:
            part["type"] = random.choice(TEXTS)
            part.update(random.choice([{"annotations": [], "logprobs": [{"token": "a"}]}, {"annotations": None}, {}]))
        else:
            part["file_id"] = None


def say_nothing_in_another_way(item: Message, random: Random) -> None:
    key = find_content(item)
    if item["type"] != "function_call" and not item.get(key):
        item[key] = random.choice(["", [], [text("")], None])


def change_the_states(item: Message, random: Random) -> None:
    item.update(random.choice([{"id": "msg_1", "status": "completed"}, {"id": None, "status": None}, {"phase": "x"}]))
    if "role" in item and random.random() < 0.5:
        item.pop("type", None)
        item["type"] = random.choice([None, "message"])


def spell_arguments_anew(item: Message, random: Random) -> None:
    if item["type"] == "function_call":
        item["arguments"] = spell_like_javascript(json.loads(item["arguments"]), random)


ECHOES: list[Change] = [
    fold_content,
    rename_text,
    say_nothing_in_another_way,
    change_the_states,
    spell_arguments_anew,
]

words = st.builds(text, texts.filter(bool))
contents = texts | st.lists(words | st.just(IMAGE), min_size=2, max_size=3)
items = st.one_of(
    st.builds(say, st.sampled_from(["user", "assistant", "system"]), contents),
    st.builds(call, ids, names, inputs.map(json.dumps)),
    st.builds(output, ids, contents),
)


@given(items, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_an_item_that_comes_back_changed_is_the_same(item: Message, changes: list[Change], random: Random) -> None:
    echo = read(WIRE, [spell(mutate(item, changes, random), random)])
    assert echo == [read_one(WIRE, item)]


@given(items, items)
def test_items_that_differ_have_different_forms(one: Message, other: Message) -> None:
    said = [
        json.dumps({**item, "arguments": json.loads(item.get("arguments", "0"))}, sort_keys=True)
        for item in (one, other)
    ]
    assert (read_one(WIRE, one).form == read_one(WIRE, other).form) == (said[0] == said[1])


DIFFERENT: list[Any] = [
    say("user", "a"),
    say("user", "a "),
    say("user", None),
    say("assistant", "a"),
    say("system", "a"),
    say("user", [text("a"), text("b")]),
    say("user", [text("b"), text("a")]),
    say("user", [IMAGE]),
    say("user", [{**IMAGE, "detail": "low"}]),
    say("user", [text("a"), IMAGE]),
    say("assistant", [{"type": "refusal", "refusal": "a"}]),
    say("user", "\ud800"),
    say("user", 7),
    call(),
    call("call_2"),
    call(name="g"),
    call(arguments='{"a":2}'),
    call(arguments='{"a":'),
    {"type": "function_call", "name": "f", "arguments": '{"a":1}'},
    output(),
    output("call_2"),
    output(said="ko"),
    output(said=None),
    output(said=[text("ok"), IMAGE]),
    output(said=[IMAGE]),
    output(said=IMAGE),
    output(said="\ud800"),
    {"type": "custom_tool_call", "call_id": "call_1", "name": "f", "input": "x"},
    {"type": "custom_tool_call", "call_id": "call_1", "name": "f", "input": "y"},
    {"type": "custom_tool_call_output", "call_id": "call_1", "output": "x"},
    {"type": "web_search_call", "action": {"type": "search", "query": "a"}},
    {"type": "web_search_call", "action": {"type": "search", "query": "b"}},
    {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
    {"type": "mcp_approval_response", "approval_request_id": "r", "approve": False},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "item_reference", "id": "msg_2"},
    {"type": "item_reference"},
    {"content": "a"},
    {},
    "a",
    7,
    ["a"],
]


def test_whatever_says_something_else_has_another_form() -> None:
    pairwise_different(WIRE, DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (say("developer", "a"), say("system", "a")),
        ({"role": "user", "content": "a"}, say("user", [text("a", "output_text")])),
        (say("assistant", "a") | {"id": "msg_1", "status": "in_progress"}, say("assistant", "a")),
        (call(arguments=""), call(arguments="{}")),
        (output(said=[text("\ud800")]), output(said="\ud800")),
        ({"id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}),
        (
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"b": 1.0, "a": 2}},
            {"action": {"a": 2, "b": 1}, "type": "web_search_call", "results": None},
        ),
        (say("user", [{**IMAGE, "cache_control": {"type": "ephemeral"}, "file_id": None}]), say("user", [IMAGE])),
    ],
)
def test_further_spellings_of_the_same(one: Message, other: Message) -> None:
    assert read_one(WIRE, one).form == read_one(WIRE, other).form


def test_reasoning_has_no_form() -> None:
    thought: Message = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"}
    found = [read_one(WIRE, each) for each in (thought, {**thought, "content": [{"type": "reasoning_text"}]})]
    assert [(item.form, item.weight, item.role) for item in found] == [(b"", 0, "assistant")] * 2


def test_what_lineage_sees_of_items() -> None:
    made, heard = read_one(WIRE, call("c1")), read_one(WIRE, output("c1", [text("abc"), text("de")]))
    assert (made.role, made.calls, made.results, made.weight) == ("assistant", ("c1",), (), 7)
    assert (heard.role, heard.calls, heard.results, heard.weight) == ("tool", (), ("c1",), 5)
    custom = read_one(WIRE, {"type": "custom_tool_call", "call_id": "c2", "name": "f", "input": "x"})
    shell = read_one(WIRE, {"type": "local_shell_call_output", "call_id": "c3", "output": "x"})
    assert (custom.role, custom.calls, custom.results) == ("assistant", ("c2",), ())
    assert (shell.role, shell.calls, shell.results) == ("tool", (), ("c3",))
    assert shell.weight == len('{"call_id":"c3","output":"x","type":"local_shell_call_output"}')
    approval = read_one(WIRE, {"type": "mcp_approval_response", "approve": True})
    assert (approval.role, approval.results) == ("tool", ())
    assert read_one(WIRE, {"type": "item_reference", "id": "msg_1"}).reference == "msg_1"
    assert (read_one(WIRE, call("")).calls, read_one(WIRE, say("developer", "abc")).role) == ((), "system")
    assert read_one(WIRE, say("user", "abc")).weight == 3


@pytest.mark.parametrize("member", ['"say \\u20ac"', '"say €"'])
def test_a_plain_string_is_one_user_message(member: str) -> None:
    split = split_body(b'{"input": %b}' % member.encode(), WIRE.items_key)
    assert split is not None
    assert split.items == ()
    assert WIRE.read_input(split.member("input")) == [read_one(WIRE, {"role": "user", "content": [text("say €")]})]


@pytest.mark.parametrize("member", [b"", b"null", b"7", b"[]", b"{}"])
def test_anything_else_but_an_array_says_nothing(member: bytes) -> None:
    assert WIRE.read_input(member) == []


STREAM = b"""\
data: {"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}

data: {"type":"response.output_item.added","output_index":1,"item":{"id":"m","type":"message","role":"assistant"}}

data: {"type":"response.output_text.delta","item_id":"m","output_index":1,"content_index":0,"delta":"on my "}

data: {"type":"response.output_text.delta","item_id":"m","output_index":1,"content_index":0,"delta":"way"}

data: {"type":"response.output_item.added","output_index":2,"item":{"id":"f","type":"function_call","name":"f"}}

data: {"type":"response.output_item.done","output_index":2,"item":{"id":"f","type":"function_call","call_id":"call_1",\
"name":"f","arguments":"{\\"a\\": 1.0}","status":"completed"}}

data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}

"""


def test_an_answer_is_what_its_echo_will_be() -> None:
    (streamed,) = WIRE.read_reply(WIRE.read_events(read_events(STREAM)).value)
    assert streamed[0].form == b""
    assert list(streamed[1:]) == [read_one(WIRE, {"role": "assistant", "content": "on my way"}), read_one(WIRE, call())]
    assert WIRE.read_reply({"error": {"message": "x"}}) == ()


@given(items, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_any_answer_is_what_its_echo_will_be(item: Message, changes: list[Change], random: Random) -> None:
    ((found,),) = WIRE.read_reply(WIRE.read_answer({"output": [item, 7]}).value)
    assert read(WIRE, [spell(mutate(item, changes, random), random)]) == [found]
