"""`palimpsest sessions` and `show`: read the log, also beside a running server.

The text fits into 80 columns; what only a program needs is in the JSON form.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import (
    SIDE_MARK,
    WIDTH,
    draw_forks,
    format_cost,
    format_count,
    format_plan,
    format_table,
    format_time,
    make_plain,
    order_children,
    shorten,
)
from proxy.cli.services import MAX_NUMBER, ConfigOption, DataOption, JsonOption, Services, SessionArgument
from proxy.config import Settings
from proxy.context.budget import BudgetPolicy, compute_soft_mark, make_budget
from proxy.engine.ports import LogReader
from proxy.engine.reports.cache import CacheCall, CacheReport, explain_miss, load_cache
from proxy.engine.reports.export import describe_whole
from proxy.engine.reports.lookup import Part, find_exchange, list_matching, load_part, read_pages
from proxy.engine.reports.savings import SavingEstimate, SavingsInputs, load_estimates
from proxy.engine.reports.session_summary import summarize_sessions
from proxy.engine.reports.sessions import (
    Overview,
    describe_overview,
    list_calls,
    load_overview,
    write_json,
)
from proxy.model.epoch import Strategy, read_view
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow, RoundRow, Selection, SessionRow

_SESSION_HEADINGS = ("SESSION", "LAST CALL (UTC)", "CALLS", "BRANCHES", "SIDE", "INPUT", "OUTPUT")
_CALL_HEADINGS = ("CALL", "RELATION", "TIME", "STATUS", "INPUT", "OUTPUT", "SECONDS", "MODEL")
_ID_DIGITS = 12
_WHEN: Mapping[Strategy, str] = {"turns": "with each prompt", "snapshot": "once a prompt fills its budget"}
_MODEL_WIDTH = 14
_FAMILY_WIDTH = 56
_NO_USAGE = Usage()
_DEFAULT_BUDGET = BudgetPolicy()
_NO_ESTIMATES: Mapping[str, SavingEstimate] = {}


def sessions(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    family: Annotated[
        str, typer.Option(metavar="NAME", help="Only sessions whose name, as the client sent it, has this prefix.")
    ] = "",
    parent: Annotated[
        str, typer.Option(metavar="SESSION", help="Only sessions started by the session whose id has this prefix.")
    ] = "",
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List sessions, the newest call first."""
    services: Services = context.obj
    selection = Selection(family, parent)

    async def query(log: LogReader, settings: Settings) -> bytes:
        rows, inputs = await list_matching(log, limit, selection), await services.load_savings_inputs(settings)
        if as_json:
            return write_json(await summarize_sessions(log, rows, inputs))
        if not rows and (family or parent):
            return b"No session matches; without --family and --parent all are listed.\n"
        return f"{format_sessions(rows, await load_estimates(log, rows, inputs))}\n".encode()

    typer.echo(services.read_with_settings(data, config, query), nl=False)


