"""`palimpsest cache`, `savings` and `statusline`: what caches and managing came to in money, also beside a server."""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import typer

from proxy.cli.formatting import format_amount, format_cost, format_count, show
from proxy.cli.inspection.naming import read_session
from proxy.cli.inspection.sessions import ID_DIGITS, tell_saving
from proxy.cli.services import READS, Invocation, SessionArgument, offers
from proxy.cli.terminal import (
    PLAIN,
    Cell,
    Column,
    Screen,
    Styled,
    format_local,
    format_money,
    format_share,
    format_tokens,
    make_plain,
    paint_money,
    render_table,
    shorten,
    wrap,
)
from proxy.config import Settings
from proxy.context.pricing import Cost
from proxy.engine.ports import ALL_SESSIONS, LogReader
from proxy.model.errors import ProxyError
from proxy.model.log import ExchangeRow, Selection
from proxy.read.cache import CacheReport, load_cache
from proxy.read.savings import Arm, PartSaving, Saving, SavingsReport, SavingsTotal, load_saving, load_savings
from proxy.read.shadow import Agreement, ShadowReport, Share

_STATUS_CALLS = 50
_LONGEST_STATUS = 80
_MILLION = 1e6
_CALLS = (
    Column("CALL", is_number=True),
    Column("TIME", is_optional=True),
    Column("INPUT", is_number=True),
    Column("READ", is_number=True),
    Column("WRITTEN", is_number=True, is_optional=True),
    Column("EXPECTED", is_number=True),
    Column("MISSED", is_number=True),
    Column("COST", is_number=True),
    Column("WHY", least=24),
)
_CAUSES = (
    Column("CAUSE"),
    Column("CALLS", is_number=True),
    Column("MISSED", is_number=True),
    Column("COST", is_number=True),
)
_ARMS = (Column(""), Column("SESSIONS", is_number=True), Column("COST", is_number=True))
_PARTS = (
    Column("SAVED", is_number=True),
    Column("SHARE", is_number=True),
    Column("SPENT", is_number=True),
    Column("CALLS", is_number=True),
)
_CHECKS = (
    Column("SAME ANSWER", is_number=True),
    Column("SAME", is_number=True),
    Column("OTHER ARGUMENTS", is_number=True),
    Column("OTHER TEXT", is_number=True),
    Column("OTHER TOOL", is_number=True),
    Column("NOT COMPARED", is_number=True),
)
_MOST_GROUPS = 20
_LOSSES = (Column("SESSION"), Column("LOST", is_number=True), Column("WHY", least=24))
_UNITS = {
    "money": "Cost is in money for a million tokens of the client's requests.",
    "tokens": "Cost is in tokens of uncached input for a token of the client's requests.",
}


@offers("as_json", *READS)
def cache(
    called: Invocation,
    session: SessionArgument,
    is_whole: Annotated[bool, typer.Option("--all", help="List the calls that missed nothing, too.")] = False,
) -> None:
    """Tell why calls missed the provider's cache."""

    async def query(log: LogReader, settings: Settings, id: str) -> CacheReport:
        return await load_cache(log, id, await called.services.load_savings_inputs(settings))

    show(called, read_session(called, session, query), partial(format_cache, is_whole=is_whole))


def format_cache(found: CacheReport, screen: Screen = PLAIN, *, is_whole: bool = False) -> str:
    """Format what calls read of the cache: in a sentence, then by cause, then the calls that missed some, or all."""
    if not found.calls:
        return "No call of this session has a usage that the provider reported."
    parts = [wrap(_tell_cache(found), screen.width)]
    if found.totals:
        rows = [
            (cause, each.calls, each.missed, format_cost(each.cost, each.money, "tok"))
            for cause, each in found.totals.items()
        ]
        parts.append(render_table(_CAUSES, rows, screen))
    listed = [call for call in found.calls if is_whole or call.cause]
    lines: list[Sequence[Cell]] = []
    for call in listed:
        counts = (call.input, call.read, call.written, call.expected, call.missed)
        why = Styled(call.explanation, "warn" if call.cause else "dim")
        lines.append(
            (
                call.n,
                format_local(call.opened_ms)[11:19],
                *counts,
                format_cost(call.cost, call.money, "tok") if call.missed else "",
                why,
            )
        )
    if lines:
        parts.append(render_table(_CALLS, lines, screen))
    if len(listed) < len(found.calls):
        rest = format_count(len(found.calls) - len(listed), "call")
        parts.append(f"{rest} missed nothing{', or not enough to count' if lines else ''}; --all lists them.")
    return "\n\n".join(parts)


