"""The provider's own compaction on each wire: how it is asked for, what is read of an answer, and how it is sent."""

import json
from typing import Any

import pytest

from proxy.model.epoch import Compacted, Kept, Written
from proxy.model.exchange import Answer, Usage
from proxy.model.messages import MessageStructure
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import SplitBody, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.headers import add_to_list
from proxy.wire.overflow import mentions
from proxy.wire.rendering import render
from proxy.wire.responses import Responses
from proxy.wire.summary_request import read_summary, write_compaction
from proxy.wire.validity import RequestFault, Rules, Splice, find_faults, judge_history

CHAT, RESPONSES, MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()
BLOCK = {"type": "compaction", "content": "They name é entities.", "signature": "EuYB"}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA", "created_by": "x"}
SENT_BLOCK = (
    '{"role":"assistant","content":[{"type":"compaction","content":"They name \\u00e9 entities.","signature":"EuYB"}]}'
)
SENT_ITEM = '{"type":"compaction","id":"cmp_1","encrypted_content":"gAAAA","created_by":"x"}'
MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
USED = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
STEP = {"type": "compaction", "input_tokens": 144, "output_tokens": 276, "cache_read_input_tokens": 1000}


def split(form: Format, items: Any, **members: Any) -> SplitBody:
    body = split_body(json.dumps({"model": "m", form.items_key: items, **members}).encode(), form.items_key)
    assert body is not None
    return body


def turn(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text, **more}]}


TURNS = [turn("one"), turn("two", "assistant"), turn("three"), turn("four", "assistant"), turn("five", **MARK)]


def ask(form: Format, items: Any, count: int = 3, **members: Any) -> Any:
    body = write_compaction(form, split(form, items, **members), count)
    return None if body is None else json.loads(body)


def test_anthropic_is_asked_for_the_beginning_of_the_request_and_nothing_else_changes() -> None:
    told: dict[str, Any] = {"system": "s", "tools": [{"name": "f"}], "thinking": {"type": "adaptive"}, "stream": True}
    asked = ask(MESSAGES, TURNS, max_tokens=20_000, **told)
    marked = turn("three", **MARK)  # where the marker of the last message went
    wanted = {"model": "m", "messages": [*TURNS[:2], marked], "max_tokens": 20_000, **told}
    assert asked == {**wanted, "compaction": {"type": "summarize"}}


def test_what_the_provider_refuses_beside_it_is_left_out() -> None:
    more: dict[str, Any] = {
        "stop_sequences": ["x"],
        "context_management": {"edits": []},
        "output_format": {"type": "json_schema"},
    }
    more |= {"tool_choice": {"type": "any"}, "output_config": {"format": {"type": "json_schema"}, "effort": "high"}}
    asked = ask(MESSAGES, TURNS, **more)
    assert asked.keys() == {"model", "messages", "max_tokens", "output_config", "compaction"}
    assert (asked["output_config"], asked["max_tokens"]) == ({"effort": "high"}, 8192)
    assert ask(MESSAGES, TURNS, tool_choice={"type": "none"})["tool_choice"] == {"type": "none"}
    assert ask(MESSAGES, TURNS, output_config={"task_budget": {"total": 9, "remaining": 3}}) is None


def test_a_marker_is_added_only_where_one_went_and_the_last_message_has_none() -> None:
    for items in ([*TURNS[:2], turn("three", **MARK), *TURNS[3:]], TURNS[:4], [*TURNS[:2], turn(""), *TURNS[3:]]):
        assert ask(MESSAGES, items)["messages"] == items[:3]


def test_responses_are_asked_by_a_trigger_behind_the_beginning() -> None:
    items = [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}, {"type": "reasoning"}]
    asked = ask(RESPONSES, items, 2, store=False, stream=True)
    assert asked == {
        "model": "m", "input": [*items[:2], {"type": "compaction_trigger"}], "store": False, "stream": True
    }  # fmt: skip
    assert ask(RESPONSES, items, 2, text={"format": {"type": "json_object"}}) is None


def test_chat_completions_have_none() -> None:
    assert [form.has_compaction for form in (CHAT, RESPONSES, MESSAGES)] == [False, True, True]
    assert ask(CHAT, TURNS) is None


def read(form: Format, **value: Any) -> Any:
    return read_summary(form, Answer(value))


