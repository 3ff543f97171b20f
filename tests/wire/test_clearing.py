"""What a request asks the provider to clear, and how an answer tells what was cleared, in each wire format."""

import json
from typing import Any

import msgspec
import pytest

from proxy.model.epoch import ClearedContext, ClearingTerms
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from tests.wire.cases import load_cases

ANTHROPIC = FORMATS["anthropic_messages"]
USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
TERMS = ClearingTerms(USES, THINKING, 100_000)
CLEARED = ClearedContext(8, 3, 50_000, 15_000)


def split(form: Format, **members: Any) -> SplitBody:
    body = split_body(json.dumps({"model": "m", **members, form.items_key: []}).encode(), form.items_key)
    assert body is not None
    return body


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_format_reads_what_its_api_can_ask_for_and_no_other(form: Format) -> None:
    body = split(form, context_management={"edits": [{"type": USES}]})
    has_member = form is ANTHROPIC
    assert (form.read_clearing(body) is not None) == has_member == bool(form.clearing_key)
    assert form.read_clearing(split(form)) is None
    message, count = b'{"type":"message"}', b'{"input_tokens":7}'
    assert (form.add_cleared(message, TERMS, CLEARED) != message) == has_member
    assert (form.add_original_count(count, 5) != count) == has_member
    thought = b'{"role":"assistant","content":[{"type":"thinking","thinking":"hm"}]}'
    assert form.count_reasoning(thought) == 2 * has_member


@pytest.mark.parametrize(("value", "terms"), load_cases("clearing_edits.jsonl"))
def test_edits_that_only_clear_are_read(value: object, terms: Any) -> None:
    expected = msgspec.convert(terms, ClearingTerms | None)
    assert ANTHROPIC.read_clearing(split(ANTHROPIC, context_management=value)) == expected


@pytest.mark.parametrize(("terms", "cleared", "edits"), load_cases("applied_edits.jsonl"))
@pytest.mark.parametrize("kind", ["message", "message_delta"])
def test_an_answer_tells_the_edits_that_were_asked_for(kind: str, terms: Any, cleared: Any, edits: object) -> None:
    asked, done = msgspec.convert(terms, ClearingTerms), msgspec.convert(cleared, ClearedContext)
    told = ANTHROPIC.add_cleared(b'{"type":"%s","usage": {}}' % kind.encode(), asked, done)
    assert told.startswith(b'{"type":"%s","usage": {}' % kind.encode())
    assert json.loads(told)["context_management"] == {"applied_edits": edits}


@pytest.mark.parametrize("raw", [b'{"type":"error"}', b'{"type":"message_start","message":{}}', b"[]", b"{", b""])
def test_what_is_no_answer_stays(raw: bytes) -> None:
    assert ANTHROPIC.add_cleared(raw, TERMS, CLEARED) == raw
    assert ANTHROPIC.add_original_count(raw, 7) == raw


def test_a_count_has_the_clients_own_beside_it() -> None:
    told = json.loads(ANTHROPIC.add_original_count(b'{"input_tokens":7}', 5))
    assert told == {"input_tokens": 7, "context_management": {"original_input_tokens": 12}}


@pytest.mark.parametrize(
    ("raw", "characters"),
    [
        (b'{"role":"assistant","content":"thinking"}', 0),
        (b'{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"}]}', 1),
        (b'{"role":"assistant","content":[{"type":"redacted_thinking","data":"abc"}]}', 3),
        (b'{"role":"assistant","content":[{"type":"thinking","thinking":"ab"},{"type":"thinking","thinking":"c"}]}', 3),
        (b'["thinking"]', 0),
        (b"{}", 0),
    ],
)
def test_reasoning_that_may_be_cleared_is_counted(raw: bytes, characters: int) -> None:
    assert ANTHROPIC.count_reasoning(raw) == characters
