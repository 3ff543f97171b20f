"""A path of a session: its newest conversation, or that of a branch, its turns, and where each message comes from."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from proxy.context.conversation import CountedMessage
from proxy.context.memory.traces import MessageOrigin, Turn, list_traces, list_turns
from proxy.engine.call.response_reader import read_received
from proxy.engine.history.answers import is_answered
from proxy.engine.lineage.chain import Chain
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format, list_raws, load_chain
from proxy.engine.recorded.lookup import find_newest_call, pick_branch, read_back, read_branch_back, read_pages
from proxy.model.errors import Erased, NotFound
from proxy.model.exchange import CONVERSATION, SUCCESS, Usage
from proxy.model.lineage import compute_chain_root, extend_chain
from proxy.model.log import BranchRow, Call, ExchangeRow
from proxy.model.memory import RawTrace, StoredMemory
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody
from proxy.wire.format import Format


class MemoryReader(LogReader, Protocol):
    """The log as memory reads it."""

    async def load_memory(self, session: str) -> StoredMemory:
        """Return the memory records of a session and of those that it continues. Empty if nothing is known."""
        ...

    async def list_memory_requests(self) -> Sequence[str]:
        """Return the ids of the sessions whose newest order says that memory is to be made of them."""
        ...


_MOST_LOOKED_AT = 200
_MOST_READ = 64 * 1024 * 1024
_NOTHING = "this session has no conversation that can be read, so that nothing is remembered of it"


class MemoryPath(msgspec.Struct, frozen=True):
    """The messages of a conversation after its preamble, the newest response included, and their nodes.

    `row` is its newest exchange, whose request is `split`; `leading` are the raw messages of the preamble.
    """

    row: ExchangeRow
    split: SplitBody
    leading: Sequence[bytes]
    raws: Sequence[bytes]
    nodes: Sequence[bytes]
    messages: Sequence[CountedMessage]
    origins: Sequence[MessageOrigin]
    turns: tuple[Turn, ...]
    calls: Mapping[str, Call]  # that led to it, by the ids of their exchanges
    usages: Mapping[str, Usage]  # of the answers to calls of the session, by the same

    def list_traces(self) -> tuple[RawTrace, ...]:
        """Return the traces of the conversation."""
        return list_traces(self.messages, self.origins)

    def list_tail(self, turns: int) -> tuple[Turn, ...]:
        """Return the raw tail: so many turns before the current one, which is the last."""
        return self.turns[-1 - turns : -1] if turns > 0 else ()


async def load_path(log: LogReader, session: str, branch: str = "", *, is_whole: bool = False) -> MemoryPath:
    """Load the newest conversation of a session that can be read, or that of the branch with this tip.

    If it `is_whole`, its newest call has a complete answer. Raises NotFound.
    """
    upstream = (await log.find_session(session)).upstream
    branches = await log.list_branches(session)
    chosen = pick_branch(branches, branch) if branch else None
    rows = read_back(log, session) if chosen is None else read_branch_back(log, session, chosen)
    row, split, chain = await _find_readable(
        log, rows, upstream, b"" if chosen is None else chosen.tip, is_whole=is_whole
    )
    form = find_format(row)
    (whole,) = await log.list_exchanges(session, row.n - 1, 1)
    answer = await _load_answer(log, whole, form)
    echoes = form.list_echoes(answer) if answer else []
    every = list_raws(split)
    raws = [*every[chain.preamble.count :], *echoes]
    last = chain.nodes[-1] if chain.nodes else compute_chain_root(upstream)
    nodes = [*chain.nodes, *extend_chain(last, [form.reader.read_item(raw).form for raw in echoes])]
    messages = await asyncio.to_thread(lambda: [_read_message(form, raw) for raw in raws])
    calls = _list_calls(branches, row)
    listed = [each async for page in read_pages(log, session) for each in page]
    opened = {each.n: each.opened_ms for each in listed}
    usages = {each.id: used for each in listed if each.rounds and (used := each.rounds[-1].usage) is not None}
    return MemoryPath(
        whole,
        split,
        every[: chain.preamble.count],
        raws,
        nodes,
        messages,
        _find_origins(messages, nodes, calls, opened),
        list_turns(messages),
        {call.exchange: call for call in calls},
        usages,
    )


def _read_message(form: Format, raw: bytes) -> CountedMessage:
    decoded = form.decode_message(raw)
    return CountedMessage(decoded.message, decoded.structure, 0)


async def _load_answer(log: LogReader, row: ExchangeRow, form: Format) -> bytes:
    """Return what the response to a call says, also if it is recorded and not read yet; empty if there is none."""
    last = row.rounds[-1] if row.rounds else None
    if last is None or last.answer:
        return last.answer if last is not None else b""
    if last.completeness != "complete" or last.status not in SUCCESS or len(row.rounds) > 1:
        return b""
    try:
        return read_received(form, last.headers, await log.load_received(row.id, last.k), _MOST_READ)[1]
    except (NotFound, ValueError):
        return b""


async def _find_readable(
    log: LogReader, rows: AsyncIterator[ExchangeRow], upstream: str, tip: bytes, *, is_whole: bool
) -> tuple[ExchangeRow, SplitBody, Chain]:
    """Return the newest exchange that is part of a conversation and can be read; with a tip, that ended at it.

    `is_whole` is as in `load_path`. Raises NotFound.
    """
    looked_at, gone = 0, None
    async for row in rows:
        looked_at += 1
        if looked_at > _MOST_LOOKED_AT:
            break
        if row.wire not in FORMATS or row.kind not in CONVERSATION or not row.tip or row.tip != (tip or row.tip):
            continue
        if row.is_side and not tip:
            continue
        if is_whole and not await is_answered(log, row, _MOST_READ):
            continue
        try:
            return row, *await load_chain(log, row, upstream)
        except Erased as error:
            gone = gone or error
        except NotFound:
            continue
    raise gone or NotFound(_NOTHING)


async def find_answered(log: LogReader, session: str) -> ExchangeRow:
    """Return the newest call of a conversation that has a complete answer, else the newest. Raises NotFound."""
    looked_at, newest = 0, None
    async for row in read_back(log, session):
        looked_at += 1
        if looked_at > _MOST_LOOKED_AT:
            break
        if row.wire in FORMATS and row.kind in CONVERSATION and row.tip and row.rounds and not row.is_side:
            newest = newest or row
            if await is_answered(log, row, _MOST_READ):
                return row
    return newest or await find_newest_call(log, session)


def _list_calls(branches: Sequence[BranchRow], row: ExchangeRow) -> Sequence[Call]:
    """Return the calls that led to an exchange, oldest first."""
    for branch in branches:
        calls = branch.exchanges
        if any(call.n == row.n for call in calls):
            return [call for call in calls if call.n <= row.n]
    return [Call(row.n, row.id, row.depth)]


def _find_origins(
    messages: Sequence[CountedMessage], nodes: Sequence[bytes], calls: Sequence[Call], opened: Mapping[int, int]
) -> list[MessageOrigin]:
    """Return where each message comes from: the first request that had it or, if it answered one, that request."""
    found: list[MessageOrigin] = []
    before: Call | None = None  # the newest call that ended where the messages found so far do
    for call in calls:
        if call.depth < len(found):
            continue  # an earlier request was sent again
        while before is not None and len(found) < call.depth and messages[len(found)].structure.role == "assistant":
            found.append(_make_origin(before, nodes[len(found)], opened))
        found += [_make_origin(call, nodes[place], opened) for place in range(len(found), call.depth)]
        before = call
    answer = range(len(found), len(messages))
    return found + [_make_origin(calls[-1], nodes[place], opened) for place in answer]


def _make_origin(call: Call, node: bytes, opened: Mapping[int, int]) -> MessageOrigin:
    return MessageOrigin(opened.get(call.n, 0) / 1000, call.exchange, node)
