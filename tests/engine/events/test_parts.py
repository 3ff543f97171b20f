"""The parts of messages in events: what comes, what results complete, what an epoch shortens, and how much is told."""

import json
from typing import Any

import msgspec
import pytest

from proxy.engine.events.parts import (
    MOST_CHARACTERS,
    find_pruned,
    group_items,
    list_completed,
    list_created,
    list_pruned,
)
from proxy.model.epoch import Edit, Kept, Replaced, Written
from proxy.model.parts import PatchPart, ReasoningPart, TextPart, ToolPart, ToolStatus
from proxy.wire import FORMATS
from proxy.wire.format import Format

CHAT, RESPONSES, ANTHROPIC = (FORMATS[name] for name in ("chat_completions", "responses", "anthropic_messages"))


def ask(id: str, name: str = "bash", arguments: str = '{"cmd":"ls"}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def spell(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in messages]


def created(form: Format, message: dict[str, Any]) -> list[Any]:
    return [each.part for each in list_created(form, b"n", spell(message), 7)]


def load_from(*messages: dict[str, Any]) -> Any:
    raws = spell(*messages)
    return lambda place: (b"%d" % place, raws[place])


PENDING = ToolStatus("pending", 7)


def test_a_message_has_its_reasoning_its_text_and_its_pending_calls() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    said = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    said["tool_calls"] = [ask("c1"), ask("c2", "patch", json.dumps({"diff": patch}))]  # type: ignore[assignment]
    assert created(CHAT, said) == [
        ReasoningPart("hm"),
        TextPart("so"),
        ToolPart("bash", "c1", {"cmd": "ls"}, None, PENDING),
        ToolPart("patch", "c2", {"diff": patch}, None, PENDING),
        PatchPart(patch, ["x.py"]),
    ]
    assert created(CHAT, {"role": "tool", "tool_call_id": "c1", "content": "out"}) == []
    beside = [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}, {"type": "text", "text": "go on"}]
    assert created(ANTHROPIC, {"role": "user", "content": beside}) == [TextPart("go on")]


def test_items_without_a_node_go_with_the_next_one() -> None:
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    raws = spell(thought, call, said, thought)
    assert list(group_items(RESPONSES, (b"1", b"2"), raws)) == [(b"1", raws[:2]), (b"2", raws[2:3])]
    assert list(group_items(RESPONSES, (b"1",), raws)) == [(b"1", raws[:2])], "the other was known before"


def test_a_result_completes_the_part_of_its_call() -> None:
    load = load_from(
        {"role": "assistant", "content": None, "tool_calls": [ask("c1"), ask("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
        {"role": "tool", "tool_call_id": "c2", "content": "Traceback (most recent call last):\nValueError: x"},
        {"role": "tool", "tool_call_id": "c9", "content": "whose?"},
    )
    ((first,), (second,), (third,)) = (tuple(list_completed(CHAT, load, place, 9)) for place in (1, 2, 3))
    assert first == (b"0", ToolPart("bash", "c1", {"cmd": "ls"}, "a b", ToolStatus("completed", None, 9)))
    assert isinstance(second.part, ToolPart)
    assert (second.node, second.part.tool_call_id, second.part.status.state) == (b"0", "c2", "error")
    assert second.part.status.error_message
    assert third == (b"3", ToolPart("", "c9", None, "whose?", ToolStatus("completed", None, 9)))


def test_several_results_of_one_message_each_complete_their_own() -> None:
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "bash", "input": {"n": n}} for n in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": f"out {n}"} for n in (1, 2)]
    load = load_from({"role": "assistant", "content": calls}, {"role": "user", "content": results})
    found = [each.part for each in list_completed(ANTHROPIC, load, 1, 9)]
    assert [(part.tool_call_id, part.output) for part in found if isinstance(part, ToolPart)] == [
        ("c1", "out 1"),
        ("c2", "out 2"),
    ]


def test_an_epoch_prunes_what_it_shortens_unless_one_did_before() -> None:
    steps = [
        message
        for n in range(3)
        for message in (
            {"role": "assistant", "content": None, "tool_calls": [ask(f"c{n}")]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": "out"},
        )
    ]
    edits: tuple[Edit, ...] = (
        Written("ledger", 0, 1),
        Replaced(1, "[tool: bash]", "tombstone"),
        Kept(2),
        Replaced(3, "[FILE: x]", "file"),
        Replaced(4, "cut", "shortened"),
        Replaced(5, "[tool: bash]", "tombstone"),
    )
    encoded = msgspec.json.encode(edits)
    assert find_pruned(encoded) == {1, 3, 5}
    assert find_pruned(b"") == frozenset()
    found = list(list_pruned(CHAT, load_from(*steps), encoded, frozenset({1}), 9))
    assert [each.node for each in found] == [b"2", b"4"]
    status = ToolStatus("completed", None, None, 9)
    assert found[0].part == ToolPart("bash", "c1", {"cmd": "ls"}, "out", status)


@pytest.mark.parametrize("long", ["x" * 5000, "ä" * 5000])
def test_what_is_told_of_long_parts_is_cut(long: str) -> None:
    said = {"role": "assistant", "content": long, "tool_calls": [ask("c1", arguments=json.dumps({"text": long}))]}
    text, call = created(CHAT, said)
    assert text == TextPart(long[:MOST_CHARACTERS])
    assert call.input.startswith('{"text":"' + long[0])
    assert len(call.input) <= MOST_CHARACTERS
