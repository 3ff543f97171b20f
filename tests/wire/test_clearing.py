"""What a request asks the provider to clear, and how an answer tells what was cleared, in each wire format."""

import json
from typing import Any

import pytest

from proxy.model.epoch import ClearedContext, ClearingTerms
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format

ANTHROPIC = FORMATS["anthropic_messages"]
USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
TERMS = ClearingTerms(USES, THINKING, 100_000)
CLEARED = ClearedContext(8, 3, 50_000, 15_000)


def split(form: Format, **members: Any) -> SplitBody:
    body = split_body(json.dumps({"model": "m", **members, form.items_key: []}).encode(), form.items_key)
    assert body is not None
    return body


def amount(value: object, unit: str = "tool_uses") -> dict[str, object]:
    return {"type": unit, "value": value}


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


@pytest.mark.parametrize(
    ("value", "terms"),
    [
        ({}, ClearingTerms()),
        ({"edits": []}, ClearingTerms()),
        ({"edits": [{"type": USES}]}, ClearingTerms(USES, trigger=100_000)),
        (
            {
                "edits": [
                    {"type": THINKING, "keep": "all"},
                    {
                        "type": USES,
                        "trigger": amount(30_000, "input_tokens"),
                        "keep": amount(5),
                        "clear_at_least": amount(5_000, "input_tokens"),
                        "exclude_tools": ["web_search", 7],
                        "clear_tool_inputs": True,
                    },
                ]
            },
            ClearingTerms(USES, THINKING, 30_000, None, 5, 5_000, ("web_search",), True),
        ),
        ({"edits": [{"type": USES, "trigger": amount(20)}]}, ClearingTerms(USES, trigger_uses=20)),
        (
            {"edits": [{"type": USES, "trigger": None, "exclude_tools": "x", "clear_tool_inputs": ["bash"]}]},
            ClearingTerms(USES, trigger=100_000, clears_inputs=True),
        ),
        (
            {
                "edits": [
                    {"type": USES, "trigger": 9, "keep": amount(3, "x"), "clear_at_least": amount(-1), "b": 1, "a": 1}
                ]
            },
            ClearingTerms(USES, trigger=100_000, unknown=("trigger", "keep", "clear_at_least", "a", "b")),
        ),
        ({"edits": [{"type": THINKING}]}, ClearingTerms(thinking=THINKING, thinking_turns=1)),
        ({"edits": [{"type": THINKING, "keep": {"type": "all"}}]}, ClearingTerms(thinking=THINKING)),
        (
            {"edits": [{"type": THINKING, "keep": amount(2, "thinking_turns")}]},
            ClearingTerms(thinking=THINKING, thinking_turns=2),
        ),
        (
            {"edits": [{"type": THINKING, "keep": "some", "more": 1}]},
            ClearingTerms(thinking=THINKING, unknown=("keep", "more")),
        ),
        ({"edits": [{"type": "compact_20260112"}]}, None),
        ({"edits": [{"type": USES}, {"type": "compact_20260112"}]}, None),
        ({"edits": [{"type": USES}], "more": 1}, None),
        (None, None),
        ("all", None),
    ],
)
def test_edits_that_only_clear_are_read(value: object, terms: ClearingTerms | None) -> None:
    assert ANTHROPIC.read_clearing(split(ANTHROPIC, context_management=value)) == terms


@pytest.mark.parametrize(
    ("terms", "cleared", "edits"),
    [
        (
            TERMS,
            CLEARED,
            [
                {"type": THINKING, "cleared_thinking_turns": 3, "cleared_input_tokens": 15_000},
                {"type": USES, "cleared_tool_uses": 8, "cleared_input_tokens": 35_000},
            ],
        ),
        (TERMS, ClearedContext(), []),
        (ClearingTerms(USES), CLEARED, [{"type": USES, "cleared_tool_uses": 8, "cleared_input_tokens": 50_000}]),
        (
            ClearingTerms(USES),
            ClearedContext(0, 0, 9),
            [{"type": USES, "cleared_tool_uses": 0, "cleared_input_tokens": 9}],
        ),
        (
            ClearingTerms(thinking=THINKING),
            CLEARED,
            [{"type": THINKING, "cleared_thinking_turns": 3, "cleared_input_tokens": 15_000}],
        ),
        (ClearingTerms(), CLEARED, []),
    ],
)
@pytest.mark.parametrize("kind", ["message", "message_delta"])
def test_an_answer_tells_the_edits_that_were_asked_for(
    kind: str, terms: ClearingTerms, cleared: ClearedContext, edits: object
) -> None:
    told = ANTHROPIC.add_cleared(b'{"type":"%s","usage": {}}' % kind.encode(), terms, cleared)
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
