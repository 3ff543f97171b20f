"""The messages of a conversation as parts: what was said and thought, calls with their results, summaries, steps.

A result stands in the part of its call, so that a message that has nothing but results has no parts, and is left out.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from proxy.context.memory.traces import encode_arguments, fit_text
from proxy.context.message_features import find_outcome
from proxy.engine.memory.path import MemoryPath
from proxy.engine.ports import LogReader
from proxy.model.epoch import Epoch, Kept, Replaced, Summary
from proxy.model.errors import NotFound
from proxy.model.exchange import Usage
from proxy.model.messages import Message, ToolCall
from proxy.model.parts import (
    CompactionPart,
    FileRefPart,
    MessagePart,
    PatchPart,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolPart,
    ToolStatus,
)
from proxy.wire.json_values import JSON_ERRORS, limit_depth, load_json, read_object
from proxy.wire.messages import read_reasoning

_PATCHED = re.compile(
    r"(?m)^(?:\*\*\* (?:Update|Add|Delete) File: |(?:\+\+\+|---) (?:[ab]/)?)(?!/dev/null)(\S.{0,299}?)[ \t]*$"
)
_HUNK = re.compile(r"(?m)^(?:@@|\*\*\* (?:Update|Add|Delete) File: )")
_FENCED = re.compile(r"(?ms)^```(?:diff|patch)[ \t]*\n(?P<patch>.*?)(?:\n(?P<end>```)[ \t]*$|\Z)")
_BLOCK = re.compile(
    r"\[FILE: (?P<path>(?:(?!\[FILE: )[^\n])*)\]\nref:(?P<id>[a-z2-7]{10}) · (?P<kind>[^\n·]*) · (?P<tokens>[\d,]+)"
    r" tokens[^\n]*\n(?P<outline>(?:(?:(?!\[FILE: ).)*?\n)?)The original is intact",
    re.DOTALL,
)


class MessageDocument(msgspec.Struct, frozen=True):
    """A message of a conversation: its node, its place from 0 after the system prompt, and the call that brought it."""

    id: str
    place: int
    n: int | None
    exchange: str
    at_ms: int
    role: str
    parts: list[MessagePart]


async def load_messages(log: LogReader, path: MemoryPath) -> list[MessageDocument]:
    """Return the messages of a conversation, oldest first. Raises NotFound."""
    reader = await _open_reader(log, path)
    return await asyncio.to_thread(lambda: list(reader.read()))


async def load_message(log: LogReader, path: MemoryPath, id: str) -> MessageDocument:
    """Return a message of a conversation by its node; one of nothing but results with these. Raises NotFound."""
    place = next((place for place, node in enumerate(path.nodes) if node.hex() == id), None)
    if place is None:
        raise NotFound(f"the conversation has no message {id[:80]!r}; Session.messages has those that there are")
    return await asyncio.to_thread((await _open_reader(log, path)).find, place)


async def _open_reader(log: LogReader, path: MemoryPath) -> "_PartReader":
    session = path.row.session
    epochs, summaries = await log.list_epochs(session), await log.list_summaries(session)
    return await asyncio.to_thread(_PartReader, path, epochs, summaries)


class _PartReader:
    """Reads the messages of one conversation."""

    def __init__(self, path: MemoryPath, epochs: Sequence[Epoch], summaries: Sequence[Summary]) -> None:
        self._path = path
        self._shortened, self._blocks = follow_epochs(path.nodes, epochs)
        self._results = _pair_results(path)
        self._summaries: dict[int, list[Summary]] = {}
        for summary in summaries:
            if summary.stop <= len(path.nodes) and path.nodes[summary.stop - 1] == summary.last:
                self._summaries.setdefault(summary.stop - 1, []).append(summary)
        self._steps = 0

    def read(self) -> Iterator[MessageDocument]:
        for place in range(len(self._path.origins)):
            parts = [*self._list_said(place), *self._list_covering(place)]
            if parts:
                yield self._describe(place, parts)

    def find(self, place: int) -> MessageDocument:
        """Return one message. If all that it says stands in the parts of calls, these are its parts."""
        for found in self.read():
            if found.place == place:
                return found
        calls = {(call.id, at): call for at, seen in enumerate(self._path.messages) for call in seen.message.calls}
        answers = [asked for asked, answered in self._results.places.items() if answered == place]
        return self._describe(place, [self._describe_call(calls[asked], asked[1]) for asked in answers])

    def _describe(self, place: int, parts: list[MessagePart]) -> MessageDocument:
        origin = self._path.origins[place]
        call, role = self._path.calls.get(origin.event), fit_text(self._path.messages[place].structure.role)
        at = round(origin.ts * 1000)
        return MessageDocument(origin.node.hex(), place, call.n if call else None, origin.event, at, role, parts)

    def _list_said(self, place: int) -> Iterator[MessagePart]:
        seen, origin = self._path.messages[place], self._path.origins[place]
        is_own = seen.structure.role == "assistant"
        if is_own and not self._continues(place):
            self._steps += 1
            yield StepStartPart(self._steps)
        if thought := fit_text(_read_thought(self._path.raws[place])):
            yield ReasoningPart(thought)
        if seen.message.results:
            yield from self._list_results(place)
        elif seen.message.text or seen.message.media:
            media = (f"({each})" for each in seen.message.media)
            yield TextPart(fit_text("\n".join(filter(None, (seen.message.text, *media)))))
            for found in _BLOCK.finditer(seen.message.text):
                yield _make_file_part(found)
            yield from _list_patches(_find_fenced(seen.message.text))
        for call in seen.message.calls:
            yield self._describe_call(call, place)
            yield from islice(_list_patches(_list_texts(call)), 1)
        if is_own and not (place + 1 < len(self._path.origins) and self._continues(place + 1)):
            yield StepFinishPart(self._steps, _sum_tokens(self._path.usages.get(origin.event)))

    def _continues(self, place: int) -> bool:
        """Return whether a message belongs to the same response as the one before it."""
        if not place or self._path.messages[place].structure.role != "assistant":
            return False
        before = self._path.messages[place - 1].structure.role == "assistant"
        return before and self._path.origins[place].event == self._path.origins[place - 1].event

    def _list_results(self, place: int) -> Iterator[MessagePart]:
        """Yield what a message with results has beside those that stand with their calls."""
        message = self._path.messages[place].message
        for id in message.results:
            if (id, place) not in self._results.answered:
                at = round(self._path.origins[place].ts * 1000)
                output = _read_output(self._path, place, id)
                yield ToolPart("", fit_text(id), None, fit_text(output), self._judge(output, at, place))
        if block := self._blocks.get(place):
            yield block
        if message.beside:
            yield TextPart(fit_text("\n".join(message.beside)))

    def _describe_call(self, call: ToolCall, place: int) -> ToolPart:
        at = round(self._path.origins[place].ts * 1000)
        answered = self._results.places.get((call.id, place))
        output = None if answered is None else fit_text(_read_output(self._path, answered, call.id))
        status = self._judge(output, at, answered)
        return describe_call(call, output, status)

    def _judge(self, output: str | None, at: int, answered: int | None) -> ToolStatus:
        if output is None or answered is None:
            return ToolStatus("pending", at, None, None, None)
        completed = round(self._path.origins[answered].ts * 1000)
        return judge_output(output, at, completed, self._shortened.get(answered))

    def _list_covering(self, place: int) -> Iterator[CompactionPart]:
        for summary in self._summaries.get(place, ()):
            yield CompactionPart(summary.id, summary.level, summary.stop - summary.start)


class _Results(msgspec.Struct, frozen=True):
    """Which results answer which calls: by the id and place of a call the place of its result, and the reverse."""

    places: dict[tuple[str, int], int]
    answered: frozenset[tuple[str, int]]


def _pair_results(path: MemoryPath) -> _Results:
    """Pair calls with results: of one id, a result answers the newest call before it."""
    newest: dict[str, int] = {}
    places: dict[tuple[str, int], int] = {}
    answered = set()
    for place, seen in enumerate(path.messages):
        for id in seen.message.results:
            if (at := newest.get(id)) is not None and (id, at) not in places:
                places[id, at] = place
                answered.add((id, place))
        newest.update((call.id, place) for call in seen.message.calls)
    return _Results(places, frozenset(answered))


def _read_output(path: MemoryPath, place: int, id: str) -> str:
    message = path.messages[place].message
    if len(message.outputs) == len(message.results):
        return message.outputs[message.results.index(id)]
    return message.text


def follow_epochs(
    nodes: Sequence[bytes], epochs: Sequence[Epoch]
) -> tuple[Mapping[int, int], Mapping[int, FileRefPart]]:
    """Return which messages are not sent whole now, since when, and the file blocks that are sent for some of them."""
    since: dict[int, int] = {}
    before, reached = set[int](), 0
    blocks: dict[int, FileRefPart] = {}
    for epoch in epochs:
        if epoch.depth > len(nodes) or (epoch.depth and nodes[epoch.depth - 1] != epoch.through):
            continue  # of another branch
        if epoch.depth and not epoch.edits:
            continue  # its content was erased
        edits = epoch.list_edits()
        kept = {edit.place for edit in edits if isinstance(edit, Kept)}
        kept |= {edit.place for edit in edits if isinstance(edit, Replaced) and edit.kind in ("shortened", "detached")}
        if epoch.depth < reached:
            since = {place: at for place, at in since.items() if place < epoch.depth}
        for place in (*before, *range(reached, epoch.depth)):  # of all others nothing has changed
            if place < epoch.depth and place not in kept:
                since.setdefault(place, epoch.opened_ms)
        for place in kept:
            since.pop(place, None)
        before, reached = kept, epoch.depth
        found = {edit.place: _read_block(edit) for edit in edits if isinstance(edit, Replaced) and edit.kind == "file"}
        blocks = {place: block for place, block in found.items() if block is not None}
    return since, blocks


def _read_block(edit: Replaced) -> FileRefPart | None:
    found = _BLOCK.search(edit.text)
    return None if found is None else _make_file_part(found)


def _make_file_part(found: re.Match[str]) -> FileRefPart:
    tokens = int(found["tokens"].replace(",", ""))
    outline = "\n".join(line.removeprefix("  ") for line in found["outline"].splitlines())
    return FileRefPart(found["id"], fit_text(found["path"]), fit_text(found["kind"]), tokens, fit_text(outline))


def _find_fenced(text: str) -> Iterator[str]:
    return (f"{found['patch']}\n" for found in _FENCED.finditer(text) if found["end"])


def _list_patches(texts: Iterable[str]) -> Iterator[PatchPart]:
    """Yield those of the texts that are patches."""
    for text in texts:
        if _HUNK.search(text) and (files := _PATCHED.findall(text)):
            yield PatchPart(fit_text(text), list(dict.fromkeys(map(fit_text, files))))


def _list_texts(call: ToolCall) -> Iterator[str]:
    """Yield the texts in the arguments of a call; what is no JSON object is one text."""
    given = read_object(call.arguments)
    if given is None:
        yield call.arguments
        return
    for value in given.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def list_new_parts(raw: bytes, message: Message, at_ms: int) -> Iterator[MessagePart]:
    """Yield the parts that a message has when it comes: its calls are pending, and results are not among them."""
    if thought := fit_text(_read_thought(raw)):
        yield ReasoningPart(thought)
    media = (f"({each})" for each in message.media)
    said = message.beside if message.results else (message.text, *media)
    if text := "\n".join(filter(None, said)):
        yield TextPart(fit_text(text))
    for call in message.calls:
        yield describe_call(call, None, ToolStatus("pending", at_ms))
        yield from _list_patches(_list_texts(call))


def describe_call(call: ToolCall, output: str | None, status: ToolStatus) -> ToolPart:
    """Return the part of a call."""
    given = msgspec.json.decode(encode_arguments(call.arguments))
    return ToolPart(fit_text(call.name), fit_text(call.id), given, output, status)


def judge_output(output: str, started: int | None, completed: int, compacted: int | None = None) -> ToolStatus:
    """Return how a call with an output stands."""
    fault = fit_text(find_outcome(output)) or None
    return ToolStatus("error" if fault else "completed", started, completed, compacted, fault)


def _read_thought(raw: bytes) -> str:
    try:
        value = limit_depth(load_json(raw), raw)
    except JSON_ERRORS:
        return ""
    return read_reasoning(value) if isinstance(value, dict) else ""


def _sum_tokens(usage: Usage | None) -> int | None:
    if usage is None or usage.input is None:
        return None
    return usage.input + (usage.output or 0)
