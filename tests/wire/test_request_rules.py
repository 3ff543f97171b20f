"""What a request demands of its messages, and whether it manages its context already."""

import json
from typing import Any

import pytest

from proxy.context.references import FileReference, Tombstone, render_file, render_tombstone
from proxy.model.card import CacheTerms
from proxy.model.epoch import Written
from proxy.model.messages import LEDGER_HEAD
from proxy.wire import FORMATS
from proxy.wire.body import ByteRange, SplitBody, split_body
from proxy.wire.rendering import render
from proxy.wire.validity import Rules
from tests.support.valid_histories import WIRES

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


LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_markers_of_leading_messages_count() -> None:
    messages = [{"content": [LONG]}, {"content": "a", **MARK}, {"content": "b", **MARK}]
    body = split(messages=messages, tools=[LONG])
    assert FORMATS["chat_completions"].read_rules(body, 2).markers == ("1h", "1h", "5m")


@pytest.mark.parametrize(
    ("members", "leading", "terms"),
    [
        ({}, 0, CacheTerms()),
        ({"messages": [{"content": [LONG]}]}, 1, CacheTerms(head=("1h",), has_leading=True)),
        ({"messages": [{"content": [LONG]}]}, 0, CacheTerms()),  # the caller knows those behind
        ({"tools": [MARK], **MARK}, 0, CacheTerms(head=("5m",), messages=("5m",))),
        ({"prompt_cache_retention": "24h"}, 0, CacheTerms(lifetime="24h")),
        ({"prompt_cache_retention": None}, 0, CacheTerms()),
        (
            {"prompt_cache_options": {"ttl": "30m", "mode": "explicit"}},
            0,
            CacheTerms(lifetime="30m", is_explicit=True),
        ),
        ({"prompt_cache_options": {"mode": "auto"}, "prompt_cache_retention": "24h"}, 0, CacheTerms(lifetime="24h")),
        ({"prompt_cache_options": "odd"}, 0, CacheTerms()),
    ],
)
def test_a_request_states_how_it_is_to_be_cached(members: dict[str, Any], leading: int, terms: CacheTerms) -> None:
    assert FORMATS["chat_completions"].read_cache_terms(split(**members), leading) == terms


def test_markers_of_messages_come_before_that_of_the_request() -> None:
    terms = FORMATS["chat_completions"].read_cache_terms(split(**MARK), 0, ["1h"])
    assert terms.messages == terms.markers == ("1h", "5m")


def test_what_an_upstream_demands() -> None:
    assert FORMATS["chat_completions"].read_rules(split(), is_alternating=True) == Rules(is_alternating=True)


def test_a_member_that_cannot_be_read_says_nothing() -> None:
    body = split_body(b'{"tools":[1e400,"\\ud800"],"response_format":{"type":"json_object"}}', "messages")
    broken = split_body(b'{"response_format":"\xff"}', "messages")
    assert body is not None and broken is not None
    assert FORMATS["chat_completions"].read_rules(body) == Rules(needs_json=True)
    assert FORMATS["chat_completions"].read_rules(broken) == Rules()


CHAT, ANTHROPIC, RESPONSES = WIRES
LEDGER = f"{LEDGER_HEAD} · steps 1 to 41\nread a.py"
FILE = render_file(FileReference("abcdefghij", "src/[a].py", "python", 12_345, 800, b"\x01" * 32, ("class A",)))
STONE = render_tombstone(Tombstone("abcdefghij", "bash", "exit 1", 214, "run it again"))


def split_messages(wire: str, messages: list[Any], **members: Any) -> SplitBody:
    key = "input" if wire == RESPONSES else "messages"
    body = split_body(json.dumps({**members, key: messages}).encode(), key)
    assert body is not None
    return body


CLEARING = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1000}}


