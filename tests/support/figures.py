"""Figures of sessions, worked out call by call from what a log lists: slow, and what the store's sums must equal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec import structs

from proxy.context.epoch_decision import HELD_OUT
from proxy.context.pricing import estimate_own
from proxy.model.epoch import Plan
from proxy.model.exchange import Usage
from proxy.model.figures import Charge, RoundFigures, SessionFigures, SessionHead
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
    if client is not None and usage.input and known.tokens_upstream:
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
        saving=known.saving if own is None else None,
        own_input=own.own.input if own else None,
        own_read=own.own.cached if own else None,
        own_written=own.own.written if own else None,
        paid_read=own.paid.cached if own else None,
        first_byte_ms=each.timings.first_byte_ms if each and each.timings else None,
        total_ms=each.timings.total_ms if each and each.timings else None,
    )
    return Worked(figures, is_end, known.reason == HELD_OUT)


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

    async def load_figures(self, sessions: Sequence[str]) -> Sequence[SessionFigures]:
        log: Any = self
        rows = []
        for session in sorted(set(sessions)):
            if found := await self.work_out(session):
                epochs = [each for each in await log.list_epochs(session) if not each.is_reversion]
                count = len(await log.list_summaries(session))
                rows.append(structs.replace(_sum_up(session, found), epochs=len(epochs), summaries=count))
        return rows

    async def sum_charges(self, sessions: Sequence[str] | None = None, tiers: Sequence[int] = ()) -> Sequence[Charge]:
        log: Any = self
        if sessions is None:
            sessions = await log.list_ids("", 1_000_000)
        return [charge for name in sorted(set(sessions)) for charge in _charge(name, await self.work_out(name), tiers)]

    async def load_heads(self, sessions: Sequence[str]) -> Sequence[SessionHead]:
        log: Any = self
        heads = []
        for session in sorted(set(sessions)):
            rows = [row for row in await log.list_exchanges(session, 0, 1_000_000) if row.kind != "auxiliary"]
            own = [row for row in rows if row.kind == "managed" and row.wire and row.relation and not row.is_side]
            for row in (own or rows)[:1]:
                heads.append(SessionHead(session, row.id, row.n, row.wire, row.headers, row.is_capped))
        return heads


def _sum_up(session: str, found: Sequence[Worked]) -> SessionFigures:
    rows = [each.figures for each in found]
    own = [row for row in rows if row.kind != "auxiliary"]
    used = [(row, size) for row in own if (size := _size(row)) is not None]
    main = [each for each in found if each.figures.kind == "managed" and not each.figures.is_side]
    last = [each for each in main if each.figures.is_last]
    sized = [each.figures for each in last if each.figures.input is not None or each.figures.sent is not None]
    failed = [row for row in own if row.is_last and row.status is not None]
    failed = [r for r in failed if (r.status or 0) >= 400 or not r.status or r.completeness in ("failed", "truncated")]
    planned = [row.n for row in rows if row.rung == "plan" and _is_managed(row)]
    window = sized[-1] if sized else None
    return SessionFigures(
        session=session,
        mode=own[-1].mode if own else "",
        errors=len(failed),
        ends=sum(each.is_end for each in last),
        is_ended=last[-1].is_end if last else True,
        opened_ms=max((row.at_ms for row in rows if row.status is None and row.is_last), default=None),
        ended_ms=max((int(row.at_ms + row.total_ms) for row in rows if row.total_ms is not None), default=None),
        client=sum(size if row.client is None else row.client for row, size in used) if used else None,
        sent=sum(size for _, size in used) if used else None,
        output=_sum(row.output for row, _ in used),
        read=sum(row.read or 0 for row, _ in used),
        told=sum(row.input or 0 for row, _ in used if row.read is not None),
        view=next((each.figures.view for each in reversed(last) if each.figures.view), ""),
        window_client=_first(window.client, window.input, window.sent) if window else None,
        window_sent=_first(window.input, window.sent) if window else None,
        usable=next((each.figures.usable for each in reversed(last) if each.figures.usable), 0),
        plans=len(set(planned)),
        later=sum(
            row.n > max(planned) and row.is_last and row.k >= 0 and row.kind != "auxiliary" and _is_managed(row)
            for row in rows
        )
        if planned
        else 0,
    )


def _size(row: RoundFigures) -> int | None:
    return row.sent if row.input is None and 200 <= (row.status or 0) < 300 else row.input


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _is_managed(row: RoundFigures) -> bool:
    return row.mode == "manage" and row.kind != "passthrough"


def _charge(session: str, found: Iterable[Worked], tiers: Sequence[int]) -> list[Charge]:
    def key(row: RoundFigures) -> tuple[Any, ...]:
        is_priced = row.kind != "auxiliary" and _is_managed(row)
        is_own = is_priced and row.own_input is not None
        is_estimate = is_priced and row.own_input is None and row.saving is not None
        levels = [sum(size > tier for tier in tiers) for size in (row.input or 0, row.own_input or 0)]
        day = row.at_ms // 86_400_000
        return (day, row.upstream, row.model, row.kind == "auxiliary", is_own, is_estimate, *levels)

    used = sorted((each.figures for each in found if each.figures.input is not None), key=key)
    return [_add_up(session, name, list(rows)) for name, rows in groupby(used, key=key)]


def _add_up(session: str, name: tuple[Any, ...], rows: Sequence[RoundFigures]) -> Charge:
    day, upstream, model, is_auxiliary, is_own, is_estimate, *_ = name
    written = sum(row.written or 0 for row in rows)
    output = sum(row.output or 0 for row in rows)
    fresh = sum(max(0, (row.input or 0) - (row.read or 0) - (row.written or 0)) for row in rows)
    charge = Charge(
        session,
        day,
        upstream,
        model,
        is_auxiliary,
        Usage(fresh, output, sum(row.read or 0 for row in rows), written),
        max(row.input or 0 for row in rows),
    )
    if is_estimate:
        return structs.replace(charge, saving=sum(row.saving or 0.0 for row in rows))
    if not is_own:
        return charge
    own_fresh = sum(max(0, (row.own_input or 0) - (row.own_read or 0) - (row.own_written or 0)) for row in rows)
    paid_fresh = sum(max(0, (row.input or 0) - (row.paid_read or 0) - (row.written or 0)) for row in rows)
    reads, writes = sum(row.own_read or 0 for row in rows), sum(row.own_written or 0 for row in rows)
    return structs.replace(
        charge,
        own=Usage(own_fresh, output, reads, writes),
        paid=Usage(paid_fresh, output, sum(row.paid_read or 0 for row in rows), written),
        largest_own=max(row.own_input or 0 for row in rows),
    )
