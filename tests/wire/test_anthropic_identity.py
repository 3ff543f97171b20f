"""Anthropic messages: every change that clients make to what they echo keeps the form, and no other change does."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.anthropic_messages import AnthropicMessages
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

WIRE = AnthropicMessages()
MARK = {"type": "ephemeral", "ttl": "1h"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}


def text(said: str) -> Message:
    return {"type": "text", "text": said}


def use(call_id: str = "toolu_1", name: str = "f", value: object = None) -> Message:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1} if value is None else value}


def result(call_id: str = "toolu_1", content: object = "ok", **fields: object) -> Message:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def list_holders(message: Message) -> list[Message]:
    """The message, and its tool results: what has content."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [message, *(block for block in blocks if block["type"] == "tool_result")]


def fold_content(message: Message, random: Random) -> None:
    for holder in list_holders(message):
        content = holder.get("content")
        if isinstance(content, str) and random.random() < 0.5:
            holder["content"] = [text(content)]
        elif isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
            holder["content"] = content[0]["text"]


def say_nothing_in_another_way(message: Message, random: Random) -> None:
    for holder in list_holders(message):
        if not holder.get("content"):
            holder["content"] = random.choice(["", [], [text("")], None])


def add_a_block_that_says_nothing(message: Message, random: Random) -> None:
    if isinstance(message.get("content"), list):
        block = random.choice([text(""), THOUGHT, {"type": "redacted_thinking", "data": "x"}])
        message["content"].insert(random.randint(0, len(message["content"])), dict(block))


def move_the_marker(message: Message, random: Random) -> None:
    for holder in list_holders(message):
        content = holder.get("content")
        for block in content if isinstance(content, list) else ():
            block.pop("cache_control", None)
            if random.random() < 0.5:
                block["cache_control"] = random.choice([MARK, None])


def add_extras(message: Message, random: Random) -> None:
    message.update(random.choice([{"id": "msg_1", "stop_reason": "end_turn"}, {"usage": {"x": 1}}, {}]))
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if block["type"] == "text":
            block["citations"] = random.choice([None, []])
        elif block["type"] == "tool_use":
            block["caller"] = {"type": "direct"}
            block["input"] = json.loads(spell_like_javascript(block["input"], random))
        elif block["type"] == "tool_result":
            block.setdefault("is_error", random.choice([False, None]))


ECHOES: list[Change] = [
    fold_content,
    say_nothing_in_another_way,
    add_a_block_that_says_nothing,
    move_the_marker,
    add_extras,
]

words = st.builds(text, texts.filter(bool))
said = texts | st.lists(words | st.just(IMAGE), min_size=2, max_size=3)
blocks = st.one_of(
    words,
    st.just(IMAGE),
    st.builds(use, ids, names, inputs),
    st.builds(result, ids, said),
    st.builds(result, ids, said, is_error=st.just(True)),
)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "system"]),
    texts | st.lists(blocks, min_size=2, max_size=3),
)


