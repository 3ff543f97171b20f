"""`palimpsest expand`, `diff`, `handoff`, `summaries`, `cache`, `savings` and `statusline`: read the log, also beside a
server.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import (
    MARK,
    SIDE_MARK,
    WIDTH,
    format_count,
    format_plan,
    format_table,
    format_time,
    make_plain,
    shorten,
)
from proxy.cli.services import MAX_NUMBER, BranchOption, ConfigOption, DataOption, JsonOption, Services, SessionArgument
from proxy.config import Settings
from proxy.context.pricing import Cost
from proxy.engine.ports import ALL_SESSIONS, LogReader
from proxy.engine.reports.cache import CacheReport, describe_cache, explain_miss, load_cache
from proxy.engine.reports.context import SummaryStatus, describe_summaries, load_summaries, order_nodes
from proxy.engine.reports.diff import Change, Difference, Side, describe_difference, load_difference
from proxy.engine.reports.export import load_handoff, write_handoff
from proxy.engine.reports.savings import (
    SavingEstimate,
    Savings,
    TotalEstimate,
    Unit,
    load_estimate,
)
from proxy.engine.reports.savings_report import load_report, load_savings
from proxy.engine.reports.search import load_found_page
from proxy.engine.reports.session_summary import load_saving
from proxy.engine.reports.sessions import write_json
from proxy.model.epoch import Summary
from proxy.model.errors import ProxyError
from proxy.model.log import ExchangeRow, Selection

_STATUS_CALLS = 50
_MAX_SHOWN = 12  # messages of a change; the JSON form has all
_SUMMARY_HEADINGS = ("SUMMARY", "LEVEL", "MESSAGES", "COVERED", "TOKENS", "MODEL")
_SUMMARY_MARKS: dict[SummaryStatus, str] = {"live": MARK, "parent": "└", "superseded": SIDE_MARK}
_MODEL_WIDTH = 20
_MAX_INDENT = 8
_CACHE_HEADINGS = ("CALL", "TIME", "INPUT", "READ", "WRITTEN", "EXPECTED", "MISSED", "COST")
_CAUSE_HEADINGS = ("CAUSE", "CALLS", "MISSED", "COST")
_MISSED_UNITS: dict[Unit, str] = {
    "money": "COST is what was missed, in money.",
    "tokens": "COST is what was missed, in tokens of uncached input.",
}
_SAVINGS_HEADINGS = ("", "SESSIONS", "COST")
_UNITS: dict[Unit, str] = {
    "money": "money for a million tokens of the client's requests",
    "tokens": "tokens of uncached input for a token of the client's requests",
}


def expand(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="REF", help="A reference, with or without `ref:`.")],
    page: Annotated[int, typer.Option(min=1, help="Which page, of 12,000 characters each.")] = 1,
    is_whole: Annotated[bool, typer.Option("--all", help="Write all pages.")] = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write what a reference names."""
    services: Services = context.obj
    number = None if is_whole else page
    found = services.search(data, config, lambda log, index: load_found_page(log, index, reference, number))
    typer.echo(make_plain(found.content.decode()), nl=False)