@pytest.mark.parametrize(
    ("wire", "name", "value"),
    [
        (ANTHROPIC, "context_management", {"edits": [CLEARING, {"type": "compact_20260112"}]}),
        (ANTHROPIC, "context_management", {"edits": [CLEARING, {}]}),
        (ANTHROPIC, "context_management", {"edits": [CLEARING], "strategy": "auto"}),
        (ANTHROPIC, "context_management", {"edits": {}}),
        (ANTHROPIC, "compaction", {"type": "summarize"}),
        (ANTHROPIC, "thinking", {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}),
        (ANTHROPIC, "thinking", {"type": "adaptive", "block_binding": {"mismatch_behavior": "error"}}),
        (RESPONSES, "context_management", [{"type": "compaction", "compact_threshold": 1000}]),
        (RESPONSES, "truncation", "auto"),
        (CHAT, "transforms", ["middle-out"]),
        (CHAT, "cached_content", "cachedContents/1"),
        (CHAT, "cachedContent", "cachedContents/1"),
        (RESPONSES, "background", True),
        (RESPONSES, "previous_response_id", "resp_1"),
        (RESPONSES, "conversation", {"id": "conv_1"}),
    ],
)
def test_a_member_that_manages(wire: str, name: str, value: Any) -> None:
    assert FORMATS[wire].find_management(split_messages(wire, [], **{name: value})) == f"the request has {name}"


@pytest.mark.parametrize(
    ("wire", "members"),
    [
        (CHAT, {"model": "m", "stream": True, "tools": [1]}),
        (CHAT, {"store": True, "previous_response_id": "x", "conversation": "x"}),
        (ANTHROPIC, {"context_management": None, "metadata": {"user_id": "u"}}),
        (ANTHROPIC, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, CLEARING]}}),
        (ANTHROPIC, {"context_management": {"edits": []}}),
        (ANTHROPIC, {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}),
        (ANTHROPIC, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (RESPONSES, {"store": True}),
        (RESPONSES, {"store": False, "background": False, "truncation": "disabled", "previous_response_id": None}),
        (CHAT, {"transforms": []}),
    ],
)
def test_a_member_that_does_not(wire: str, members: dict[str, Any]) -> None:
    assert FORMATS[wire].find_management(split_messages(wire, [{"role": "user", "content": "x"}], **members)) == ""


@pytest.mark.parametrize(
    ("wire", "thinking", "is_needed"),
    [
        (ANTHROPIC, {"type": "enabled", "budget_tokens": 1024}, True),
        (ANTHROPIC, {"type": "adaptive"}, False),
        (ANTHROPIC, None, False),
        (ANTHROPIC, "enabled", False),
        (CHAT, {"type": "enabled"}, False),
    ],
)
def test_with_a_budget_a_turn_has_to_begin_with_thinking(wire: str, thinking: Any, *, is_needed: bool) -> None:
    body = split_messages(wire, [{"role": "user", "content": "x"}], thinking=thinking)
    assert FORMATS[wire].read_rules(body).needs_thinking is is_needed
    assert FORMATS[wire].needs_thinking(split_messages(wire, [])) is False


def test_a_member_that_cannot_be_read_is_the_upstreams_to_judge() -> None:
    assert FORMATS[CHAT].find_management(SplitBody(b"\xff", {"truncation": ByteRange(0, 1)}, ())) == ""