def _tell_cache(found: CacheReport) -> str:
    told = [(call.read, call.input) for call in found.calls if call.read is not None and call.input is not None]
    whole = sum(size for _, size in told)
    if whole:
        said = f"{format_share(sum(read for read, _ in told) / whole)} of the input was read from the cache"
    else:
        said = "The provider does not say what it read from its cache"
    if missed := sum(each.missed for each in found.totals.values()):
        cost = sum((Cost(each.cost, each.money) for each in found.totals.values()), start=Cost())
        calls = format_count(sum(each.calls for each in found.totals.values()), "call")
        price = format_cost(cost.tokens, cost.money)
        said += f"; {calls} missed {format_tokens(missed)} tokens that were expected there, which cost {price}"
    else:
        said += "; nothing was missed"
    return f"{said}." if found.saved is None else f"{said}. {tell_saving(found.saved)}"


@offers("as_json", *READS)
def savings(called: Invocation) -> None:
    """Tell what managing saved or lost."""

    async def query(log: LogReader, settings: Settings) -> SavingsReport:
        return await load_savings(log, await called.services.load_savings_inputs(settings))

    show(called, called.read(query), format_savings)


def format_savings(found: SavingsReport, screen: Screen = PLAIN) -> str:
    """Format the estimate in all, by model and by day, then the comparison: both arms, and what was not counted."""
    parts = [] if found.estimate is None else [wrap(_tell_total(found.estimate), screen.width)]
    if found.models:
        names = [(f"{each.model} at {each.upstream}", each) for each in found.models]
        parts.append(_format_parts("MODEL", names, screen))
    if found.days:
        parts.append(_format_parts("DAY (UTC)", [(each.date, each) for each in found.days], screen))
    if found.losses:
        rows = [(each.session[:ID_DIGITS], paint_money(each.money), each.reason) for each in found.losses]
        parts.append(render_table(_LOSSES, rows, screen))
    parts.append(wrap(_tell_comparison(found), screen.width))
    if found.since_ms is not None:
        arms = (("managed", found.managed), ("only observed", found.held_out))
        rows_of_arms = [(name, arm.sessions, _format_arm(arm, found)) for name, arm in arms]
        notes = [wrap(each, screen.width) for each in _list_notes(found)]
        parts += [render_table(_ARMS, rows_of_arms, screen), "\n".join(notes)]
    if isinstance(found.shadow, ShadowReport):
        parts += _format_shadow(found.shadow, screen)
    return "\n\n".join(parts)


def _format_shadow(found: ShadowReport, screen: Screen) -> Iterator[str]:
    """Yield what shadow checks found: in a sentence, by session, model and age, and what is not checked."""
    total, told = found.total, "Nothing could be compared"
    if total.agreement is not None:
        told = f"The client's own request had the same answer in {_format_interval(total.agreement)} of the calls"
        told += f" that were checked, and called no other tool in {_format_interval(total.same_tool)}"
    spent = format_amount(total.tokens, total.money)
    yield wrap(f"{told}. Sending {format_count(_count_checks(total), 'own request')} cost {spent}.", screen.width)
    for heading, groups in (("SESSION", found.sessions), ("MODEL", found.models), ("CUT BEFORE THE LAST", found.ages)):
        shown = [(each.name[:ID_DIGITS] if groups is found.sessions else each.name, each) for each in groups]
        rows = [
            (name, _format_interval(each.agreement), each.same, each.arguments, each.text, each.other, each.uncompared)
            for name, each in shown[:_MOST_GROUPS]
        ]
        yield render_table((Column(heading, least=12), *_CHECKS), rows, screen)
    if found.bound:
        names = ", ".join(found.bound)
        told = f"{names} may bind signed reasoning to the prompt: requests with such reasoning are checked only with"
        yield wrap(f"{told} shadow.bound_reasoning.", screen.width)


def _count_checks(found: Agreement) -> int:
    return found.same + found.arguments + found.text + found.other + found.uncompared


def _format_interval(found: Share | None) -> str | None:
    if found is None:
        return None
    return f"{format_share(found.share)} ({format_share(found.low)} to {format_share(found.high)})"


