"""The members beside the messages: what they demand, and what must not be wrong with them because of us."""

import json
from typing import Any

import pytest

from proxy.wire.body import SplitBody, split_body
from proxy.wire.frame import find_frame_faults, read_rules
from proxy.wire.validity import Rules

MARK = {"cache_control": {"type": "ephemeral"}}


def split(**members: Any) -> SplitBody:
    body = split_body(json.dumps(members).encode(), "messages")
    assert body is not None
    return body


@pytest.mark.parametrize(
    ("wire", "members", "rules"),
    [
        ("chat_completions", {}, Rules()),
        ("chat_completions", {"response_format": {"type": "json_object"}}, Rules(needs_json=True)),
        ("chat_completions", {"response_format": {"type": "json_schema"}}, Rules()),
        ("responses", {"text": {"format": {"type": "json_object"}}}, Rules(is_itemised=True, needs_json=True)),
        ("responses", {"text": {}}, Rules(is_itemised=True)),
        ("anthropic_messages", {"system": [MARK], "tools": [{}, MARK], **MARK}, Rules(markers=("5m", "5m", "5m"))),
        ("anthropic_messages", {"system": "plain"}, Rules()),
    ],
)
def test_what_a_request_demands(wire: str, members: dict[str, Any], rules: Rules) -> None:
    assert read_rules(wire, split(**members)) == rules


def test_what_an_upstream_demands() -> None:
    assert read_rules("chat_completions", split(), is_alternating=True) == Rules(is_alternating=True)


@pytest.mark.parametrize(
    ("members", "faults"),
    [
        ({"tools": []}, ("tools is empty",)),
        ({"tool_choice": "auto"}, ("tool_choice without tools",)),
        ({"parallel_tool_calls": False}, ("parallel_tool_calls without tools",)),
        ({"stream_options": {}, "stream": False}, ("stream_options without stream",)),
        ({"stream_options": {}, "stream": True, "tools": [{}], "tool_choice": "auto"}, ()),
        ({"stream_options": None, "tool_choice": None}, ()),
    ],
)
def test_what_only_the_rewritten_request_has_wrong(members: dict[str, Any], faults: tuple[str, ...]) -> None:
    assert find_frame_faults(split(model="m"), split(model="m", **members)) == faults
    assert find_frame_faults(split(model="m", **members), split(**members)) == ()


def test_a_fault_of_the_clients_own_stays_its_own() -> None:
    before, after = split(tools=[], tool_choice="auto"), split(tool_choice="auto", stream_options={})
    assert find_frame_faults(before, after) == ("stream_options without stream",)


def test_a_member_that_cannot_be_read_says_nothing() -> None:
    body = split_body(b'{"tools":[1e400,"\\ud800"],"tool_choice":"auto"}', "messages")
    broken = split_body(b'{"tool_choice":"\xff"}', "messages")
    assert body is not None and broken is not None
    assert find_frame_faults(split(), body) == find_frame_faults(split(), broken) == ()