@pytest.mark.parametrize(
    ("wire", "message", "found"),
    [
        (CHAT, {"role": "user", "content": LEDGER}, "a ledger of palimpsest"),
        (CHAT, {"role": "assistant", "content": LEDGER}, "a ledger of palimpsest"),
        (
            CHAT,
            {"role": "user", "content": [{"type": "text", "text": LEDGER}, {"type": "text", "text": "go on"}]},
            "a ledger of palimpsest",
        ),
        (CHAT, {"role": "tool", "tool_call_id": "a", "content": STONE}, "references of palimpsest"),
        (CHAT, {"role": "user", "content": FILE}, "references of palimpsest"),
        (
            ANTHROPIC,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": STONE}]},
            "references of palimpsest",
        ),
        (RESPONSES, {"type": "function_call_output", "call_id": "a", "output": FILE}, "references of palimpsest"),
        (RESPONSES, {"type": "compaction", "encrypted_content": "…"}, "a compaction"),
        (RESPONSES, {"type": "compaction_summary", "encrypted_content": "…"}, "a compaction"),
        (RESPONSES, {"type": "context_compaction"}, "a compaction"),
        (RESPONSES, {"type": "item_reference", "id": "msg_1"}, "references to what the provider stores"),
        (RESPONSES, {"type": "reasoning", "id": "rs_1", "summary": []}, "references to what the provider stores"),
        (ANTHROPIC, {"role": "assistant", "content": [{"type": "compaction", "content": "…"}]}, "a compaction"),
    ],
)
def test_a_message_that_was_managed(wire: str, message: Any, found: str) -> None:
    plain = {"role": "user", "content": "[tool: x]"}
    body = split_messages(wire, [plain, message, plain])
    assert FORMATS[wire].find_management(body) == f"the messages have {found}"
    assert FORMATS[wire].find_management(body, known=1) == f"the messages have {found}"
    assert FORMATS[wire].find_management(body, known=2) == ""
    assert FORMATS[wire].find_management(body, known=3) == ""


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": f"What does this mean?\n{LEDGER}"},
        {"role": "tool", "tool_call_id": "a", "content": LEDGER},
        {"role": "tool", "tool_call_id": "a", "content": "[tool: x] says nothing"},
        {"role": "tool", "tool_call_id": "a", "content": f"log:\n{STONE}"},
        {"role": "assistant", "content": STONE},
        {"role": "user", "content": "[FILE: a.py]\nref: none"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "compaction", "arguments": "{}"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {"type": "compaction"}}]},
        {"type": "compaction_trigger"},
        {"type": "message", "role": "user", "content": "item_reference"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        "compaction",
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_a_message_that_only_looks_managed(wire: str, message: Any) -> None:
    assert FORMATS[wire].find_management(split_messages(wire, [message])) == ""


def test_of_several_members_the_first_in_our_order_is_named() -> None:
    body = split_messages(RESPONSES, [], store=True, background=True, truncation="auto")
    assert FORMATS[RESPONSES].find_management(body) == "the request has truncation"


def test_chat_completions_have_no_compaction() -> None:
    message = {"role": "assistant", "content": [{"type": "compaction", "content": "…"}]}
    assert FORMATS[CHAT].find_management(split_messages(CHAT, [message])) == ""


@pytest.mark.parametrize("is_alternating", [False, True])
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_we_render_is_known_again(wire: str, role: Any, is_alternating: bool) -> None:
    rendered = render(FORMATS[wire], [Written(LEDGER, 0, 9)], [], role=role, is_alternating=is_alternating)
    assert (
        FORMATS[wire].find_management(split_messages(wire, list(map(json.loads, rendered))))
        == "the messages have a ledger of palimpsest"
    )


@pytest.mark.parametrize(
    "text", ["[MEMORY:EPISODIC]\n1) (turn 1)", "[MEMORY:SEMANTIC]\n- (fact) a", "[RECENT TURNS]\nTurn 1:"]
)
@pytest.mark.parametrize("wire", WIRES)
def test_memory_as_others_of_us_render_it_is_known_again(wire: str, text: str) -> None:
    rendered = render(FORMATS[wire], [Written(text, 0, 9)], [])
    found = FORMATS[wire].find_management(split_messages(wire, list(map(json.loads, rendered))))
    assert found == "the messages have memory of palimpsest"


@pytest.mark.parametrize("wire", WIRES)
def test_words_about_our_headings_are_the_users_own(wire: str) -> None:
    rendered = render(FORMATS[wire], [Written("What does [MEMORY:EPISODIC] mean?", 0, 9)], [])
    assert FORMATS[wire].find_management(split_messages(wire, list(map(json.loads, rendered)))) == ""
