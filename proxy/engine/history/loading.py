"""The newest complete path of a session, from the log."""

from typing import Protocol

from proxy.engine.history.answers import load_held_answer
from proxy.engine.history.path import HeldPath, TailMessage, begin_body, list_waiting
from proxy.engine.ports import HeldCalls, LogReader
from proxy.engine.recorded.conversation import list_raws, load_chain
from proxy.engine.recorded.lookup import read_back
from proxy.model.epoch import StoredContext
from proxy.model.exchange import CONVERSATION, ReceivedRow
from proxy.model.log import ArchiveHealth, ExchangeRow
from proxy.wire import FORMATS


class HistoryLog(LogReader, HeldCalls, Protocol):
    """The log, as far as histories need it."""

    @property
    def health(self) -> ArchiveHealth:
        """The current state of the log."""
        ...


async def load_path(log: HistoryLog, session: str, *, cap: int, scan: int) -> tuple[HeldPath | None, list[str]]:
    """Load the newest complete path of a session, None if it has none, and the older idempotency keys, newest last.

    Raises NotFound if there is no such session, or if its newest complete call was erased or cannot be read.
    """
    context = await log.load_context(session)
    rows = {row.exchange: row for row in await log.list_held(session)}
    async for row in read_back(log, session):
        if not _may_be_complete(row):
            continue
        path = await _load(log, row, context, rows.get(row.id), cap=cap, scan=scan)
        if path is not None:
            older = [each for each in reversed(rows.values()) if each.key and _order(each.exchange) < _order(row.id)]
            return path, [each.key for each in older]
    return None, []


def _order(exchange: str) -> tuple[int, str]:
    """Return what ids of exchanges are sorted by: they sort by time."""
    return len(exchange), exchange


def _may_be_complete(row: ExchangeRow) -> bool:
    is_part = row.kind in CONVERSATION and row.wire in FORMATS and bool(row.tip) and not row.is_side
    return is_part and bool(row.rounds) and row.rounds[-1].completeness == "complete"


async def _load(
    log: LogReader, row: ExchangeRow, context: StoredContext, held: ReceivedRow | None, *, cap: int, scan: int
) -> HeldPath | None:
    form = FORMATS[row.wire]
    rounds = next((len(each.rounds) for each in context.recalled if each.exchange == row.id), 0)
    split, chain = await load_chain(log, row, (await log.find_session(row.session)).upstream)
    is_stored = split.member("store") != b"false"
    answer = await load_held_answer(log, form, row, cap, rounds=rounds, is_stored=is_stored)
    if answer is None:
        return None
    raws, head = list_raws(split), begin_body(form)
    leading = chain.preamble.count
    first = len(head) + sum([len(raw) + 1 for raw in raws[:leading]])
    content = head + b",".join(raws)
    noted = {each.node: each.kind for each in context.sources}
    kinds = [noted.get(node, "") for node in chain.nodes[-scan:]]
    tail = tuple([TailMessage(raw, kind) for raw, kind in zip(raws[leading:][-scan:], kinds, strict=True)])
    waiting = list_waiting((*chain.items, *map(form.reader.read_item, answer.messages)))
    last = row.rounds[-1].timings
    return HeldPath(
        row.wire,
        row.id,
        content,
        first,
        len(content),
        answer.messages,
        split.member(form.instructions_key) if form.instructions_key else b"",
        waiting,
        tail,
        key=held.key if held is not None else "",
        digest=held.digest if held is not None else b"",
        ended_ms=row.opened_ms + (int(last.total_ms) if last is not None else 0),
    )
