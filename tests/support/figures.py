"""Figures of sessions, worked out call by call from what a log lists: slow, and what the store's sums must equal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec import structs

from proxy.context.epoch_decision import HOLDOUT
from proxy.context.pricing import estimate_own
from proxy.model.epoch import Plan
from proxy.model.exchange import Usage
from proxy.model.figures import TIERS, Newest, RoundFigures, SessionHead, Tally
from proxy.model.log import ExchangeRow, RoundRow

_TOOLS = {"tool_calls", "function_call", "tool_use", ""}
_CALLS = (b'"function_call"', b'"custom_tool_call"', b'"local_shell_call"', b'"shell_call"', b'"computer_call"')


@dataclass(frozen=True)
class Worked:
    """A round, and what its figures leave out."""

    figures: RoundFigures
    is_end: bool
    is_held: bool


def work_out(row: ExchangeRow, numbers: dict[str, int]) -> list[Worked]:
    """The rounds of a call; `numbers` are those of epochs by id."""
    rounds: Sequence[RoundRow | None] = row.rounds or (None,)
    return [_work_out(row, each, numbers, is_last=each is rounds[-1]) for each in rounds]


def _work_out(row: ExchangeRow, each: RoundRow | None, numbers: dict[str, int], *, is_last: bool) -> Worked:
    usage, plan = (each and each.usage) or Usage(), each.plan if each else None
    known = plan or Plan(row.id, 0, "", "original")
    own = estimate_own(known, usage)
    client = known.tokens_client
    if own is not None:
        client = own.size
    elif client is not None and usage.input and known.tokens_upstream:
        client = int(client * (usage.input / known.tokens_upstream) + 0.5)
    elif not (client is not None and usage.input is None) and (plan is None or plan.rung == "original"):
        client = usage.input
    is_over = each is not None and each.timings is not None
    is_end = bool(each and each.finish not in _TOOLS)
    if is_end and each and row.wire == "responses":
        is_end = not any(name in each.answer for name in _CALLS)
    figures = RoundFigures(
        n=row.n,
        k=each.k if each else -1,
        at_ms=row.opened_ms,
        kind=row.kind,
        mode=row.mode,
        upstream=each.upstream if each else "",
        model=row.model,
        view=plan.view if plan else "",
        rung=plan.rung if plan else "",
        epoch=numbers.get(known.epoch, 0),
        status=each.status if each and is_over else None,
        completeness=each.completeness if each else "",
        is_side=row.is_side,
        is_last=is_last,
        input=usage.input,
        output=usage.output,
        read=usage.cached,
        written=usage.written,
        client=client,
        sent=known.tokens_upstream,
        usable=known.usable,
        saving=known.saving if own is None and known.rung != "original" else None,
        own_input=own.own.input if own else None,
        own_read=own.own.cached if own else None,
        own_written=own.own.written if own else None,
        paid_read=own.paid.cached if own else None,
        first_byte_ms=each.timings.first_byte_ms if each and each.timings else None,
        total_ms=each.timings.total_ms if each and each.timings else None,
        overhead_ms=each.timings.overhead_ms if each and each.timings else None,
    )
    return Worked(figures, is_end, known.reason == HOLDOUT)


class DerivedFigures:
    """The figures of a log, from its other methods."""

    async def work_out(self, session: str) -> list[Worked]:
        log: Any = self
        numbers = {epoch.id: n for n, epoch in enumerate(await log.list_epochs(session), 1)}
        rows = await log.list_exchanges(session, 0, 1_000_000)
        return [each for row in rows for each in work_out(row, numbers)]

    async def load_rounds(self, session: str, after: int = 0, limit: int = 10_000) -> Sequence[RoundFigures]:
        found = await self.work_out(session)
        return [each.figures for each in found if after < each.figures.n <= after + limit]

    async def load_newest(self, sessions: Sequence[str]) -> Sequence[Newest]:
        log: Any = self
        rows = []
        for session in sorted(set(sessions)):
            if found := await self.work_out(session):
                epochs = [each for each in await log.list_epochs(session) if not each.is_reversion]
                count = len(await log.list_summaries(session))
                rows.append(structs.replace(_find_newest(session, found), epochs=len(epochs), summaries=count))
        return rows

    async def load_tallies(
        self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = TIERS
    ) -> Sequence[Tally]:
        log: Any = self
        if sessions is None:
            sessions = await log.list_ids("", 1_000_000)
        return [tally for name in sorted(set(sessions)) for tally in _tally(name, await self.work_out(name), tiers)]

    async def count_later(self, session: str) -> int:
        rows = [each.figures for each in await self.work_out(session)]
        last = max((row.n for row in rows if row.rung == "plan" and _is_managed(row)), default=10**9)
        return sum(
            row.n > last and row.is_last and row.k >= 0 and row.kind != "auxiliary" and _is_managed(row) for row in rows
        )

    async def load_heads(self, sessions: Sequence[str]) -> Sequence[SessionHead]:
        log: Any = self
        heads = []
        for session in sorted(set(sessions)):
            rows = [row for row in await log.list_exchanges(session, 0, 1_000_000) if row.kind != "auxiliary"]
            own = [row for row in rows if row.kind == "managed" and row.wire and row.relation and not row.is_side]
            for row in (own or rows)[:1]:
                heads.append(SessionHead(session, row.id, row.n, row.wire, row.headers, row.is_capped))
        return heads


def _find_newest(session: str, found: Sequence[Worked]) -> Newest:
    rows = [each.figures for each in found if each.figures.is_last]
    own = [row for row in rows if row.kind != "auxiliary"]
    last = [each for each in found if each.figures.is_last and _is_main(each.figures)]
    main = [each.figures for each in last]
    sized = [row for row in main if row.input is not None or row.sent is not None]
    rounds = [each.figures for each in found if sized and each.figures.n == sized[-1].n]
    told = next((row.client for row in reversed(rounds) if row.client), 0)
    return Newest(
        session,
        mode=own[-1].mode if own else "",
        view=next((row.view for row in reversed(main) if row.view), ""),
        client=(told if sized[-1].client == 0 else _first(sized[-1].client, sized[-1].input, sized[-1].sent))
        if sized
        else None,
        sent=_first(sized[-1].input, sized[-1].sent) if sized else None,
        usable=next((row.usable for row in reversed(main) if row.usable), 0),
        is_ended=last[-1].is_end if last else True,
        opened_ms=next((row.at_ms for row in reversed(rows) if row.status is None), None),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _is_main(row: RoundFigures) -> bool:
    return row.kind == "managed" and not row.is_side


def _is_managed(row: RoundFigures) -> bool:
    return row.mode == "manage" and row.kind != "passthrough"


def _is_failed(row: RoundFigures) -> bool:
    if not row.is_last or row.status is None or row.kind == "auxiliary":
        return False
    return row.status >= 400 or not row.status or row.completeness in ("failed", "truncated")


def _size(row: RoundFigures) -> int | None:
    if row.kind == "auxiliary":
        return None
    return row.sent if row.input is None and 200 <= (row.status or 0) < 300 else row.input


def _tally(session: str, found: Iterable[Worked], tiers: Sequence[int]) -> list[Tally]:
    def key(each: Worked) -> tuple[Any, ...]:
        row = each.figures
        is_ours = row.kind == "auxiliary" and row.input is not None
        is_priced = row.kind != "auxiliary" and row.input is not None and _is_managed(row)
        is_own = is_priced and row.own_input is not None
        is_estimate = is_priced and row.own_input is None and row.saving is not None
        levels = [sum(size > tier for tier in tiers) for size in (row.input or 0, row.own_input or 0)]
        named = row.at_ms // 86_400_000, row.upstream, row.model
        return (*named, is_ours, is_own, is_estimate, row.input is not None, *levels)

    return [_add_up(session, name, list(rows)) for name, rows in groupby(sorted(found, key=key), key=key)]


def _add_up(session: str, name: tuple[Any, ...], found: Sequence[Worked]) -> Tally:
    day, upstream, model, is_ours, is_own, is_estimate, *_ = name
    rows = [each.figures for each in found]
    sizes = [(row, size) for row in rows if (size := _size(row)) is not None]
    written = sum(row.written or 0 for row in rows)
    output = sum(row.output or 0 for row in rows)
    own_output = sum(row.output or 0 for row in rows if row.is_last)
    fresh = sum(max(0, (row.input or 0) - (row.read or 0) - (row.written or 0)) for row in rows)
    own_fresh = sum(max(0, (row.own_input or 0) - (row.own_read or 0) - (row.own_written or 0)) for row in rows)
    paid_fresh = sum(max(0, (row.input or 0) - (row.paid_read or 0) - (row.written or 0)) for row in rows)
    reads, writes = sum(row.own_read or 0 for row in rows), sum(row.own_written or 0 for row in rows)
    read = sum(row.read or 0 for row in rows)
    return Tally(
        session,
        day,
        upstream,
        model,
        is_ours,
        Usage(fresh, output, read, written),
        max(row.input or 0 for row in rows),
        own=Usage(own_fresh, own_output, reads, writes) if is_own else None,
        paid=Usage(paid_fresh, output, sum(row.paid_read or 0 for row in rows), written) if is_own else None,
        largest_own=max(row.own_input or 0 for row in rows) if is_own else 0,
        saving=sum(row.saving or 0.0 for row in rows) if is_estimate else None,
        is_known=rows[0].input is not None,
        rounds=len(rows),
        calls=sum(row.is_last and row.kind != "auxiliary" for row in rows),
        errors=sum(map(_is_failed, rows)),
        ends=sum(each.is_end and each.figures.is_last and _is_main(each.figures) for each in found),
        plans=sum(row.rung == "plan" and _is_managed(row) for row in rows),
        held=sum(each.is_held for each in found),
        counted=len(sizes),
        client=sum(size if row.client is None else row.client for row, size in sizes),
        sent=sum(size for _, size in sizes),
        told=sum(row.input or 0 for row in rows if row.kind != "auxiliary" and row.read is not None),
        read=0 if is_ours else read,
        output=0 if is_ours else output,
        ended_ms=max(int(row.at_ms + row.total_ms) if row.total_ms is not None else 0 for row in rows),
    )


@dataclass(frozen=True)
class Bill:
    """A round as a test states it: its usage, and what follows from its plan."""

    seq: int
    session: str
    kind: str
    opened_ms: int
    upstream: str
    model: str
    usage: Usage
    rung: Any = ""
    reason: str = ""
    tokens_client: int | None = None
    usable: int = 0
    tokens_upstream: int | None = None
    saving: float | None = None


def work_out_bills(bills: Iterable[Bill], session: str, after: int = 0, limit: int = 10_000) -> list[RoundFigures]:
    """The rounds of a session's calls after number `after`."""
    shown = range(after + 1, after + limit + 1)
    return [_work_out_bill(bill).figures for bill in bills if bill.session == session and bill.seq in shown]


