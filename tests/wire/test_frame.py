"""The members beside the messages: what they demand of these."""

import json
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
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
    assert FORMATS[wire].read_rules(split(**members)) == rules


@pytest.mark.parametrize(("leading", "needs_json"), [(0, True), (1, True), (2, False), (3, False)])
def test_what_a_leading_message_says_need_not_be_said_again(leading: int, *, needs_json: bool) -> None:
    """Leading messages always stay."""
    messages = [{"content": "Be brief."}, {"content": "Answer as JSON."}, {"content": "json, please"}]
    body = split(messages=messages, response_format={"type": "json_object"})
    assert FORMATS["chat_completions"].read_rules(body, leading) == Rules(needs_json=needs_json)


def test_what_an_upstream_demands() -> None:
    assert FORMATS["chat_completions"].read_rules(split(), is_alternating=True) == Rules(is_alternating=True)


def test_a_member_that_cannot_be_read_says_nothing() -> None:
    body = split_body(b'{"tools":[1e400,"\\ud800"],"response_format":{"type":"json_object"}}', "messages")
    broken = split_body(b'{"response_format":"\xff"}', "messages")
    assert body is not None and broken is not None
    assert FORMATS["chat_completions"].read_rules(body) == Rules(needs_json=True)
    assert FORMATS["chat_completions"].read_rules(broken) == Rules()