def diff(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[int, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="An exchange, counted from 1.")],
    k: Annotated[int | None, typer.Option("--round", metavar="K", help="Which round. [default: the last]")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Compare what was sent upstream with what the client sent."""
    services: Services = context.obj
    found = services.read(data, config, lambda log: load_difference(log, session, n, services.count_tokens, k))
    typer.echo(write_json(describe_difference(found)) if as_json else format_difference(found), nl=False)


def handoff(
    context: typer.Context,
    session: SessionArgument,
    branch: BranchOption = "",
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a conversation for another client to continue."""
    services: Services = context.obj
    found = services.read(data, config, lambda log: load_handoff(log, session, branch))
    typer.echo(make_plain(write_handoff(found)).encode("utf-8", "replace"), nl=False)


def summaries(
    context: typer.Context,
    session: SessionArgument,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List a session's summaries as a tree."""
    services: Services = context.obj
    found = services.read(data, config, lambda log: load_summaries(log, session))
    typer.echo(write_json(describe_summaries(found)) if as_json else format_summaries(found), nl=not as_json)


def cache(
    context: typer.Context,
    session: SessionArgument,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Tell why calls missed the provider's cache."""
    services: Services = context.obj

    async def query(log: LogReader, settings: Settings) -> bytes:
        inputs = await services.load_savings_inputs(settings)
        found = await load_cache(log, session, inputs)
        if as_json:
            return write_json(describe_cache(found) | {"saved": await load_saving(log, found.session, inputs)})
        estimate = await load_estimate(log, found.session, inputs)
        return format_cache(found, estimate).encode() + b"\n"

    typer.echo(services.read_with_settings(data, config, query), nl=False)


def savings(
    context: typer.Context, as_json: JsonOption = False, data: DataOption = None, config: ConfigOption = None
) -> None:
    """Tell what managing saved or lost."""
    services: Services = context.obj

    async def query(log: LogReader, settings: Settings) -> bytes:
        inputs = await services.load_savings_inputs(settings)
        if as_json:
            return write_json(await load_report(log, inputs))
        return f"{format_savings(await load_savings(log, inputs))}\n".encode()

    typer.echo(services.read_with_settings(data, config, query), nl=False)


def _format_total(found: TotalEstimate) -> list[str]:
    verb = "lost" if found.saved.tokens < 0 else "saved"
    sign = -1 if found.saved.tokens < 0 else 1
    total = Cost(sign * found.saved.tokens, None if found.saved.money is None else sign * found.saved.money)
    share = "" if found.share is None else f", {sign * found.share:.1%} of what sending everything would have cost"
    lines = [
        f"Managing {verb} {_tell_cost(total)}{share}:",
        f"an estimate over {format_count(found.sessions, 'session')}, by the usage that came back.",
    ]
    if found.losing:
        losses = Cost(-found.losses.tokens, None if found.losses.money is None else -found.losses.money)
        lines.append(f"{format_count(found.losing, 'session')} of them lost {_tell_cost(losses)}.")
    return [*lines, ""]


def format_difference(found: Difference) -> str:
    """Format a difference: `-` marks the client's messages, `+` ours; messages that were sent unchanged are counted.

    The client's messages are cut to 80 columns, ours are whole.
    """
    head = f"exchange {found.row.n} of session {found.row.session}, round {found.round.k}"
    if found.is_equal:
        return make_plain(f"{head}: sent as the client sent it, byte for byte\n")
    lines = [f"{head}: {found.kept} of {found.messages} messages sent unchanged"]
    if found.round.plan is not None:
        lines += format_plan(found.round.plan)
    for name, client, sent in found.members:
        lines += ("", f"@@ {name}", f"- {_format_member(client)}", f"+ {_format_member(sent)}")
    for change in found.changes:
        lines += _format_change(change)
    return make_plain("\n".join(lines)) + "\n"


def _format_change(change: Change) -> Iterator[str]:
    last = change.stop - 1
    if not change.client:
        where = f"before message {change.start}"
    else:
        where = f"messages {change.start} to {last}" if last > change.start else f"message {change.start}"
    before, after = (sum(side.tokens for side in sides) for sides in (change.client, change.sent))
    yield ""
    yield f"@@ {where}: {before} -> {after} tokens"
    for place, side in list(enumerate(change.client, change.start))[:_MAX_SHOWN]:
        yield shorten(f"- {place} {_format_side(side)}: {side.text}", WIDTH)
    if len(change.client) > _MAX_SHOWN:
        yield f"- ... and {len(change.client) - _MAX_SHOWN} more; --json has them all"
    for side in change.sent:
        yield f"+ {_format_side(side)}:"
        yield from (f"+   {line}" for line in side.text.splitlines())


def _format_side(side: Side) -> str:
    calls = f", calls {', '.join(side.calls)}" if side.calls else ""
    return f"{side.role} ({side.tokens} tokens{calls})"


def _format_member(raw: bytes) -> str:
    return shorten(raw.decode("utf-8", "replace"), WIDTH - 2) if raw else "(absent)"


def format_summaries(found: Sequence[Summary]) -> str:
    """Format summaries as a tree, two lines each: what the summary covers, and the beginning of its text.

    ● both        a live summary
      └ one       one that it was made of
        ○ poor    one that `one` supersedes
    """
    if not found:
        return "This session has no summaries."
    lines: list[Sequence[object] | str] = []
    for summary, depth, status in order_nodes(found):
        indent = "  " * min(depth, _MAX_INDENT)
        name, span = f"{indent}{_SUMMARY_MARKS[status]} {summary.id}", f"{summary.start} to {summary.stop - 1}"
        model = shorten(summary.model or "-", _MODEL_WIDTH)
        text = summary.text or "(its text was erased)"
        if summary.is_provisional:
            text = f"provisional{f' ({summary.reason})' if summary.reason else ''}: {text}"
        lines.append((name, summary.level, span, summary.covered, summary.tokens, model))
        lines.append(f"{indent}  {shorten(text, WIDTH - len(indent) - 2)}")
    return format_table(_SUMMARY_HEADINGS, lines)


def format_cache(found: CacheReport, estimate: SavingEstimate | None = None) -> str:
    """Format what calls read of the cache: a line for each, another for why it was not more, and totals by cause."""
    if not found.calls:
        return "No call of this session has a usage that the provider reported."
    unit: Unit = "money" if all(call.cost.money is not None for call in found.calls) else "tokens"
    lines: list[Sequence[object] | str] = []
    for call in found.calls:
        use = call.use
        counts = [_show(each) for each in (call.input, use.read, use.written, use.expected, use.missed or None)]
        lines.append((call.n, format_time(call.opened_ms)[11:19], *counts, _show_cost(call.cost, unit)))
        if text := explain_miss(call):
            lines.append(f"      {shorten(text, WIDTH - 6)}")
    read, whole = (sum(each or 0 for each in counts) for counts in _list_inputs(found))
    parts = [format_table(_CACHE_HEADINGS, lines), ""]
    if found.totals:
        rows = [(cause, each.calls, each.missed, _show_cost(each.cost, unit)) for cause, each in found.totals.items()]
        parts += [format_table(_CAUSE_HEADINGS, rows), ""]
    parts.append(f"{read / whole:.1%} of the input was read from the cache. {_MISSED_UNITS[unit]}")
    if estimate is not None:
        parts.append(describe_net(estimate))
    return "\n".join(parts)


def _list_inputs(found: CacheReport) -> tuple[list[int | None], list[int | None]]:
    told = [call for call in found.calls if call.use.read is not None]
    return [call.use.read for call in told], [call.input for call in told] or [1]


def _show(count: int | None) -> str:
    return "" if count is None else str(count)


def _show_cost(cost: Cost, unit: Unit) -> str:
    amount = cost.money if unit == "money" else cost.tokens
    if not amount:
        return ""
    return f"{amount:.4f}" if unit == "money" else f"{amount:.0f}"


def describe_net(estimate: SavingEstimate) -> str:
    """Return in words what managing a session saved, or lost, and why."""
    net, by = estimate.net, "by the usage that came back"
    if estimate.is_loss:
        lost = Cost(-net.tokens, None if net.money is None else -net.money)
        return f"Managing lost {_tell_cost(lost)} {by}: {estimate.reason}."
    return f"Managing saved {_tell_cost(net)} {by}."


def statusline(context: typer.Context, data: DataOption = None, config: ConfigOption = None) -> None:
    """Write one line for a client's status line.

    Claude Code names its session in JSON on standard input; else it is the one with the newest call.
    """
    services: Services = context.obj
    name = "" if sys.stdin.isatty() else _read_session_name(sys.stdin.read())

    async def query(log: LogReader, settings: Settings) -> str:
        rows = await log.list_sessions(1, Selection(family=f"claude-code:{name}:main") if name else ALL_SESSIONS)
        if not rows:
            return "no call yet"
        row = rows[0]
        calls = await log.list_calls(row.id, max(0, row.recorded - _STATUS_CALLS), _STATUS_CALLS)
        return format_status(calls, await load_estimate(log, row.id, await services.load_savings_inputs(settings)))

    # A client shows what is written, and nothing of a command that fails.
    try:
        text = services.read_with_settings(data, config, query)
    except ProxyError as error:
        text = shorten(str(error), WIDTH)
    typer.echo(make_plain(f"palimpsest: {text}"))


def _read_session_name(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return str(found.get("session_id") or "") if isinstance(found, dict) else ""


def format_status(calls: Sequence[ExchangeRow], estimate: SavingEstimate | None) -> str:
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
    if estimate is not None and estimate.net.tokens:
        parts.append(format_net(estimate))
    return ", ".join(parts) or "no call yet"


def format_net(estimate: SavingEstimate) -> str:
    """Format what was saved or lost in a few words."""
    net, verb = estimate.net, "lost" if estimate.is_loss else "saved"
    return f"{verb} {abs(net.tokens):,.0f} tokens" if net.money is None else f"{verb} {abs(net.money):.4f} in money"


def _tell_cost(cost: Cost) -> str:
    tokens = f"{cost.tokens:.0f} tokens of uncached input"
    return tokens if cost.money is None else f"{cost.money:.4f} in money ({tokens})"


def format_savings(found: Savings) -> str:
    """Format the estimate for all sessions, then the comparison: both arms, and what was not counted."""
    lines = [] if found.estimate is None else _format_total(found.estimate)
    known = found.comparison
    if known is None:
        lines.append(f"{found.reason[0].upper()}{found.reason[1:]}.")
    else:
        interval = f"95 % confidence interval: {known.low:.1%} to {known.high:.1%}"
        lines.append(f"Managing saves {known.saving:.1%} of the cost of long sessions ({interval}).")
    if found.since_ms is None:
        return "\n".join(lines)
    scale = 1e6 if found.unit == "money" else 1.0
    rows = [
        (name, arm.sessions, "-" if arm.cost is None else f"{scale * arm.cost:.4f}")
        for name, arm in (("managed", found.managed), ("only observed", found.held_out))
    ]
    lines += [
        "",
        format_table(_SAVINGS_HEADINGS, rows),
        f"Cost is in {_UNITS[found.unit]}.",
        f"Sessions since {format_time(found.since_ms)}, without {found.short} that did not reach the soft mark.",
    ]
    if found.mixed:
        lines.append(f"Not counted: {found.mixed} that were managed for a part of their calls only.")
    if blind := found.managed.blind + found.held_out.blind:
        lines.append(f"Of {blind} no response reported cached tokens: all their input counts as uncached.")
    return "\n".join(lines)
