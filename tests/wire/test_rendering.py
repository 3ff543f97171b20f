"""A plan's edits as messages of each wire, and the body that has them."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.card import CacheTerms
from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.model.messages import BESIDE
from proxy.wire import FORMATS
from proxy.wire.body import ByteRange, SplitBody, split_body
from proxy.wire.rendering import (
    RenderedRequest,
    add_markers,
    apply,
    change_items,
    lower_output,
    place_marker,
    reach_user,
    render,
)
from proxy.wire.validity import Rules, Splice, find_faults, judge_history
from tests.support.echoes import spell, values
from tests.support.valid_histories import WIRES, steps, write

CHAT, ANTHROPIC, RESPONSES = WIRES
MARK = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": MARK}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
GONE = "[The reasoning of this message was removed.]"
USER = b'{"role":"user","content":"%b"}'


def text(said: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": said}


def result(content: Any, call: str = "t1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def replace(wire: str, message: Any) -> Any:
    """The message with `new` in place of its words."""
    (rendered,) = render(FORMATS[wire], [Replaced(0, "new", "shortened")], [json.dumps(message).encode()])
    return json.loads(rendered)


@pytest.mark.parametrize(
    ("wire", "message", "replaced"),
    [
        (CHAT, {"role": "tool", "content": "old", "x": 1}, {"role": "tool", "content": "new", "x": 1}),
        (CHAT, {"role": "tool", "content": [text("a"), IMAGE]}, {"role": "tool", "content": [text("new")]}),
        (CHAT, {"role": "assistant", "tool_calls": []}, {"role": "assistant", "tool_calls": [], "content": "new"}),
        (
            CHAT,
            {"role": "user", "content": [IMAGE, text("a"), IMAGE, text("b")]},
            {"role": "user", "content": [IMAGE, text("new"), IMAGE]},
        ),
        (CHAT, {"role": "user", "content": [IMAGE, 7]}, {"role": "user", "content": [IMAGE, 7, text("new")]}),
        (
            ANTHROPIC,
            {"role": "user", "content": [result("old") | {"is_error": True}, result([IMAGE], "t2"), text("go"), IMAGE]},
            {
                "role": "user",
                "content": [
                    result("new") | {"is_error": True},
                    result([text("[output pruned: see the first result of this message]")], "t2"),
                    text("go"),
                ],
            },
        ),
        (
            ANTHROPIC,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}, text("go" * 4001)]},
            {"role": "user", "content": [result("new")]},
        ),
        (
            ANTHROPIC,
            {"role": "assistant", "content": [THOUGHT, USE, text("behind")]},
            {"role": "assistant", "content": [THOUGHT, text("new"), USE]},
        ),
        (
            RESPONSES,
            {"role": "user", "content": [text("a", "input_text")]},
            {"role": "user", "content": [text("new", "input_text")]},
        ),
        (
            RESPONSES,
            {"type": "message", "role": "assistant", "content": [text("a", "output_text")]},
            {"type": "message", "role": "assistant", "content": [text("new", "output_text")]},
        ),
        (
            RESPONSES,
            {"type": "function_call_output", "call_id": "a", "output": [text("a", "input_text"), IMAGE]},
            {"type": "function_call_output", "call_id": "a", "output": [text("new", "input_text")]},
        ),
        (
            RESPONSES,
            {"type": "local_shell_call_output", "output": "old"},
            {"type": "local_shell_call_output", "output": "new"},
        ),
        (
            RESPONSES,
            {"type": "shell_call_output", "output": [{"stdout": "a"}, {"stdout": "b", "stderr": "c", "outcome": {}}]},
            {"type": "shell_call_output", "output": [{"stdout": "new", "stderr": "", "outcome": {}}]},
        ),
        (RESPONSES, {"type": "mcp_call", "id": "m", "output": "a"}, {"type": "mcp_call", "id": "m", "output": "new"}),
    ],
)
def test_only_the_words_are_replaced(wire: str, message: Any, replaced: Any) -> None:
    assert replace(wire, message) == replaced


@pytest.mark.parametrize(("said", "kept"), [("Use tabs.", [text("Use tabs.")]), ("", [])])
def test_one_text_stands_for_those_beside_results(said: str, kept: list[Any]) -> None:
    parts = [result("old"), result("other", "t2"), text("a"), IMAGE, text("b")]
    edit = Replaced(0, "new\nother", "tombstone", (("t1", "new"), (BESIDE, said)))
    (raw,) = render(FORMATS[ANTHROPIC], [edit], [json.dumps({"role": "user", "content": parts}).encode()])
    assert json.loads(raw) == {"role": "user", "content": [result("new"), result("other", "t2"), *kept]}


def test_a_tombstone_stands_for_the_images_of_a_turn_too() -> None:
    message = {"role": "user", "content": [IMAGE, text("a"), IMAGE], "name": "x"}
    edits = [Replaced(0, "new", "tombstone")]
    (rendered,) = render(FORMATS[CHAT], edits, [json.dumps(message).encode()])
    assert json.loads(rendered) == {"role": "user", "content": [text("new")], "name": "x"}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:"}},
        {"type": "shell_call_output", "output": []},
        {"type": "unheard_of_output", "output": [{"stdout": "x"}]},
        {"type": "unheard_of_call", "output": "x"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "summary": []},
        ["no object"],
    ],
)
def test_what_has_no_text_to_replace_stays(message: Any) -> None:
    assert replace(RESPONSES, message) == message


NEW = '{"content":"a … \\"b\\""}'


def change(wire: str, message: Any, text: str = "") -> Any:
    edit = Replaced(0, text, "shortened", (("a", NEW),))
    return json.loads(render(FORMATS[wire], [edit], [json.dumps(message).encode()])[0])


@pytest.mark.parametrize(("name", "member"), [("function", "arguments"), ("custom", "input"), ("custom", "other")])
def test_arguments_of_a_call_are_replaced_beside_others(name: str, member: str) -> None:
    call, other = ({"id": id, "type": name, name: {"name": "write", member: "{}"}} for id in "ab")
    said = {"role": "assistant", "content": "I write.", "tool_calls": [call, other], "x": 1}
    changed = {**call, name: {"name": "write", member: NEW if member != "other" else "{}"}}
    assert change(CHAT, said) == said | {"tool_calls": [changed, other]}
    assert change(CHAT, said, "I w…") == said | {"tool_calls": [changed, other], "content": "I w…"}
    silent = said | {"content": None, "tool_calls": None}
    assert change(CHAT, silent) == silent


def test_the_input_of_a_tool_stays_an_object() -> None:
    use, other = ({"type": "tool_use", "id": id, "name": "write", "input": {"content": "old"}} for id in "ab")
    said = {"role": "assistant", "content": [text("I write."), use, other]}
    assert change(ANTHROPIC, said) == said | {"content": [text("I write."), {**use, "input": json.loads(NEW)}, other]}
    shown = change(ANTHROPIC, said, "I w…")["content"]
    assert shown == [text("I w…"), {**use, "input": json.loads(NEW)}, other]


@pytest.mark.parametrize(
    ("item", "member"),
    [
        ({"type": "function_call", "id": "fc", "call_id": "a", "name": "write", "arguments": "{}"}, "arguments"),
        ({"type": "custom_tool_call", "id": "ct", "call_id": "a", "name": "patch", "input": "*** Begin"}, "input"),
        ({"type": "function_call", "call_id": "b", "name": "write", "arguments": "{}"}, ""),
        ({"type": "local_shell_call", "call_id": "a", "action": {"command": ["ls"]}}, ""),
    ],
)
def test_arguments_of_an_item(item: Any, member: str) -> None:
    assert change(RESPONSES, item) == item | ({member: NEW} if member else {})
    assert change(RESPONSES, item, "words") == change(RESPONSES, item)


def test_each_of_several_results_is_replaced_by_itself() -> None:
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "a", "content": "old", "is_error": True},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("old"), IMAGE]},
        {"type": "tool_result", "tool_use_id": "c", "content": [text("kept"), IMAGE]},
    ]
    edit = Replaced(0, "new a\nnew b\nkept", "tombstone", (("a", "new a"), ("b", "new b")))
    raw = json.dumps({"role": "user", "content": [*results, text("and go on"), text("long " * 4000)]}).encode()
    changed = [{**results[0], "content": "new a"}, {**results[1], "content": [text("new b")]}, results[2]]
    shown = json.loads(render(FORMATS[ANTHROPIC], [edit], [raw])[0])
    assert shown == {"role": "user", "content": [*changed, text("and go on")]}


def test_everything_else_of_a_replaced_message_keeps_its_bytes() -> None:
    raw = b'{ "x":1e2 , "content" : "o\\u006cd", "y":"\\u0065" }'
    assert render(FORMATS[CHAT], [Replaced(0, "né", "file")], [raw]) == (raw.replace(b'"o\\u006cd"', '"né"'.encode()),)


@pytest.mark.parametrize(
    ("wire", "role", "message"),
    [
        (CHAT, "user", {"role": "user", "content": 'a "b"'}),
        (ANTHROPIC, "assistant", {"role": "assistant", "content": 'a "b"'}),
        (RESPONSES, "user", {"type": "message", "role": "user", "content": [text('a "b"', "input_text")]}),
        (RESPONSES, "assistant", {"type": "message", "role": "assistant", "content": [text('a "b"', "output_text")]}),
    ],
)
def test_a_message_of_ours(wire: str, role: Any, message: Any) -> None:
    (rendered,) = render(FORMATS[wire], [Written('a "b"', 0, 3)], [], role=role)
    assert json.loads(rendered) == message


def test_edits_come_in_their_order_and_what_is_kept_has_its_bytes() -> None:
    messages = [b'{ "role":"user", "content":"%d" }' % i for i in range(4)]
    rendered = render(FORMATS[CHAT], [Kept(0), Written("w", 1, 3), Kept(2)], messages)
    assert rendered == (messages[0], b'{"role":"user","content":"w"}', messages[2])


def test_neighbours_of_a_strict_template_are_joined() -> None:
    kept = b'{"role":"user","content":[{"type":"text","text":"k"}]}'
    messages = [USER % b"a", b'{"role":"assistant","content":"b"}', kept, b'{"role":"user","name":"n","content":"d"}']
    edits: list[Edit] = [Written("1", 0, 0), Kept(0), Kept(1), Written("2", 2, 2), Kept(2), Kept(3)]
    rendered = [json.loads(raw) for raw in render(FORMATS[CHAT], edits, messages, is_alternating=True)]
    assert rendered == [
        {"role": "user", "content": [text("1"), text("a")]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "name": "n", "content": [text("2"), text("k"), text("d")]},
    ]


def test_a_message_of_ours_behind_one_of_the_users_is_joined_to_it() -> None:
    kept = b'{"role":"user","name":"n","content":"k"}'
    (rendered,) = render(FORMATS[CHAT], [Kept(0), Written("w", 1, 2)], [kept], is_alternating=True)
    assert json.loads(rendered) == {"role": "user", "name": "n", "content": [text("k"), text("w")]}


def test_the_users_own_neighbours_are_not_joined() -> None:
    messages = [USER % b"a", USER % b"b", b'{"role":"user"}']
    assert render(FORMATS[CHAT], [Kept(0), Kept(1)], messages, is_alternating=True) == tuple(messages[:2])
    (rendered,) = render(FORMATS[CHAT], [Written("w", 0, 0), Kept(2)], messages, is_alternating=True)
    assert json.loads(rendered) == {"role": "user", "content": [text("w")]}


def test_a_message_of_ours_at_the_end_reaches_for_the_users_next() -> None:
    messages = [USER % b"a", USER % b"b", b'{"role":"assistant","content":"c"}']
    ours = (Kept(0), Written("w", 0, 1))
    assert reach_user(FORMATS[CHAT], ours, 1, messages) == ((*ours, Kept(1)), 2)
    assert reach_user(FORMATS[CHAT], ours, 2, messages) == (ours, 2)
    assert reach_user(FORMATS[CHAT], ours, 3, messages) == (ours, 3)
    assert reach_user(FORMATS[CHAT], ours[:1], 1, messages) == (ours[:1], 1)
    assert reach_user(FORMATS[CHAT], (), 0, messages) == ((), 0)


def test_a_user_message_that_becomes_one_with_ours_reaches_the_next_too() -> None:
    said = b'{"role":"assistant","content":"yes"}'
    messages = [USER % b"a", USER % b"b", said, USER % b"c"]
    ours = (Written("ours", 0, 1), Kept(0))
    assert reach_user(FORMATS[CHAT], ours, 1, messages) == ((*ours, Kept(1)), 2)
    assert reach_user(FORMATS[CHAT], (*ours, Kept(2)), 3, messages) == ((*ours, Kept(2)), 3)
    assert reach_user(FORMATS[CHAT], (Kept(0),), 1, messages) == ((Kept(0),), 1)


def test_rendered_messages_have_no_cache_markers() -> None:
    message = {"role": "user", "content": [result([text("x") | MARK]) | MARK, USE | MARK], "x": [MARK]} | MARK
    (rendered,) = render(FORMATS[ANTHROPIC], [Kept(0)], [json.dumps(message).encode()])
    assert json.loads(rendered) == {"role": "user", "content": [result([text("x")]), USE], "x": [MARK]}
    deep = {"role": "user", "content": [result([text("x") | {"content": [MARK]}])]}
    (rendered,) = render(FORMATS[ANTHROPIC], [Kept(0)], [json.dumps(deep).encode()])
    assert json.loads(rendered) == deep
    call = {"id": "a", "function": {"name": "f", "arguments": '{"cache_control":1}'}}
    said = {"role": "assistant", "content": '"cache_control"', "tool_calls": [call | MARK]}
    (rendered,) = render(FORMATS[CHAT], [Kept(0)], [json.dumps(said).encode()])
    assert json.loads(rendered) == said | {"tool_calls": [call]}


@pytest.mark.parametrize(
    ("last", "marked"),
    [
        ({"role": "user", "content": "x"}, {"role": "user", "content": [text("x") | MARK]}),
        ({"role": "user", "content": [IMAGE, text("x")]}, {"role": "user", "content": [IMAGE, text("x") | MARK]}),
        ({"role": "assistant", "content": [THOUGHT, USE]}, {"role": "assistant", "content": [THOUGHT, USE | MARK]}),
    ],
)
def test_lost_markers_move_to_the_end(last: Any, marked: Any) -> None:
    rendered = (USER % b"a", json.dumps(last).encode())
    first, second = place_marker(FORMATS[ANTHROPIC], rendered, ["5m", "5m"])
    assert (first, json.loads(second)) == (rendered[0], marked)


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": [THOUGHT]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "user", "content": [text("")]},
        {"role": "user", "content": [7]},
    ],
)
def test_a_marker_goes_where_one_is_taken(last: Any) -> None:
    rendered = (USER % b"a", json.dumps(last).encode())
    first, second = place_marker(FORMATS[ANTHROPIC], rendered, ["1h"])
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert (json.loads(first), second) == ({"role": "user", "content": [text("a") | hour]}, rendered[1])
    assert place_marker(FORMATS[ANTHROPIC], rendered[1:], ["1h"]) == rendered[1:]


def test_nothing_is_marked_where_nothing_was_lost_or_no_marker_is_known() -> None:
    rendered = (USER % b"a",)
    assert place_marker(FORMATS[ANTHROPIC], rendered, []) is rendered
    assert place_marker(FORMATS[RESPONSES], rendered, ["5m"]) is rendered


def split(content: bytes, key: str = "messages") -> SplitBody:
    body = split_body(content, key)
    assert body is not None
    return body


HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
_LIFETIMES = {"5m": MARK, "1h": HOUR}


def mark(message: dict[str, Any], lifetime: str) -> dict[str, Any]:
    """The message as a client marks it."""
    return message | {"content": [text(str(message["content"])) | _LIFETIMES[lifetime]]}


def send_marked(
    *, leading: str = "s", taken: str = "ua", tail: str = "ta", marks: dict[int, str] | None = None, **members: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """What is sent in place of a request with these roles and markers, and the markers in it in order.

    The `taken` messages were replaced by two.
    """
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    plain = [{"role": roles[sign], "content": f"{at}"} for at, sign in enumerate(leading + taken + tail)]
    messages = [mark(each, (marks or {}).get(at, "")) if at in (marks or {}) else each for at, each in enumerate(plain)]
    body = split(json.dumps({**members, "messages": messages}).encode())
    form, found = FORMATS[CHAT], [form_markers(json.dumps(each)) for each in messages]
    first, stop = len(leading), len(leading + taken)
    lost = [each for marked in found[first:stop] for each in marked]
    kept = form.read_cache_terms(body, first, [each for marked in found[stop:] for each in marked])
    rendered = place_marker(form, (USER % b"ledger", USER % b"end"), lost)
    sent = add_markers(
        form, body, RenderedRequest(rendered, {}), preamble=first, through=len(taken), kept=kept, lost=lost
    )
    value = json.loads(apply(body, first, len(taken), sent.rendered, sent.changed))
    every = json.dumps([value.get("tools"), value["messages"]])
    return value["messages"], form_markers(every)


def form_markers(raw: str) -> list[str]:
    """The lifetimes of the markers in a text, in order."""
    return [
        each or "5m" for each in re.findall(r'"cache_control": ?\{"type": ?"ephemeral"(?:, ?"ttl": ?"(\w+)")?\}', raw)
    ]


def list_marked(messages: list[dict[str, Any]]) -> list[int]:
    return [at for at, each in enumerate(messages) if "cache_control" in json.dumps(each)]


@pytest.mark.parametrize(
    ("request_", "places", "lifetimes"),
    [
        # behind the preamble, behind the frozen prefix, and at the end
        ({}, [0, 2, 4], ["5m", "5m", "5m"]),
        ({"leading": "ss"}, [1, 3, 5], ["5m", "5m", "5m"]),
        ({"leading": ""}, [1, 3], ["5m", "5m"]),
        ({"tail": ""}, [0, 2], ["5m", "5m"]),
        # the client's own stay, and ours are no shorter than what is behind them
        ({"marks": {0: "1h"}}, [0, 2, 4], ["1h", "5m", "5m"]),
        ({"marks": {4: "1h"}}, [0, 2, 4], ["1h", "1h", "1h"]),
        ({"marks": {1: "1h", 4: "5m"}}, [0, 2, 4], ["1h", "1h", "5m"]),
        ({"marks": {3: "5m"}}, [0, 2, 3], ["5m", "5m", "5m"]),
        ({"marks": {4: "5m"}}, [0, 2, 4], ["5m", "5m", "5m"]),
        # never more than four, those of tools and of the request counted
        ({"tools": [MARK, MARK, MARK]}, [4], ["5m"] * 4),
        ({"tools": [MARK, MARK]}, [2, 4], ["5m"] * 4),
        ({"tools": [MARK] * 4}, [], ["5m"] * 4),
        ({"marks": {0: "5m", 3: "5m", 4: "5m"}, "tools": [MARK]}, [0, 3, 4], ["5m"] * 4),
        ({"marks": {1: "5m", 3: "5m", 4: "5m"}, "tools": [MARK]}, [2, 3, 4], ["5m"] * 4),
        ({**MARK}, [0, 2], ["5m", "5m"]),
        ({"tools": [MARK, MARK], **MARK}, [2], ["5m"] * 3),
    ],
)
def test_ours_come_beside_those_of_the_client(
    request_: dict[str, Any], places: list[int], lifetimes: list[str]
) -> None:
    messages, found = send_marked(**request_)
    assert (list_marked(messages), found) == (places, lifetimes)


@pytest.mark.parametrize("content", [None, "", [text("a") | THOUGHT]])
def test_a_message_that_takes_no_marker_is_left_as_it_is(content: Any) -> None:
    items = [{"role": "system", "content": content}, {"role": "user", "content": "a"}, {"role": "user", "content": ""}]
    body, form = split(json.dumps({"messages": items}).encode()), FORMATS[CHAT]
    before = RenderedRequest((USER % b"",), {})
    assert add_markers(form, body, before, preamble=1, through=1, kept=CacheTerms(), lost=[]) == before


def test_a_message_that_is_sent_in_other_bytes_keeps_them_under_a_marker() -> None:
    items = [{"role": role, "content": "a"} for role in ("system", "user", "assistant")]
    body, form = split(json.dumps({"messages": items}).encode()), FORMATS[CHAT]
    before = RenderedRequest((USER % b"ledger",), {1: b'{"role":"assistant","content":"changed"}'})
    sent = add_markers(form, body, before, preamble=1, through=1, kept=CacheTerms(), lost=[])
    messages = json.loads(apply(body, 1, 1, sent.rendered, sent.changed))["messages"]
    assert messages == [
        mark(items[0], "5m"),
        mark(json.loads(USER % b"ledger"), "5m"),
        mark(items[2] | {"content": "changed"}, "5m"),
    ]


@given(
    st.lists(st.sampled_from(["5m", "1h"]), max_size=4),
    st.lists(st.integers(0, 7), min_size=4, max_size=4, unique=True),
    st.integers(0, 2),
)
def test_the_limit_and_the_order_hold_and_nothing_but_markers_changes(
    given_: list[str], places: list[int], in_tools: int
) -> None:
    lifetimes = sorted(given_)  # "1h" comes first, as providers demand
    tools = [_LIFETIMES[each] for each in lifetimes[:in_tools]]
    marks = dict(zip(sorted(places[: len(lifetimes[in_tools:])]), lifetimes[in_tools:], strict=True))
    messages, found = send_marked(leading="s", taken="uau", tail="tuat", marks=marks, tools=tools)
    assert len(found) <= 4
    assert found == sorted(found)
    plain, _ = send_marked(leading="s", taken="uau", tail="tuat", tools=[MARK] * 4)
    for sent, own in zip(messages, plain, strict=True):
        raw, raw_own = json.dumps(sent).encode(), json.dumps(own).encode()
        span = [ByteRange(0, len(raw))], [ByteRange(0, len(raw_own))]
        assert FORMATS[CHAT].read_items(raw, span[0]) == FORMATS[CHAT].read_items(raw_own, span[1])
    behind = {place for place in marks if place >= 4}
    assert {place - 1 for place in behind} <= set(list_marked(messages))


def test_the_rest_of_the_body_keeps_its_bytes() -> None:
    body = split(b'{ "a":1 , "messages" : [ {"s":1} , {"u":2},{"v":3}\n, {"w":4} ] , "z":[1] }')
    assert apply(body, 1, 2, [b"{}", b"[]"]) == (b'{ "a":1 , "messages" : [ {"s":1} , {},[]\n, {"w":4} ] , "z":[1] }')
    changed = {2: b"9", -1: b'{"s":9}'}
    assert apply(body, 1, 2, [b"{}"], changed) == b'{ "a":1 , "messages" : [ {"s":9} , {}\n, 9 ] , "z":[1] }'
    assert apply(body, 0, 4, [b"{}"]) == b'{ "a":1 , "messages" : [ {} ] , "z":[1] }'


@given(
    st.lists(values, min_size=1, max_size=6),
    st.lists(values, min_size=1, max_size=3),
    st.randoms(),
    st.data(),
)
def test_the_messages_stand_where_the_clients_stood(items: list[Any], new: list[Any], random: Any, data: Any) -> None:
    start = data.draw(st.integers(0, len(items) - 1))
    stop = data.draw(st.integers(start + 1, len(items)))
    body = split(spell({"model": "m", "messages": items, "n": 1}, random).encode("utf-8", "surrogatepass"))
    rendered = [json.dumps(value).encode() for value in new]
    sent = json.loads(apply(body, start, stop - start, rendered))
    assert sent == {"model": "m", "messages": [*items[:start], *new, *items[stop:]], "n": 1}


@pytest.mark.parametrize(
    ("preamble", "through", "rendered"), [(0, 1, []), (0, 0, [b"{}"]), (-1, 1, [b"{}"]), (1, 2, [b"{}"])]
)
def test_what_cannot_be_put_in_place_is_refused(preamble: int, through: int, rendered: list[bytes]) -> None:
    with pytest.raises(ValueError, match="items behind"):
        apply(split(b'{"messages":[{},{}]}'), preamble, through, rendered)


@pytest.mark.parametrize("content", [b'{"messages":[{}x{}]}', b'{"messages":[{},{}x}'])
def test_items_that_are_not_between_separators_are_refused(content: bytes) -> None:
    body = SplitBody(content, {}, (ByteRange(13, 15), ByteRange(16, 18)))
    with pytest.raises(ValueError, match="separators"):
        apply(body, 1, 1, [b"{}"])


def test_a_lower_output_is_asked_for_in_place() -> None:
    raw = b'{"max_completion_tokens": 900, "messages":[], "max_tokens" :9000,"max_output_tokens":null}'
    lowered = raw.replace(b"9000", b"5000")
    assert lower_output(split(raw), 5000) == lowered
    assert lower_output(split(raw), 50) == raw.replace(b"9000", b"50").replace(b"900,", b"50,")
    assert lower_output(split(raw), 100) == raw.replace(b"9000", b"100").replace(b"900,", b"100,")
    assert lower_output(split(b'{"messages":[]}'), 1) == b'{"messages":[]}'


@pytest.mark.parametrize(("budget", "asked"), [("4999", b"5000"), ("5000", b"9000"), ('"x"', b"5000")])
def test_output_is_not_lowered_below_what_thinking_may_take(budget: str, asked: bytes) -> None:
    raw = b'{"max_tokens":%b,"thinking":{"type":"enabled","budget_tokens":%b}}'
    body = raw % (b"9000", budget.encode())
    assert lower_output(split(body), 5000) == raw % (asked, budget.encode())


@given(st.sampled_from(WIRES), steps, st.data())
def test_a_replaced_message_has_the_shape_of_the_clients(wire: str, plan: list[str | int], data: Any) -> None:
    messages = [json.dumps(message).encode() for message in write(wire, plan)]
    structures = [FORMATS[wire].parse_structure(raw) for raw in messages]
    places = [i for i, structure in enumerate(structures) if structure.role in ("tool", "user")][:-3]
    chosen = data.draw(st.sets(st.sampled_from(places))) if places else set()
    edits = [Replaced(i, "new", "tombstone") if i in chosen else Kept(i) for i in range(len(messages))]
    rendered = render(FORMATS[wire], edits, messages)
    assert all(rendered[i] == messages[i] for i in range(len(messages)) if i not in chosen)
    assert all(FORMATS[wire].parse_message(rendered[i]).text.startswith("new") for i in chosen)
    assert [without_words(FORMATS[wire].parse_structure(raw)) for raw in rendered] == list(
        map(without_words, structures)
    )
    history = judge_history(structures, is_itemised=wire == RESPONSES)
    splices = [Splice(i, i + 1, (FORMATS[wire].parse_structure(rendered[i]),)) for i in sorted(chosen)]
    assert find_faults(history, splices, Rules(is_itemised=wire == RESPONSES)) == ()


_kinds = st.sampled_from(["message", "function_call_output", "tool_result", "tool_use", "text", "thinking"])
_parts = st.lists(st.dictionaries(st.sampled_from(["type", "text", "content", "cache_control"]), values | _kinds))
_messages = st.dictionaries(
    st.sampled_from(["role", "type", "content", "output", "cache_control"]), values | _kinds | _parts
)


@given(st.sampled_from(WIRES), _messages | values, st.booleans(), st.randoms())
def test_whatever_a_client_sent_is_rendered_as_json(wire: str, message: Any, is_alternating: bool, random: Any) -> None:
    raw = spell(message, random).encode("utf-8", "surrogatepass")
    edits: list[Edit] = [Written("w", 0, 1), Replaced(0, "new\ud800", "shortened"), Kept(0)]
    rendered = render(FORMATS[wire], edits, [raw], is_alternating=is_alternating)
    for each in (*rendered, *place_marker(FORMATS[wire], rendered, ["5m"])):
        assert isinstance(json.loads(each), dict) or each == raw


@pytest.mark.parametrize("raw", [b"", b"\xff", b'{"content":"a","content":"b"}', b'{"role":"user","content":[{}'])
@pytest.mark.parametrize("wire", WIRES)
def test_what_cannot_be_taken_apart_is_sent_as_it_is(wire: str, raw: bytes) -> None:
    assert render(FORMATS[wire], [Replaced(0, "new", "file"), Kept(0)], [raw]) == (raw, raw)


def without_words(structure: Any) -> Sequence[Any]:
    return (structure.role, structure.calls, structure.results, structure.reasoning, structure.markers, structure.flaws)


# --- reasoning that is signed ----------------------------------------------------------------------------------------

CALLING = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
DETAILS = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ({"content": "x", "reasoning_details": DETAILS, **CALLING}, {"content": "x", **CALLING}),
        ({"content": None, "thinking_blocks": [THOUGHT], **CALLING}, {"content": None, **CALLING}),
        ({"content": [THOUGHT, text("x")]}, {"content": [text("x")]}),
        ({"content": [THOUGHT], **CALLING}, {"content": None, **CALLING}),
        ({"content": [THOUGHT]}, {"content": GONE}),
        ({"content": "", "thinking_blocks": [THOUGHT]}, {"content": GONE}),
        ({"thinking_blocks": [THOUGHT]}, {"content": GONE}),
        (
            {"content": "x", "reasoning_content": "hm", "thinking_blocks": [THOUGHT]},
            {"content": "x", "reasoning_content": "hm"},
        ),
        (
            {"content": "x", "reasoning_details": [{"text": "hm"}]},
            {"content": "x", "reasoning_details": [{"text": "hm"}]},
        ),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, {"content": [{"type": "thinking", "thinking": "hm"}]}),
        ({"content": "x", "reasoning_content": "thinking"}, {"content": "x", "reasoning_content": "thinking"}),
        ({"content": "about thinking_blocks"}, {"content": "about thinking_blocks"}),
    ],
)
def test_signed_reasoning_is_taken_out_whole_and_all_else_stays(message: dict[str, Any], left: dict[str, Any]) -> None:
    raw = json.dumps({"role": "assistant", **message}).encode()
    stripped = FORMATS[CHAT].strip_reasoning(raw)
    assert json.loads(stripped) == {"role": "assistant", **left}
    if message == left:
        assert stripped is raw


@pytest.mark.parametrize(
    "raw",
    [b'{"role":"assistant","content":"x"}', b'"thinking"', b'{"role":"user","thinking_blocks":[{}]}', b'{"thinking"'],
)
def test_what_is_no_message_of_the_assistant_keeps_its_bytes(raw: bytes) -> None:
    assert FORMATS[CHAT].strip_reasoning(raw) is raw


SEALED = {"type": "redacted_thinking", "data": "s"}


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ([THOUGHT, text("x"), USE], [text("x"), USE]),
        ([THOUGHT | {"thinking": ""}, SEALED, USE], [USE]),
        ([SEALED, text("x")], [text("x")]),
        ([THOUGHT, SEALED], GONE),
        ([text("about thinking")], [text("about thinking")]),
        ([{"type": "thinking", "thinking": "hm"}, USE], [{"type": "thinking", "thinking": "hm"}, USE]),
        ("thinking", "thinking"),
    ],
)
def test_signed_thinking_blocks_are_taken_out_whole(content: Any, left: Any) -> None:
    raw = json.dumps({"role": "assistant", "content": content}).encode()
    stripped = FORMATS[ANTHROPIC].strip_reasoning(raw)
    assert json.loads(stripped) == {"role": "assistant", "content": left}
    if content == left:
        assert stripped is raw


@pytest.mark.parametrize(
    "raw",
    [
        b'"thinking"',
        b'{"role":"user","content":[{"type":"thinking","signature":"s"}]}',
        b'{"role":"assistant","content":"words"}',
    ],
)
def test_thinking_that_no_assistant_sent_keeps_its_bytes(raw: bytes) -> None:
    assert FORMATS[ANTHROPIC].strip_reasoning(raw) is raw


def test_items_have_no_signed_reasoning_yet() -> None:
    raw = json.dumps({"role": "assistant", "content": [THOUGHT]}).encode()
    assert FORMATS[RESPONSES].strip_reasoning(raw) is raw


def test_items_are_changed_where_they_stand_and_all_other_bytes_stay() -> None:
    split = split_body(b'{"messages": [ 0, 1 ,2,  3], "n": 1}', "messages")
    assert split is not None
    assert change_items(split, 1, {0: b"a", 2: b"c"}) == b'{"messages": [ 0, a ,2,  c], "n": 1}'
    assert change_items(split, 0, {}) == split.content
    assert apply(split, 0, 2, (b"x",), {3: b"d"}) == b'{"messages": [ x ,2,  d], "n": 1}'


def test_several_items_are_replaced_by_others_whatever_else_changes_in_them() -> None:
    raws = [b'{"role":"user","content":"%d"}' % i for i in range(6)]
    body = split_body(b'{"messages":[' + b" , ".join(raws) + b'],"tools":[1]}', "messages")
    assert body is not None
    spans = [(range(2, 4), (b'"x"', b'"y"', b'"z"')), (range(4, 5), (b'"w"',))]
    sent = apply(body, 1, 1, [b'"ours"'], {2: b'"no"', 4: b'"last"'}, members={"tools": b"[1,2]"}, spans=spans)
    kept = [raws[0], b'"ours"', raws[2], b'"x"', b'"y"', b'"z"', b'"w"']
    assert [json.dumps(each) for each in json.loads(sent)["messages"]] == [json.dumps(json.loads(raw)) for raw in kept]
    assert json.loads(sent)["tools"] == [1, 2]


def test_attached_texts_give_way_with_the_words_and_media_stay() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    attached = [
        {"type": "document", "source": {"type": "text", "data": "a report"}},
        {"type": "document", "source": {"type": "content", "content": [text("a part")]}},
        {"type": "search_result", "source": "https://x", "title": "x", "content": [text("found")]},
    ]
    message = {"role": "user", "content": [*attached, image, text("old"), pdf]}
    assert replace(ANTHROPIC, message) == {"role": "user", "content": [text("new"), image, pdf]}
    told = FORMATS[ANTHROPIC].parse_message(json.dumps(message).encode())
    assert told.attached == ("a report", "a part", "x\nhttps://x\nfound")
