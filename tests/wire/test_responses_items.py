"""What the Responses format says of its items: which stay, how they belong together, and what is written in them."""

import json
from typing import Any

import pytest

from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.model.messages import MessageStructure, Stay, list_led
from proxy.wire.body import split_body
from proxy.wire.rendering import detach_items, render
from proxy.wire.responses import Responses

FORM = Responses()
USER, THOUGHT = MessageStructure("user"), MessageStructure("assistant", reasoning=b"r")


def read(item: Any) -> MessageStructure:
    return FORM.parse_structure(json.dumps(item).encode())


@pytest.mark.parametrize(
    ("item", "stays"),
    [
        ({"type": "function_call", "call_id": "a"}, "unanswered"),
        ({"type": "function_call_output", "call_id": "a", "output": ""}, ""),
        ({"type": "reasoning", "summary": []}, ""),
        ({"type": "web_search_call", "id": "w"}, ""),
        ({"type": "mcp_list_tools", "id": "l", "tools": []}, "always"),
        ({"type": "program", "id": "p", "fingerprint": "f"}, "always"),
        ({"type": "tool_search_output", "call_id": "t", "tools": []}, "always"),
        ({"type": "unheard_of", "call_id": "a"}, "always"),
        ({"id": "msg_1"}, "always"),
    ],
)
def test_what_is_not_known_stays_and_calls_stay_until_they_are_answered(item: Any, stays: Stay) -> None:
    assert read(item).stays == stays


@pytest.mark.parametrize("kind", ["configuration_update", "additional_tools"])
def test_what_holds_for_all_that_follows_is_like_a_message_of_the_system(kind: str) -> None:
    item: dict[str, object] = {"type": kind, "reasoning": {"effort": "high"}}
    assert read(item).role == FORM.reader.read_value(item).role == "system"


def test_a_trigger_is_no_answer() -> None:
    trigger: dict[str, object] = {"type": "compaction_trigger"}
    assert read(trigger).role == FORM.reader.read_value(trigger).role == "user"


@pytest.mark.parametrize(
    ("items", "is_aside"),
    [
        ([{"role": "user", "content": "x"}, {"type": "compaction_trigger"}], True),
        ([{"type": "compaction_trigger"}, {"role": "user", "content": "x"}], False),
        ([{"role": "user", "content": "compaction_trigger"}], False),
        ([], False),
    ],
)
def test_a_request_that_ends_with_a_trigger_is_no_part_of_the_conversation(items: Any, is_aside: bool) -> None:
    body = split_body(json.dumps({"input": items}).encode(), "input")
    assert body is not None
    assert FORM.is_aside(body) == is_aside


@pytest.mark.parametrize(
    ("call", "output"),
    [
        ({"type": "local_shell_call", "id": "l", "call_id": "a"}, {"type": "local_shell_call_output", "id": "a"}),
        ({"type": "mcp_approval_request", "id": "a"}, {"type": "mcp_approval_response", "approval_request_id": "a"}),
        ({"type": "custom_tool_call", "call_id": "a"}, {"type": "custom_tool_call_output", "call_id": "a"}),
    ],
)
def test_a_call_and_its_output_have_the_same_id_in_whichever_member(call: Any, output: Any) -> None:
    assert (read(call).calls, read(output).results) == (("a",), ("a",))
    assert FORM.parse_message(json.dumps(output).encode()).results == ("a",)


@pytest.mark.parametrize(
    ("item", "own_id"),
    [
        ({"type": "message", "id": "msg_1", "role": "assistant", "content": "x"}, "msg_1"),
        ({"type": "message", "id": "msg_1", "role": "user", "content": "x"}, ""),
        ({"type": "function_call", "id": "fc_1", "call_id": "a"}, "fc_1"),
        ({"type": "web_search_call", "id": "ws_1"}, ""),  # it may not be left out
        ({"type": "reasoning", "id": "rs_1", "summary": []}, ""),
        ({"type": "function_call_output", "id": "fco_1", "call_id": "a", "output": ""}, ""),
    ],
)
def test_the_own_ids_that_lead_to_reasoning(item: Any, own_id: str) -> None:
    assert read(item).item_id == own_id


def test_a_detached_item_lacks_nothing_but_its_own_id() -> None:
    raw = b'{"id":"fc_1", "type":"function_call","call_id":"a","name":"f","arguments":"{}","phase":"x"}'
    (rendered,) = render(FORM, [Replaced(0, "", "detached")], [raw])
    assert json.loads(rendered) == {name: value for name, value in json.loads(raw).items() if name != "id"}
    said = b'{"id":"m","type":"message","role":"assistant","content":[{"type":"output_text","text":"long"}]}'
    (rendered,) = render(FORM, [Replaced(0, "short", "detached")], [said])
    assert "id" not in json.loads(rendered)
    assert json.loads(rendered)["content"] == [{"type": "output_text", "text": "short"}]


def led(id: str, *calls: str) -> MessageStructure:
    return MessageStructure("assistant", calls, item_id=id)


def answer(id: str) -> MessageStructure:
    return MessageStructure("tool", (), (id,))


def test_items_behind_reasoning_in_its_turn() -> None:
    items = [
        led("m0"),
        USER,
        THOUGHT,
        led("f1", "a"),
        answer("a"),
        led("f2", "b"),
        answer("b"),
        THOUGHT,
        led("m1"),
        USER,
    ]
    assert list(list_led([*items, led("m2")])) == [(3, 2), (5, 2), (8, 7)]


def test_ids_that_would_lead_to_what_is_gone_are_left_out_up_to_the_next_reasoning() -> None:
    answered = [answer("b"), THOUGHT, led("f3", "c"), answer("c")]
    items = [USER, THOUGHT, led("f1", "a"), answer("a"), led("f2", "b"), *answered]
    edits: tuple[Edit, ...] = (Kept(0), Written("ledger", 1, 4))
    assert detach_items(edits, 4, items) == ((*edits, Replaced(4, "", "detached")), 5)
    # Where the reasoning stays, so do the ids; and where there are none, nothing is to do.
    whole = tuple(map(Kept, range(4)))
    assert detach_items(whole, 4, items) == (whole, 4)
    assert detach_items(edits, 4, [USER] * 9) == (edits, 4)


def test_a_shortened_item_is_detached_too() -> None:
    items = [USER, THOUGHT, led("f1", "a"), answer("a"), led("m"), USER]
    edits = (Kept(0), Written("ledger", 1, 4), Replaced(4, "short", "shortened"), Kept(5))
    assert detach_items(edits, 6, items) == ((*edits[:2], Replaced(4, "short", "detached"), Kept(5)), 6)


def test_encrypted_reasoning_counts_by_its_length() -> None:
    item = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x" * 1600}
    content = FORM.decode_message(json.dumps(item).encode()).content
    assert (content.text, content.frame) == ("r", 303)
