"""Chat messages: every change that clients make to what they echo keeps the form, and no other change does."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.identity import Item
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

WIRE = ChatCompletions()
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
MARK = {"type": "ephemeral"}


def call(call_id: str = "call_1", name: str = "f", arguments: str = '{"a": 1}') -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def say_null_in_another_way(message: Message, random: Random) -> None:
    if not message.get("content"):
        message["content"] = random.choice([None, "", [], [{"type": "text", "text": ""}]])
        if random.random() < 0.3:
            del message["content"]


def put_text_into_a_part(message: Message, random: Random) -> None:
    if isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}]


def take_a_lone_part_out(message: Message, random: Random) -> None:
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
        message["content"] = content[0]["text"]


def add_a_part_that_says_nothing(message: Message, random: Random) -> None:
    if isinstance(message.get("content"), list):
        part = random.choice(
            [{"type": "text", "text": ""}, {"type": "thinking", "thinking": "x"}, {"type": "reasoning", "text": "x"}]
        )
        message["content"].insert(random.randint(0, len(message["content"])), part)


def mark_for_the_cache(message: Message, random: Random) -> None:
    content = message.get("content")
    if isinstance(content, list) and content:
        part = random.choice(content)
        part["cache_control"] = MARK
        if "image_url" in part:
            part["image_url"]["cache_control"] = MARK
    message["cache_control"] = MARK


def add_extras(message: Message, random: Random) -> None:
    extras: Message = {
        **{"name": None, "refusal": None, "annotations": [], "audio": None, "parsed": {"a": 1}, "index": 3},
        **{"function_call": None, "provider_specific_fields": {"x": [1]}, "reasoning_content": "because"},
        **{"reasoning": "why", "reasoning_details": [{"text": "x"}], "thinking": "x", "thinking_blocks": [{}]},
        "odd": {"deep": [[[]]]},
    }
    for key in random.sample(sorted(extras), 4):
        message.setdefault(key, extras[key])
    if not message.get("tool_calls"):
        message["tool_calls"] = random.choice([None, []])


def spell_calls_anew(message: Message, random: Random) -> None:
    for place, each in enumerate(message.get("tool_calls") or ()):
        function = each["function"]
        arguments = json.loads(function["arguments"] or "{}") if isinstance(function["arguments"], str) else {}
        function["arguments"] = spell_like_javascript(arguments, random) if arguments else random.choice(["", "{}"])
        each["extra_content"] = {"signature": "x"}
        if random.random() < 0.5:
            each["index"] = place
            each.pop("type", None)


ECHOES: list[Change] = [
    say_null_in_another_way,
    put_text_into_a_part,
    take_a_lone_part_out,
    add_a_part_that_says_nothing,
    mark_for_the_cache,
    add_extras,
    spell_calls_anew,
]

parts = st.builds(lambda text: {"type": "text", "text": text or "x"}, texts) | st.just(IMAGE)
contents = texts | st.lists(parts, min_size=2, max_size=3)
calls = st.lists(st.builds(call, ids, names, inputs.map(json.dumps)), max_size=2)
messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "system"]), contents),
    st.builds(lambda content, made: {"role": "assistant", "content": content, "tool_calls": made}, contents, calls),
    st.builds(lambda content, id: {"role": "tool", "content": content, "tool_call_id": id}, contents, ids),
)


@given(messages, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_a_message_that_comes_back_changed_is_the_same(message: Message, changes: list[Change], random: Random) -> None:
    echo = read(WIRE, [spell(mutate(message, changes, random), random)])
    assert echo == [read_one(WIRE, message)]


def settle(message: Message) -> object:
    """What the message says, the slow way."""
    content = message["content"]
    if message["role"] == "assistant" and isinstance(content, str):
        content = content.rstrip()
    made = [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]
    return json.dumps([message["role"], content or None, message.get("tool_call_id"), made], sort_keys=True)


@given(messages, messages)
def test_messages_that_differ_have_different_forms(one: Message, other: Message) -> None:
    assert (read_one(WIRE, one).form == read_one(WIRE, other).form) == (settle(one) == settle(other))


USER: Message = {"role": "user", "content": "a"}
DIFFERENT: list[Any] = [
    USER,
    {"role": "system", "content": "a"},
    {"role": "assistant", "content": "a"},
    {"role": "assistant", "content": " a"},
    {"role": "tool", "content": "a"},
    {"role": "tool", "content": "a\n"},
    {"role": "function", "content": "a", "name": "f"},
    {"role": "function", "content": "a", "name": "g"},
    {"role": "latest_reminder", "content": "a"},
    {"content": "a"},
    {"role": "user", "content": "a "},
    {"role": "user", "content": "A"},
    {"role": "user", "content": None},
    {"role": "user", "content": "a", "name": "n"},
    {"role": "user", "content": "a", "name": ""},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "a"}]},
    {"role": "user", "content": "ab"},
    {"role": "user", "content": [IMAGE]},
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
    {"role": "user", "content": [{"type": "refusal", "refusal": "a"}]},
    {"role": "user", "content": [{"text": "a"}]},
    {"role": "user", "content": json.dumps(IMAGE)},
    {"role": "tool", "content": "a", "tool_call_id": "call_1"},
    {"role": "tool", "content": "a", "tool_call_id": "call_2"},
    {"role": "assistant", "tool_calls": [call()]},
    {"role": "assistant", "content": "a", "tool_calls": [call()]},
    {"role": "assistant", "tool_calls": [call(), call("call_2")]},
    {"role": "assistant", "tool_calls": [call("call_2"), call()]},
    {"role": "assistant", "tool_calls": [call("call_2")]},
    {"role": "assistant", "tool_calls": [call("")]},
    {"role": "assistant", "tool_calls": [call(name="g")]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 2}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": "1"}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 1, "b": null}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 1')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 1 ')]},
    {"role": "assistant", "tool_calls": [call(arguments='"{\\"a\\": 1}"')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 9007199254740993}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": 9007199254740992}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": "\\ud800"}')]},
    {"role": "assistant", "tool_calls": [call(arguments='{"a": "\\udfff"}')]},
    {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
    {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "custom", "custom": {"name": "f", "input": "y"}}]},
    {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "custom", "function": {"name": "f"}}]},
    {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]},
    {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
    {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a": 2}'}},
    {"role": "assistant", "tool_calls": [call()], "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "assistant", "tool_calls": [call()], "tool_call_id": "call_1"},
    {"role": "assistant", "tool_calls": [call()], "name": "n"},
    {"role": "user", "content": "\ud800"},
    {"role": "user", "content": "\udfff"},
    {"role": "user", "content": "\\ud800"},
    {"role": "user", "content": 7},
    {"role": "user", "content": {"a": 1}},
    {"role": 7, "content": "a"},
    ["a"],
    "a",
    7,
    None,
]


def test_whatever_says_something_else_has_another_form() -> None:
    pairwise_different(WIRE, DIFFERENT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "assistant", "content": "a\n \n"}, {"role": "assistant", "content": "a"}),
        ({"role": "assistant", "content": "\n"}, {"role": "assistant", "content": None}),
        ({"role": "assistant", "content": [{"type": "text", "text": "a "}]}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "\ud800"}, {"role": "user", "content": [{"type": "text", "text": "\ud800"}]}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "odd": "\ud800"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": None}]}, USER),
        ({"role": "tool", "content": "a", "tool_call_id": ""}, {"role": "tool", "content": "a"}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.0}}}]}, {"tool_calls": [call("")]}),
        (
            {"function_call": {"name": "f", "arguments": '{"b":1,"a":2}'}},
            {"function_call": {"name": "f", "arguments": '{"a": 2, "b": 1.0}'}, "content": ""},
        ),
        (
            {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}, "index": 0}]},
            {
                "tool_calls": [
                    {"type": "custom", "id": "c", "custom": {"input": "x", "name": "f"}, "cache_control": MARK}
                ]
            },
        ),
        ({"role": 7, "b": 1, "a": 2.0}, {"a": 2, "role": 7.0, "b": 1}),
    ],
)
def test_further_spellings_of_the_same(one: Message, other: Message) -> None:
    assert read_one(WIRE, one).form == read_one(WIRE, other).form


def test_what_lineage_sees_of_messages() -> None:
    made = {"role": "assistant", "content": "ab", "tool_calls": [call("c1"), call("c2", arguments="x"), call("")]}
    custom = {"id": "c3", "type": "custom", "custom": {"name": "f", "input": "x"}}
    found = [read_one(WIRE, each) for each in (made, {"role": "assistant", "tool_calls": [custom]})]
    assert (found[0].calls, found[0].weight) == (("c1", "c2"), 2 + len('{"a":1}') * 2 + 1)
    assert found[1].calls == ("c3",)
    assert found[1].weight == len(json.dumps(custom, separators=(",", ":")))
    older = read_one(WIRE, {"role": "assistant", "function_call": {"name": "f", "arguments": ""}})
    assert (older.role, older.calls, older.weight) == ("assistant", (), 2)
    answered = read_one(
        WIRE, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "abc"}, IMAGE]}
    )
    assert (answered.role, answered.results) == ("tool", ("c1",))
    assert answered.weight == 3 + len(json.dumps(IMAGE, separators=(",", ":")))
    roles = ["system", "developer", "user", "assistant", "tool", "function", "other"]
    assert [read_one(WIRE, {"role": role, "content": "a"}).role for role in roles] == [
        *("system", "system", "user", "assistant", "tool", "tool", "other")
    ]


STREAM = b"""\
data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":"hm"}}]}

