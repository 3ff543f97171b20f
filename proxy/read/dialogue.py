"""A conversation as people read it: its turns, who said what, calls with their results, a piece of it at a time.

Also what one call added to it, with the answer. A message is named by the call that brought it, which stays the same
whatever the client does with its history later.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, replace

from proxy.context.memory.traces import fit_text
from proxy.engine.memory.messages import (
    MessageDocument,
    describe_call,
    follow_epochs,
    judge_output,
    list_new_parts,
    load_messages,
)
from proxy.engine.memory.path import MemoryPath, MemoryReader, load_path
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_inputs, load_body
from proxy.engine.recorded.lookup import find_session
from proxy.model.errors import NotFound
from proxy.model.log import BranchRow, ExchangeRow
from proxy.model.lru import LruCache
from proxy.model.messages import Message, ToolCall
from proxy.model.parts import MessagePart, ReasoningPart, TextPart, ToolPart
from proxy.read.session_summary import make_title
from proxy.wire.format import Format
from proxy.wire.identity import count_preamble

MOST_SHOWN = 4000
"""Characters of a text up to which it is whole in a piece of a conversation."""

_MOST_ADDED = 40
_MOST_KNOWN = 4  # conversations


class SpokenMessage(MessageDocument, frozen=True):
    """A message in a piece: its name, its turn, since when models are sent something shorter, and whether it is cut."""

    name: str
    turn: int
    held_ms: int | None
    is_cut: bool


class TurnDocument(msgspec.Struct, frozen=True):
    """A turn: the name of its first message, its first words, and its messages from `start` up to `stop`."""

    number: int
    name: str
    title: str
    at_ms: int
    start: int
    stop: int


class DialogueDocument(msgspec.Struct, frozen=True):
    """A piece of a conversation: of its `count` messages those from `start` up to `stop`, and all of its turns.

    `branch` is its tip, `last` the call with which it ends. `is_newest`: it is the newest conversation of the session.
    """

    session: str
    branch: str
    is_newest: bool
    last: int
    count: int
    start: int
    stop: int
    turns: list[TurnDocument]
    items: list[SpokenMessage]


class AddedMessage(msgspec.Struct, frozen=True):
    """A message of a call; `place` is counted from 0 after the system prompt."""

    place: int
    role: str
    sender: str
    parts: list[MessagePart]


class AddedDocument(msgspec.Struct, frozen=True):
    """What call `n` added to the conversation, and the answer; `missing` says why the request cannot be read.

    `before` are the client's messages before those that are shown, `error` is what an upstream said in place of an
    answer.
    """

    session: str
    n: int
    before: int
    added: list[AddedMessage]
    answer: list[AddedMessage]
    error: str
    missing: str


async def load_request_messages(log: LogReader, row: ExchangeRow, form: Format) -> tuple[list[bytes], int]:
    """Load the raw messages of a request, and how many of them go before the conversation. Raises NotFound."""
    body = await load_body(log, row)
    raws = list_inputs(body, form)
    leading = count_preamble(form.read_items(body.content, body.items))
    if instructions := body.member(form.instructions_key):
        raws.insert(0, b'{"role":"system","content":%b}' % instructions)
        leading += 1
    return raws, leading


def list_answer(row: ExchangeRow, form: Format) -> list[bytes]:
    """Return the raw messages of the answer of an exchange; none if none was recorded."""
    return form.list_echoes(row.rounds[-1].answer) if row.rounds and row.rounds[-1].answer else []


async def load_added(log: LogReader, row: ExchangeRow) -> AddedDocument:
    """Load what a call added to its conversation, and its answer. What adds nothing shows its newest message."""
    error = row.rounds[-1].error if row.rounds else ""
    try:
        form = find_format(row)
    except NotFound as problem:
        return AddedDocument(row.session, row.n, 0, [], [], error, str(problem))
    messages: list[bytes] = []
    missing = ""
    try:
        raws, leading = await load_request_messages(log, row, form)
        messages = raws[leading:]
    except NotFound as problem:
        missing = str(problem)
    count = len(messages)
    start = min(max(row.base if row.tip else count, count - _MOST_ADDED), max(0, count - 1))
    added = list(_list_added(form, messages, start, row.opened_ms))
    answer = list(_list_added(form, [*messages, *list_answer(row, form)], count, row.opened_ms))
    return AddedDocument(row.session, row.n, start, added, answer, error, missing)


def _list_added(form: Format, raws: Sequence[bytes], start: int, at_ms: int) -> Iterator[AddedMessage]:
    """Yield the messages from a place on; results have the calls that they answer."""
    messages = {place: form.parse_message(raws[place]) for place in range(start, len(raws))}
    asked = _find_asked(form, raws, start, {id for each in messages.values() for id in each.results})
    for place, message in messages.items():
        results = _list_results(message, asked, at_ms)
        said = list_new_parts(raws[place], message, at_ms)
        asked |= {call.id: call for call in message.calls}
        yield AddedMessage(place, fit_text(message.role), fit_text(message.name), [*results, *said])


def _find_asked(form: Format, raws: Sequence[bytes], stop: int, wanted: set[str]) -> dict[str, ToolCall]:
    """Return the newest calls before a place with these ids. Messages are read only as far back as that takes."""
    found: dict[str, ToolCall] = {}
    for raw in reversed(raws[:stop]):
        if len(found) == len(wanted):
            break
        for call in form.parse_message(raw).calls:
            if call.id in wanted:
                found.setdefault(call.id, call)
    return found


def _list_results(message: Message, asked: Mapping[str, ToolCall], at_ms: int) -> Iterator[ToolPart]:
    is_single = len(message.outputs) != len(message.results)
    for i, id in enumerate(message.results):
        output = fit_text(message.text if is_single else message.outputs[i])
        status = judge_output(output, None, at_ms)
        if id in asked:
            yield describe_call(asked[id], output, status)
        else:
            yield ToolPart("", fit_text(id), None, output, status)


class Dialogues:
    """Reads conversations a piece at a time. The newest few stay in memory, since pages ask for piece after piece."""

    def __init__(self, log: MemoryReader) -> None:
        self._log = log
        # Whole conversations, each with the number of calls that its session had.
        self._known: LruCache[tuple[str, str], tuple[int, DialogueDocument]] = LruCache(_MOST_KNOWN)

    async def load_piece(
        self, prefix: str, branch: str, message: str, start: int | None, limit: int
    ) -> DialogueDocument:
        """Return messages from `start` on, or around the message of this name, or else the newest. Raises NotFound.

        With a name it is the newest conversation that the call is part of which brought the message.
        """
        session = await find_session(self._log, prefix)
        found = await self._find(session, branch)
        if message and not branch and not any(each.name == message for each in found.items):
            found = await self._find(session, await self._find_branch(session, message))
        if start is None:
            place = next((i for i, each in enumerate(found.items) if each.name == message), None)
            start = found.count - limit if place is None else place - limit // 4
        start = max(0, min(start, found.count - 1))
        items = [_cut(each) for each in found.items[start : start + limit]]
        return replace(found, start=start, stop=start + len(items), items=items)

    async def load_message(self, prefix: str, branch: str, id: str) -> MessageDocument:
        """Return a whole message of a conversation by its node. Raises NotFound."""
        found = await self._find(await find_session(self._log, prefix), branch)
        for each in found.items:
            if each.id == id:
                return each
        raise NotFound(f"the conversation has no message {id[:80]!r}")

    async def _find_branch(self, session: str, message: str) -> str:
        """Return the tip of the newest branch that has the call of a message, given by its name. Raises NotFound."""
        n = int(message.partition("-")[0])
        branches: Sequence[BranchRow] = await self._log.list_branches(session)
        for branch in reversed(branches):
            if any(each.n == n for each in branch.exchanges):
                return branch.tip.hex()
        raise NotFound(f"call {n} is no part of a conversation")

    async def _find(self, session: str, branch: str) -> DialogueDocument:
        """Return a whole conversation. One that has grown, was erased, or has no answer yet is read again."""
        row, known = await self._log.find_session(session), self._known.get((session, branch))
        if known is not None and known[0] == row.recorded and not row.erased_ms:
            return known[1]
        path = await load_path(self._log, session, branch)
        items, last = await self._read(path), path.row
        turns = list(_list_turns(path, items))
        count = len(items)
        found = DialogueDocument(session, last.tip.hex(), not branch, last.n, count, 0, count, turns, items)
        if last.rounds and last.rounds[-1].answer:
            self._known.put((session, branch), (row.recorded, found))
        return found

    async def _read(self, path: MemoryPath) -> list[SpokenMessage]:
        held, _ = follow_epochs(path.nodes, await self._log.list_epochs(path.row.session))
        numbers = [turn.number for turn in path.turns for _ in range(turn.start, turn.stop)]
        counts: dict[int | None, int] = {}
        items = []
        for each in await load_messages(self._log, path):
            counts[each.n] = counts.get(each.n, 0) + 1
            name = f"{each.n or 0}" if counts[each.n] == 1 else f"{each.n or 0}-{counts[each.n]}"
            number = numbers[each.place] if each.place < len(numbers) else 0
            items.append(
                SpokenMessage(**asdict(each), name=name, turn=number, held_ms=held.get(each.place), is_cut=False)
            )
        return items


def _list_turns(path: MemoryPath, items: Sequence[SpokenMessage]) -> Iterator[TurnDocument]:
    """Yield the turns that have a message to show, with places among those."""
    first: dict[int, int] = {}
    for i, each in enumerate(items):
        first.setdefault(each.turn, i)
    stops = [*[*first.values()][1:], len(items)]
    starts = {turn.number: turn.start for turn in path.turns}
    for (number, start), stop in zip(first.items(), stops, strict=True):
        text = path.messages[starts[number]].message.text if number in starts else ""
        yield TurnDocument(number, items[start].name, make_title([text]), items[start].at_ms, start, stop)


def _cut(message: SpokenMessage) -> SpokenMessage:
    """Return a message whose texts have at most `MOST_SHOWN` characters each."""
    parts = [_cut_part(part) for part in message.parts]
    return replace(message, parts=parts, is_cut=any(a is not b for a, b in zip(parts, message.parts, strict=True)))


def _cut_part(part: MessagePart) -> MessagePart:
    if isinstance(part, TextPart | ReasoningPart) and len(part.text) > MOST_SHOWN:
        return replace(part, text=part.text[:MOST_SHOWN])
    if isinstance(part, ToolPart):
        changes: dict[str, object] = {}
        if part.output is not None and len(part.output) > MOST_SHOWN:
            changes["output"] = part.output[:MOST_SHOWN]
        given = part.input if isinstance(part.input, str) else msgspec.json.encode(part.input).decode()
        if len(given) > MOST_SHOWN:
            changes["input"] = given[:MOST_SHOWN]
        return replace(part, **changes) if changes else part
    return part
