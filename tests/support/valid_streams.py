"""Checks streams as clients of each wire rely on them: what is announced is finished, in its place, and ends once.

The rules are those of the providers' documents and of the strictest SDKs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proxy.wire.streams import ServerEvent, read_events

Fields = Mapping[str, Any]
Events = list[tuple[str, Fields]]  # the name of each event, and its data

_BEGINNINGS = ("response.created", "response.queued", "response.in_progress")
_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PARTS = ("content", "summary")  # members of items whose parts are announced


def find_faults(wire: str, stream: bytes, *, is_stored: bool = False) -> list[str]:
    """What no provider would send in a stream. `is_stored`: the end may have the id of another stored response."""
    events = read_events(stream)
    if not stream.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
        return ["the last event has no end"]
    marks = [place for place, event in enumerate(events) if event.data == "[DONE]"]
    faults = [] if marks in ([], [len(events) - 1]) else ["[DONE] is not the last event, or not the only one"]
    if wire == "chat_completions" and not marks and not _has_error(events):
        faults.append("there is no [DONE]")
    read: Events = [(event.name, json.loads(event.data)) for event in events if event.data != "[DONE]"]
    find: Callable[[Events], Iterator[str]] = {
        "chat_completions": _find_in_chat,
        "anthropic_messages": _find_in_messages,
        "responses": lambda each: _find_in_responses(each, is_stored=is_stored),
    }[wire]
    return [*faults, *find(read)]


def _has_error(events: list[ServerEvent]) -> bool:
    return bool(events) and "error" in json.loads(events[-1].data)


# Chat Completions


def _find_in_chat(events: Events) -> Iterator[str]:
    error, chunks = [each for _, each in events if "error" in each], [each for _, each in events if "error" not in each]
    if error and events[-1][1] is not error[0]:
        yield "something follows an error"
    for name in ("id", "created", "model", "object"):
        if len({json.dumps(each.get(name)) for each in chunks}) > 1:
            yield f"chunks differ in {name}"
    choices = [choice for each in chunks for choice in each["choices"]]
    deltas = [choice["delta"] for choice in choices]
    if sum("role" in delta for delta in deltas) != bool(deltas):
        yield "the role is not told once"
    ends = [place for place, choice in enumerate(choices) if choice.get("finish_reason")]
    if not error and len(ends) != 1:
        yield f"{len(ends)} reasons to finish"
    if ends and any(choice["delta"] for choice in choices[ends[0] + 1 :]):
        yield "something is said behind the end"
    counts = [place for place, each in enumerate(chunks) if each.get("usage")]
    if len(counts) > 1 or (counts and counts != [len(chunks) - 1]):
        yield "usage stands elsewhere than in the last chunk"
    yield from _find_in_calls([call for delta in deltas for call in delta.get("tool_calls") or ()])
    has_calls = any(delta.get("tool_calls") for delta in deltas)
    finish = choices[ends[0]]["finish_reason"] if ends else "length"
    if finish != "length" and (finish == "tool_calls") is not has_calls:
        yield "the reason to finish does not fit the calls"


def _find_in_calls(fragments: list[Fields]) -> Iterator[str]:
    indexes = list(dict.fromkeys(each["index"] for each in fragments))
    if indexes != list(range(len(indexes))):
        yield f"calls have the indexes {indexes}"
    for index in indexes:
        first, *rest = [each for each in fragments if each["index"] == index]
        if not (first.get("id") and first["function"].get("name")):
            yield f"call {index} begins without id or name"
        if any(each.get("id") not in (None, first.get("id")) for each in rest):
            yield f"call {index} changes its id"
        try:
            json.loads("".join(each["function"].get("arguments") or "" for each in (first, *rest)) or "{}")
        except ValueError:
            yield f"the arguments of call {index} are not whole"
    ids = [each["id"] for each in fragments if each.get("id")]
    if len(set(ids)) < len(indexes):
        yield "calls share an id"


# Anthropic Messages


def _find_in_messages(events: Events) -> Iterator[str]:
    kinds = [each["type"] for _, each in events]
    if any(name != each["type"] for name, each in events):
        yield "an event is not named as its type"
    kinds = [kind for kind in kinds if kind != "ping"]
    if "error" in kinds:
        if kinds.index("error") != len(kinds) - 1:
            yield "something follows an error"
        return
    if kinds[:1] != ["message_start"] or kinds.count("message_start") != 1:
        yield "it does not begin once"
    if kinds[-2:] != ["message_delta", "message_stop"] or kinds.count("message_stop") != 1:
        yield "it does not end once"
    yield from _find_in_blocks(events)
    deltas = [each for _, each in events if each["type"] == "message_delta"]
    reasons = [each["delta"]["stop_reason"] for each in deltas if each["delta"].get("stop_reason")]
    if len(reasons) != 1:
        yield f"{len(reasons)} reasons to stop"
    blocks = [each["content_block"] for _, each in events if each["type"] == "content_block_start"]
    has_calls = any(block["type"] == "tool_use" for block in blocks)
    if reasons and (reasons[0] == "tool_use") is not has_calls and reasons[0] != "max_tokens":
        yield "the reason to stop does not fit the calls"
    if not any("output_tokens" in (each.get("usage") or {}) for each in deltas):
        yield "no usage is told at the end"


def _find_in_blocks(events: Events) -> Iterator[str]:
    opened: list[int] = []
    known = 0
    for _, each in events:
        kind, index = each["type"], each.get("index")
        if kind == "content_block_start":
            if index != known or opened:
                yield f"block {index} begins as number {known}, with {opened} open"
            opened.append(each["index"])
            known += 1
        elif kind in ("content_block_delta", "content_block_stop") and index not in opened:
            yield f"{kind} of block {index}, which is not open"
        elif kind == "content_block_stop":
            opened.remove(each["index"])
        elif kind == "message_delta" and opened:
            yield f"blocks {opened} are never closed"


# Responses


def _find_in_responses(events: Events, *, is_stored: bool) -> Iterator[str]:
    sent = [each for _, each in events]
    if any(name not in ("", each["type"]) for name, each in events):
        yield "an event is not named as its type"
    kinds = [each["type"] for each in sent]
    if kinds[:1] != ["response.created"] or any(kind in _BEGINNINGS for kind in kinds[len(_leading(kinds)) :]):
        yield "it does not begin once"
    if [kind for kind in kinds if kind in _ENDS] != kinds[-1:]:
        yield "it does not end once"
    numbers = [each["sequence_number"] for each in sent if "sequence_number" in each]
    if numbers != sorted(set(numbers)) or (numbers and len(numbers) != len(sent)):
        yield f"the events are numbered {numbers}"
    if kinds[-1:] == ["error"]:
        return
    ids = {each["response"]["id"] for each in sent[: -1 if is_stored else len(sent)] if "response" in each}
    if len(ids) > 1:
        yield f"the response has the ids {sorted(ids)}"
    if kinds[-1:] == ["response.completed"] and not sent[-1]["response"].get("usage"):
        yield "no usage is told at the end"
    yield from _find_in_items(sent)


def _leading(kinds: list[str]) -> list[str]:
    return kinds[: next((place for place, kind in enumerate(kinds) if kind not in _BEGINNINGS), len(kinds))]


def _find_in_items(sent: list[Fields]) -> Iterator[str]:
    items: dict[int, Fields] = {}
    finished: dict[int, Fields] = {}
    for each in sent:
        kind, index = each["type"], each.get("output_index")
        if index is None:
            continue
        if kind == _ADDED:
            if index != len(items):
                yield f"item {index} is announced as number {len(items)}"
            items[index] = each["item"]
        elif index not in items or index in finished:
            yield f"{kind} of item {index}, which is not open"
        elif kind == _DONE:
            finished[index] = each["item"]
            if each["item"]["type"] != items[index]["type"] or each["item"].get("id") != items[index].get("id"):
                yield f"item {index} ends as another one"
            yield from _find_in_parts(index, [every for every in sent if every.get("output_index") == index])
        if index in items and each.get("item_id", items[index].get("id")) != items[index].get("id"):
            yield f"{kind} names another item than {index}"
    if sent[-1]["type"] == "response.failed":
        return
    if unfinished := sorted(set(items) - set(finished)):
        yield f"items {unfinished} are announced and never finished"
    output = sent[-1].get("response", {}).get("output")
    if output and [each.get("id") for each in output] != [finished[index].get("id") for index in sorted(finished)]:
        yield "the items at the end are not those of the events"


def _find_in_parts(index: int, events: list[Fields]) -> Iterator[str]:
    for name in _PARTS:
        place = f"{name}_index"
        opened = [each[place] for each in events if each["type"].endswith("_part.added") and place in each]
        closed = [each[place] for each in events if each["type"].endswith("content_part.done") and place in each]
        if opened != list(range(len(opened))) or (name == "content" and closed != opened):
            yield f"the parts of item {index} are opened as {opened} and closed as {closed}"