def show(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[
        int | None, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="One of its exchanges, counted from 1.")
    ] = None,
    raw: Annotated[Part | None, typer.Option(help="Write one body of exchange N, byte for byte.")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the branches and exchanges of a session, or one exchange."""
    services: Services = context.obj
    if n is None and raw is not None:
        raise typer.BadParameter("needs the number of an exchange: show SESSION N --raw ...", param_hint="--raw")

    async def query(log: LogReader, settings: Settings) -> bytes:
        if n is None:
            inputs = await services.load_savings_inputs(settings)
            return await _render_session(log, session, settings, inputs, as_json=as_json)
        row = await find_exchange(log, session, n)
        if raw is not None:
            return await load_part(log, row, raw)
        document = await describe_whole(log, row)
        if as_json:
            return write_json(document)
        found = await load_cache(log, row.session, await services.load_savings_inputs(settings), n)
        return format_exchange(row, document["bound"], settings.budget_policy(), found).encode()

    typer.echo(services.read_with_settings(data, config, query), nl=False)


async def _render_session(
    log: LogReader, session: str, settings: Settings, inputs: SavingsInputs, *, as_json: bool
) -> bytes:
    overview = await load_overview(log, session)
    exchanges = [row async for page in read_pages(log, overview.session.id) for row in page]
    if as_json:
        summaries = await summarize_sessions(log, (overview.session, *overview.children), inputs)
        return write_json(describe_overview(overview, summaries) | {"exchanges": list_calls(exchanges)})
    saved = await load_estimates(log, (overview.session,), inputs)
    found, estimate = await load_cache(log, overview.session.id, inputs), saved.get(overview.session.id)
    return format_session(overview, exchanges, settings.budget_policy(), found, estimate).encode()


def format_sessions(rows: Sequence[SessionRow], saved: Mapping[str, SavingEstimate] = _NO_ESTIMATES) -> str:
    """Format sessions as a table, two lines each: id, time and counts; then name, model and upstream."""
    if not rows:
        return "The log holds no sessions yet; start `palimpsest serve` and point a client at it."
    lines: list[Sequence[object] | str] = []
    for row, level in order_children(rows):
        name = "  " * (level - 1) + "└ " * bool(level) + row.id[:_ID_DIGITS]
        tokens = (row.input_tokens, row.output_tokens)
        lines += (
            (name, format_time(row.last_ms)[:16], row.exchanges, row.branches, row.side, *tokens),
            "  " * level + "  " + shorten(_describe_session(row, level, saved.get(row.id)), WIDTH - 2 * level - 2),
        )
    return format_table(_SESSION_HEADINGS, lines)


def _describe_session(row: SessionRow, level: int, estimate: SavingEstimate | None) -> str:
    parts = []
    if row.parent and not level:
        parts.append(f"child of {row.parent[:_ID_DIGITS]}")
    if row.adopted:
        parts.append(f"goes on from {row.adopted[:_ID_DIGITS]}")
    if row.family:
        parts.append(shorten(row.family, _FAMILY_WIDTH))
    parts.append(f"{row.model or 'no model'} at {row.upstream}")
    if estimate is not None:
        net, verb = estimate.net, "lost" if estimate.is_loss else "saved"
        parts.append(f"{verb} {abs(net.tokens):.0f}" if net.money is None else f"{verb} {abs(net.money):.4f} in money")
    if row.auxiliary:
        parts.append(f"{row.auxiliary} auxiliary")
    return "; ".join(parts)


def format_session(
    overview: Overview,
    exchanges: Sequence[ExchangeRow],
    policy: BudgetPolicy = _DEFAULT_BUDGET,
    found: CacheReport | None = None,
    estimate: SavingEstimate | None = None,
) -> str:
    """Format a session: its name, counts and relatives, then its exchanges as a tree."""
    row = overview.session
    lines = [
        f"session   {row.id}",
        f"name      {row.family or '- (its client sends none)'}",
        f"model     {row.model or '-'}, upstream {row.upstream}",
        f"calls     {row.exchanges}, {format_count(row.branches, 'branch', 'branches')},"
        f" {format_count(row.side, 'side call')}",
        f"time      {format_time(row.created_ms)} to {format_time(row.last_ms)}",
        f"tokens    input {row.input_tokens}, output {row.output_tokens}",
        *_format_shortening(exchanges, policy),
    ]
    if row.counted:
        lines.append(f"context   client {row.counted}, upstream {row.sent} tokens, of the rounds that were counted")
    if estimate is not None:
        lines.append(f"saved     {format_cost(estimate.net)}, by the usage that came back")
    if estimate is not None and estimate.is_loss:
        lines.append(f"a loss:   {estimate.reason}")
    if found is not None:
        lines += _format_misses(found)
    if row.auxiliary:
        tokens = f"input {row.auxiliary_input}, output {row.auxiliary_output}"
        lines.append(f"auxiliary {format_count(row.auxiliary, 'call')} of our own beside these: {tokens}")
    if row.parent:
        lines.append(f"parent    {row.parent}")
    if row.adopted:
        lines.append(f"goes on   from session {row.adopted}, under another credential")
    for child in overview.children:
        lines.append(f"child     {child.id}  {shorten(child.family, _FAMILY_WIDTH - 10)}".rstrip())
    return make_plain("\n".join(lines)) + f"\n\n{_format_calls(overview, exchanges)}\n"


def _format_calls(overview: Overview, exchanges: Sequence[ExchangeRow]) -> str:
    """Format the tree of exchanges, then those that are on no branch."""
    rows = {row.n: row for row in exchanges}
    side = frozenset(n for n, row in rows.items() if row.is_side)
    days = {format_time(row.opened_ms)[:10] for row in rows.values()}
    when = slice(11, 19) if len(days) == 1 else slice(5, 16)
    lines: list[Sequence[object] | str] = []
    for label, n in draw_forks(overview.forks, side):
        lines.append(_make_row(label, rows.pop(n), when) if n else label)
    lines += [_make_row(f"{SIDE_MARK if row.is_side else '-'} {n}", row, when) for n, row in rows.items()]
    return format_table(_CALL_HEADINGS, lines)


def _make_row(label: str, row: ExchangeRow, when: slice) -> tuple[object, ...]:
    last = row.rounds[-1] if row.rounds else None
    usage = (last and last.usage) or _NO_USAGE
    return (
        label,
        _format_relation(row),
        format_time(row.opened_ms)[when],
        _format_status(last),
        "" if usage.input is None else usage.input,
        "" if usage.output is None else usage.output,
        f"{last.timings.total_ms / 1000:.1f}" if last and last.timings else "",
        shorten(row.model or f"{row.method} {row.target}", _MODEL_WIDTH),
    )


def _format_relation(row: ExchangeRow) -> str:
    if row.kind == "auxiliary":
        return row.kind
    return f"{row.relation}{', side' if row.is_side else ''}"


def _format_status(last: RoundRow | None) -> str:
    if last is None or not last.completeness:
        return "open"
    words = [str(last.status)] * bool(last.status) + [last.completeness] * (last.completeness != "complete")
    return " ".join(words)


def _format_misses(found: CacheReport) -> Iterator[str]:
    """Yield a line on what was read from the cache, and how much was missed for each cause."""
    told = [call for call in found.calls if call.use.read is not None and call.input]
    if told:
        share = sum(call.use.read or 0 for call in told) / sum(call.input or 0 for call in told)
        missed = [f"{cause} {total.missed}" for cause, total in found.totals.items()]
        yield f"cache     {share:.1%} of the input read; missed {', '.join(missed) if missed else 'nothing'}"


def format_exchange(
    row: ExchangeRow,
    bound: int | None = None,
    policy: BudgetPolicy = _DEFAULT_BUDGET,
    found: CacheReport | None = None,
) -> str:
    """Format one exchange: its request, then each round with its status and response.

    `policy` is that of the command's settings, which may differ from the server's. `bound` is an upper bound of the
    request's tokens, where these were not counted.
    """
    lines = [
        f"exchange  {row.id}, number {row.n} of session {row.session}",
        f"time      {format_time(row.opened_ms)}",
        f"call      {row.method} {row.target} ({row.wire or 'no known wire format'}; {row.kind}, mode {row.mode})",
        f"model     {row.model or '-'}",
        f"request   {row.request_size} bytes{', kept to the cap only' if row.is_capped else ''}",
    ]
    if bound is not None:
        lines.append(f"context   at most {bound} tokens, by its bytes: nothing was counted")
    lines += _format_shortening([row], policy)
    if row.relation:
        known = f"{row.base} of {format_count(row.depth, 'message')} known"
        lines.append(f"place     {_format_relation(row)}; {known}, tip {row.tip.hex()}")
    for round_ in row.rounds:
        lines += _format_round(round_)
    for call in found.calls if found is not None else ():
        lines.append(f"cache     {_format_use(call)}")
    return make_plain("\n".join(lines)) + "\n"


def _format_use(call: CacheCall) -> str:
    use, text = call.use, explain_miss(call)
    if not use.expected:
        return text
    read = f"read {use.read} of {use.expected} tokens expected"
    return f"{read}; {use.missed} missed, {format_cost(call.cost)}: {text}" if use.cause else read


def _format_round(row: RoundRow) -> Iterator[str]:
    size = f"{row.received_size} bytes{', kept to the cap only' if row.is_capped else ''}"
    state = row.completeness or "open, or cut by a crash"
    yield f"round {row.k}   {row.upstream}: status {row.status or '-'}, {state}, {size}"
    if row.plan is not None:
        yield from format_plan(row.plan)
    if row.timings:
        yield f"timing    first byte {row.timings.first_byte_ms:.0f} ms, end {row.timings.total_ms:.0f} ms"
    if row.usage:
        counts = [(name, getattr(row.usage, name)) for name in Usage.__struct_fields__]
        yield "tokens    " + ", ".join(f"{name} {count}" for name, count in counts if count is not None)
    if row.finish:
        yield f"finish    {row.finish}"
    if row.error:
        yield f"error     {row.error}"
    if row.answer:
        yield f"response  {row.answer.decode(errors='replace')}"


def _format_shortening(rows: Sequence[ExchangeRow], policy: BudgetPolicy) -> Iterator[str]:
    """Yield the strategy of the newest of these exchanges, and the mark from which on they are shortened."""
    calls = [row for row in rows if row.kind == "managed" and row.mode == "manage"]
    if calls:
        plans = [each.plan for row in calls for each in row.rounds if each.plan is not None]
        if plans and (strategy := read_view(plans[-1].view)[1]) != "epochs":
            yield f"strategy  {strategy}: shortened {_WHEN[strategy]}, from {plans[-1].usable} tokens on always"
        elif plans:
            yield "strategy  epochs"
            yield f"shortened from {compute_soft_mark(plans[-1].usable, policy)} tokens on"
        else:
            soft = make_budget(None, None, None, policy).soft
            yield f"shortened from {soft} tokens on, or fewer where window or prices ask for it"