def _format_parts(heading: str, named: Sequence[tuple[str, PartSaving]], screen: Screen) -> str:
    columns = (Column(heading, least=12), *_PARTS)
    rows = [
        (
            name,
            None if each.tokens is None else paint_money(each.money),
            format_share(each.share),
            format_money(each.spent_money),
            each.calls,
        )
        for name, each in named
    ]
    return render_table(columns, rows, screen)


def _tell_total(found: SavingsTotal) -> str:
    lost = (found.tokens if found.money is None else found.money) < 0
    said = f"Managing {'lost' if lost else 'saved'} {format_amount(found.tokens, found.money)}"
    if found.share is not None:
        said += f", {format_share(abs(found.share))} of what sending everything would have cost"
    said += f": an estimate over {format_count(found.sessions, 'session')}, by the usage that came back."
    if found.losing:
        lost_by = format_amount(found.lost_tokens, found.lost_money)
        said += f" {format_count(found.losing, 'session')} of them lost {lost_by}."
    return said


def _tell_comparison(found: SavingsReport) -> str:
    if found.saving is None:
        return f"Not compared with sessions that are only observed: {found.reason}."
    interval = f"95 % confidence interval: {format_share(found.low)} to {format_share(found.high)}"
    return f"Compared with sessions that are only observed, {_tell_compared(found.saving)} ({interval})."


def _tell_compared(saving: float) -> str:
    verb = "costs" if saving < 0 else "saves"
    return f"managing {verb} {format_share(abs(saving))}{' more' if saving < 0 else ''} of the cost of long sessions"


def _format_arm(arm: Arm, found: SavingsReport) -> str | None:
    if arm.cost is None:
        return None
    return format_money(_MILLION * arm.cost) if found.unit == "money" else f"{arm.cost:.4f}"


def _list_notes(found: SavingsReport) -> Iterator[str]:
    yield _UNITS[found.unit]
    if found.since_ms is not None:
        since = format_local(found.since_ms)
        yield f"Sessions since {since}, without {found.short:,} that did not reach the soft mark."
    if found.mixed:
        yield f"Not counted: {found.mixed:,} that were managed for a part of their calls only."
    if blind := found.managed.blind + found.held_out.blind:
        yield f"Of {blind:,} no response reported cached tokens: all their input counts as uncached."


@offers(*READS)
def statusline(called: Invocation) -> None:
    """Write one line for a client's status line.

    Claude Code names its session in JSON on standard input; else it is the one with the newest call.
    """
    name = "" if sys.stdin.isatty() else _read_session_name(sys.stdin.read())

    async def query(log: LogReader, settings: Settings) -> str:
        rows = await log.list_sessions(1, Selection(family=f"claude-code:{name}:main") if name else ALL_SESSIONS)
        if not rows:
            return "no call yet"
        row = rows[0]
        calls = await log.list_calls(row.id, max(0, row.recorded - _STATUS_CALLS), _STATUS_CALLS)
        return format_status(calls, await load_saving(log, row.id, await called.services.load_savings_inputs(settings)))

    # A client shows what is written, and nothing of a command that fails.
    try:
        text = called.read(query)
    except ProxyError as error:
        text = shorten(str(error), _LONGEST_STATUS)
    typer.echo(make_plain(f"palimpsest: {text}"))


def _read_session_name(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return str(found.get("session_id") or "") if isinstance(found, dict) else ""


def format_status(calls: Sequence[ExchangeRow], saving: Saving | None) -> str:
    """Format the newest call that is part of the conversation: tokens sent, tokens held back, and what was saved."""
    parts = []
    for call in reversed(calls):
        last = call.rounds[-1] if call.rounds and not call.is_side and call.kind != "auxiliary" else None
        if last is None or last.usage is None or last.usage.input is None:
            continue
        # of an answer in which the model recalled, the first round has what the client's request would have had
        plans = [each.plan for each in call.rounds if each.plan is not None and each.plan.tokens_client]
        plan, sent = plans[-1] if plans else None, last.usage.input
        parts.append(f"{sent:,} tokens")
        held = (plan.tokens_client or 0) - (plan.tokens_upstream or 0) if plan is not None else 0
        if held > 0:
            parts.append(f"{held:,} held back")
        break
    if saving is not None and saving.tokens:
        parts.append(format_net(saving.tokens, saving.money))
    return ", ".join(parts) or "no call yet"


def format_net(tokens: float, money: float | None) -> str:
    """Format what was saved or lost in a few words."""
    return f"{'lost' if tokens < 0 else 'saved'} {format_amount(tokens, money, 'tokens')}"