def tally_bills(bills: Iterable[Bill], sessions: Sequence[str] | None = None) -> list[Tally]:
    """The sums over bills, as if each call had one round."""
    found: dict[str, list[Worked]] = {}
    for bill in bills:
        if sessions is None or bill.session in sessions:
            found.setdefault(bill.session, []).append(_work_out_bill(bill))
    return [tally for session, worked in found.items() for tally in _tally(session, worked, TIERS)]


def _work_out_bill(bill: Bill) -> Worked:
    plan = Plan("", 0, bill.model, bill.rung or "epoch", tokens_client=bill.tokens_client, saving=bill.saving)
    own = estimate_own(structs.replace(plan, tokens_upstream=bill.tokens_upstream), bill.usage)
    figures = RoundFigures(
        n=bill.seq,
        k=0,
        at_ms=bill.opened_ms,
        kind=bill.kind,
        mode="manage",
        upstream=bill.upstream,
        model=bill.model,
        view=bill.model,
        rung=bill.rung,
        epoch=0,
        status=200,
        completeness="complete",
        is_side=False,
        is_last=True,
        input=bill.usage.input,
        output=bill.usage.output,
        read=bill.usage.cached,
        written=bill.usage.written,
        client=(bill.usage.input if bill.rung in ("", "original") else None) or bill.tokens_client,
        sent=bill.tokens_upstream,
        usable=bill.usable,
        saving=bill.saving if own is None and bill.rung != "original" else None,
        own_input=own.own.input if own else None,
        own_read=own.own.cached if own else None,
        own_written=own.own.written if own else None,
        paid_read=own.paid.cached if own else None,
        first_byte_ms=None,
        total_ms=None,
        overhead_ms=None,
    )
    return Worked(figures, False, bill.reason == HOLDOUT)