def test_exactly_one_compaction_is_read_and_kept_as_it_came() -> None:
    told = read(MESSAGES, content=[BLOCK], stop_reason="compaction")
    assert (told.block, told.text, told.is_tool_call) == (SENT_BLOCK, BLOCK["content"], False)
    assert read(RESPONSES, output=[ITEM]).block == SENT_ITEM
    for form, value in (
        (MESSAGES, {"content": [BLOCK, BLOCK]}),
        (MESSAGES, {"content": [BLOCK | {"content": ""}]}),
        (MESSAGES, {"content": [{"type": "text", "text": "No."}]}),
        (RESPONSES, {"output": [ITEM, ITEM]}),
        (RESPONSES, {"output": [{"type": "compaction"}]}),
        (CHAT, {"choices": [{"message": BLOCK}]}),
    ):
        assert read(form, **value).block == ""


def test_what_it_took_is_counted_by_its_steps() -> None:
    usage = MESSAGES.read_answer(
        {"content": [BLOCK], "usage": {**USED, "iterations": [STEP, STEP, {"type": "x"}]}}
    ).usage
    assert usage == Usage(input=2 * 1144, output=2 * 276, cached=2000)
    own = {**USED, "input_tokens": 5, "iterations": [STEP]}
    assert MESSAGES.read_answer({"usage": own}).usage == Usage(input=5, output=0, cached=0, written=0)
    assert MESSAGES.read_answer({"usage": USED}).usage == Usage(input=0, output=0, cached=0, written=0)
    assert MESSAGES.read_answer({"usage": 7}).usage is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), ((b"anthropic-beta", b"x"),)),
        (((b"a", b"1"), (b"anthropic-beta", b"y, z")), ((b"a", b"1"), (b"anthropic-beta", b"y,z,x"))),
        (((b"anthropic-beta", b""), (b"anthropic-beta", b"y")), ((b"anthropic-beta", b"y,x"),)),
        (((b"anthropic-beta", b"y, x"),), ((b"anthropic-beta", b"y, x"),)),
    ],
)
def test_a_value_is_added_to_a_header_once(before: Any, after: Any) -> None:
    assert add_to_list(before, b"anthropic-beta", b"x") == after


def test_a_body_with_one_or_that_asks_for_one_needs_a_header() -> None:
    with_one = b'{"messages":[' + SENT_BLOCK.encode() + b"]}"
    asking = write_compaction(MESSAGES, split(MESSAGES, TURNS), 3) or b""
    beta = ((b"anthropic-beta", b"compact-2026-09-04"),)
    assert [MESSAGES.add_needed_headers((), body) for body in (with_one, asking, b"{}")] == [beta, beta, ()]
    quoted = json.dumps({"messages": [turn(SENT_BLOCK)]}).encode()
    assert MESSAGES.add_needed_headers((), quoted) == RESPONSES.add_needed_headers((), SENT_ITEM.encode()) == ()


@pytest.mark.parametrize(("form", "block"), [(MESSAGES, SENT_BLOCK), (RESPONSES, SENT_ITEM)])
def test_it_is_sent_as_it_came_and_may_be_first(form: Format, block: str) -> None:
    edits = (Compacted("told", 0, 3, "id", block, 9), Written("ledger", 0, 2), Kept(2))
    sent = render(form, edits, [json.dumps(each).encode() for each in TURNS])
    assert sent[0] == block.encode()
    first = form.parse_structure(sent[0])
    assert (first.role, first.is_compaction, first.flaws) == ("assistant", True, ())
    user, said = MessageStructure("user"), MessageStructure("assistant")
    history = judge_history([user, said, user, said, user])
    assert find_faults(history, [Splice(0, 2, (first, user))], Rules()) == ()
    assert find_faults(history, [Splice(0, 2, (said, user))], Rules()) == (RequestFault("beginning", "assistant"),)


@pytest.mark.parametrize(
    ("said", "is_about"),
    [
        (b'{"error":{"details":{"error_code":"compaction_signature_invalid"}}}', True),
        (b"messages.0.content.0: Input tag 'compaction' found using 'type' does not match any", True),
        (b'{"error":{"message":"The encrypted content gAAA... could not be verified."}}', True),
        (b'{"error":{"message":"temperature: Input should be less than 1"}}', False),
    ],
)
def test_an_error_may_be_about_it(said: bytes, is_about: bool) -> None:
    assert mentions("compaction", (), said) == is_about
    assert not mentions("compaction", ((b"content-encoding", b"br"),), said)


def test_beside_other_blocks_it_is_none() -> None:
    both = {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "And so on."}]}
    assert not MESSAGES.parse_structure(json.dumps(both).encode()).is_compaction