@given(messages, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_a_message_that_comes_back_changed_is_the_same(message: Message, changes: list[Change], random: Random) -> None:
    echo = read(WIRE, [spell(mutate(message, changes, random), random)])
    assert echo == [read_one(WIRE, message)]


@given(messages, messages)
def test_messages_that_differ_have_different_forms(one: Message, other: Message) -> None:
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (read_one(WIRE, one).form == read_one(WIRE, other).form) == is_same


CONTENTS: list[Any] = [
    "a",
    "a ",
    None,
    [text("a"), text("b")],
    [text("b"), text("a")],
    [text("error"), text("a")],
    [{"type": "text", "text": "a", "citations": [{"title": "t"}]}],
    [{"type": "text", "text": "a", "citations": [{"title": "u"}]}],
    [IMAGE],
    [{"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}}],
    [use()],
    [use("toolu_2")],
    [use(name="g")],
    [use(value={"a": 2})],
    [use(value={"a": None})],
    [use(value={"a": 1, "cache_control": MARK})],
    [use(value={})],
    [use(value="cut {")],
    [use(), use("toolu_2")],
    [use("toolu_2"), use()],
    [{"type": "server_tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}],
    [{"type": "server_tool_use", "id": "toolu_1", "name": "f", "input": {"cache_control": 1}}],
    [result()],
    [result("toolu_2")],
    [result(content="ko")],
    [result(content=None)],
    [result(is_error=True)],
    [result(content=[text("error"), text("ok")])],
    [result(content=[text("ok"), IMAGE])],
    [result(content=[IMAGE, text("ok")])],
    [result(content=[IMAGE])],
    [result(content=IMAGE)],
    [result(content=["ok"])],
    [result(content=[[IMAGE]])],
    [result(content=[{"type": ["text"], "text": "ok"}])],
    [result(content=[{"type": "text", "text": 7}])],
    [result(content=[THOUGHT])],
    [result(), text("ok")],
    [text("\ud800")],
    [use(value={"a": "\ud800"})],
    [use(value={"a": "\udfff"})],
    [use(value={"a": float("inf")})],
    [use(value={"a": float("nan")})],
    [use(value={"a": [float("inf"), "\ud800"]})],
    [result(is_error="yes")],
    7,
    [7],
]


def test_whatever_says_something_else_has_another_form() -> None:
    messages: list[object] = [{"role": "user", "content": content} for content in CONTENTS]
    pairwise_different(WIRE, [*messages, {"role": "assistant", "content": "a"}, {"role": "system", "content": "a"}, 7])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([use(value={"a": 1.0})], [use(value={"a": 1})]),
        ([use(value={})], [{**use(), "input": None}]),
        ([{**IMAGE, "cache_control": MARK, "title": None}], [IMAGE]),
        ([result(content=[{**IMAGE, "cache_control": MARK}])], [result(content=[IMAGE])]),
        ([THOUGHT, text("a")], "a"),
        ([{"type": "text", "text": "\ud800", "cache_control": MARK}], "\ud800"),
        ([use(value={"a": 1e400, "b": 1})], [{**use(value={"b": 1.0, "a": 1e400}), "cache_control": MARK}]),
    ],
)
def test_further_spellings_of_the_same(one: object, other: object) -> None:
    found = [read_one(WIRE, {"role": "user", "content": content}).form for content in (one, other)]
    assert found[0] == found[1]


def test_what_lineage_sees_of_messages() -> None:
    made = read_one(WIRE, {"role": "assistant", "content": [THOUGHT, text("abc"), use("t1"), use("t2"), use("")]})
    assert (made.role, made.calls, made.results, made.weight) == ("assistant", ("t1", "t2"), (), 3 + 3 * len('{"a":1}'))
    heard = read_one(WIRE, {"role": "user", "content": [result("t1"), result("", [text("abc")]), text("de")]})
    assert (heard.role, heard.calls, heard.results, heard.weight) == ("tool", (), ("t1",), 2 + 3 + 2)
    whole = read_one(WIRE, {"role": "user", "content": [result("t1", IMAGE)]})
    assert whole.weight == len(json.dumps(IMAGE, separators=(",", ":")))
    assert read_one(WIRE, {"role": "system", "content": "abc"}).role == "system"
    assert read_one(WIRE, {"role": "user", "content": [text("abc")]}).weight == 3


STREAM = b"""\
data: {"type":"message_start","message":{"role":"assistant","id":"msg_1","content":[],"usage":{"input_tokens":1}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"on my "}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"way"}}

data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}

data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\": 1.0}"}}

data: {"type":"message_stop"}

"""


def test_an_answer_is_what_its_echo_will_be() -> None:
    streamed = WIRE.read_reply(WIRE.read_events(read_events(STREAM)).value)
    echo = {"role": "assistant", "content": [text("on my way"), {**use("t1"), "cache_control": MARK}]}
    assert streamed == ((read_one(WIRE, echo),),)
    assert WIRE.read_reply({"content": [text("a")]}) == ((read_one(WIRE, {"role": "assistant", "content": "a"}),),)
    assert WIRE.read_reply({"type": "error", "error": {"message": "x"}}) == ()


@given(messages, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_any_answer_is_what_its_echo_will_be(message: Message, changes: list[Change], random: Random) -> None:
    content = message["content"] if isinstance(message["content"], list) else [text(message["content"])]
    message = {"type": "message", "role": "assistant", "content": content}
    ((item,),) = WIRE.read_reply(WIRE.read_answer(message).value)
    assert read(WIRE, [spell(mutate(message, changes, random), random)]) == [item]


def test_only_arrays_are_conversations() -> None:
    assert WIRE.read_input(b'"text"') == []