data: {"choices":[{"index":0,"delta":{"content":"on my \\u20ac"}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\"a\\": 1.0}"}}]}}]}

data: {"choices":[{"index":1,"delta":{"content":"another"},"finish_reason":"stop"}]}

data: [DONE]

"""


def test_an_answer_is_what_its_echo_will_be() -> None:
    streamed = WIRE.read_reply(WIRE.read_events(read_events(STREAM)).value)
    echo = {"role": "assistant", "content": [{"type": "text", "text": "on my €"}], "tool_calls": [call("c1")]}
    assert streamed == ((read_one(WIRE, echo),), (read_one(WIRE, {"role": "assistant", "content": "another"}),))


def test_an_answers_alternatives_keep_their_places() -> None:
    choices: list[object] = [{"message": {"content": "a", "refusal": None}}, {}, 7, {"message": {"content": "b"}}]
    found = WIRE.read_reply({"choices": choices})
    said = [read_one(WIRE, {"role": "assistant", "content": text}) for text in "ab"]
    assert found == ((said[0],), (), (said[1],))
    assert WIRE.read_reply({"error": {"message": "x"}}) == ()


@given(messages, st.lists(st.sampled_from(ECHOES), max_size=6), st.randoms(use_true_random=False))
def test_any_answer_is_what_its_echo_will_be(message: Message, changes: list[Change], random: Random) -> None:
    message = {**message, "role": "assistant"}
    ((item,),) = WIRE.read_reply(WIRE.read_answer({"choices": [{"message": message}]}).value)
    assert read(WIRE, [spell(mutate(message, changes, random), random)]) == [item]


def test_only_arrays_are_conversations() -> None:
    assert WIRE.read_input(b'"text"') == []
    assert WIRE.read_items(b"", ()) == list[Item]()
