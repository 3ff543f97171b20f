"""`palimpsest show`: the calls of a session, or one call, also beside a running server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from msgspec.structs import asdict

from proxy.cli.formatting import CAUSES, SIDE_MARK, draw_branches, format_amount, format_cost, format_count, format_plan
from proxy.cli.inspection.calls import load_call_text
from proxy.cli.inspection.naming import read_session
from proxy.cli.inspection.sessions import tell_saving
from proxy.cli.services import MAX_NUMBER, READS, Invocation, SessionArgument, offers
from proxy.cli.terminal import (
    PLAIN,
    UNKNOWN,
    Cell,
    Column,
    Screen,
    Styled,
    find_screen,
    format_local,
    format_tokens,
    make_plain,
    paint_money,
    render_table,
    shorten,
    wrap,
    write,
)
from proxy.config import Settings
from proxy.context.budget import BudgetPolicy, compute_soft_mark, make_budget
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import Part, find_exchange, load_part, read_pages
from proxy.model.epoch import Epoch, Plan, Strategy, read_view
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow, RoundRow
from proxy.read.cache import CacheCall, CacheReport, load_cache
from proxy.read.calls import describe_whole, list_calls
from proxy.read.savings import SavingsInputs
from proxy.read.session_reports import load_loops
from proxy.read.session_summary import SessionSummary
from proxy.read.sessions import BranchDocument, BranchWords, OverviewDocument, load_overview
from proxy.read.timeline import Loop

EPOCH, MISS, ERROR, LOOP, RETRY = "▲", "⚡", "✕", "∞", "↻"

_WHEN: Mapping[Strategy, str] = {"turns": "with each prompt", "snapshot": "once a prompt fills its budget"}
_DEFAULT_BUDGET = BudgetPolicy()
_NO_USAGE = Usage()
_FAILED = 400
_LONGEST_NAME = 46
_LEGEND = (
    f"{EPOCH} epoch   {MISS} cache break   {ERROR} error   {LOOP} loop   {RETRY} sent again   {SIDE_MARK} side call"
)
_SPECIAL = {
    "retry": f"{RETRY} the same again",
    "volatile": f"{RETRY} its end rewritten",
    "branch": "another branch",
    "compaction": "compacted by the client",
}
_COLUMNS = (
    Column("CALL"),
    Column("TIME", is_optional=True),
    Column("STATUS"),
    Column("TOKENS", is_number=True),
    Column("OUTPUT", is_number=True, is_optional=True),
    Column("SAVED", is_number=True),
    Column("WHAT", least=28),
    Column("SECONDS", is_number=True, is_optional=True),
    Column("MODEL", least=8, is_optional=True),
)


@offers("as_json", *READS)
def show(
    called: Invocation,
    session: SessionArgument,
    n: Annotated[
        int | None, typer.Argument(metavar="N", min=1, max=MAX_NUMBER, help="One of its calls, counted from 1.")
    ] = None,
    raw: Annotated[Part | None, typer.Option(help="Write one body of call N, byte for byte.")] = None,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Of call N the whole conversation, not only what the call added to it.")
    ] = False,
) -> None:
    """Show the calls of a session, or the request and answer of one."""
    for option, is_given in (("--raw", raw is not None), ("--all", is_whole)):
        if n is None and is_given:
            raise typer.BadParameter(f"needs the number of a call: show SESSION N {option}", param_hint=option)
    screen = find_screen()

    async def query(log: LogReader, settings: Settings, session: str) -> bytes | str:
        inputs = await called.services.load_savings_inputs(settings)
        if n is None:
            return await _render_session(log, session, inputs, settings, None if called.as_json else screen)
        row = await find_exchange(log, session, n)
        if raw is not None:
            return await load_part(log, row, raw)
        document = await describe_whole(log, row)
        if called.as_json:
            return write_json(document)
        found = await load_cache(log, row.session, inputs, n)
        facts = format_exchange(row, document.bound, settings.budget, found, screen)
        return "\n".join([facts, "", *await load_call_text(log, row, screen, is_whole=is_whole)])

    found = read_session(called, session, query)
    if isinstance(found, bytes):
        typer.echo(found, nl=False)
    else:
        write(found, screen)


async def _render_session(
    log: LogReader, session: str, inputs: SavingsInputs, settings: Settings, screen: Screen | None
) -> bytes | str:
    """Return a session as text for a screen, or as JSON without one."""
    overview = await load_overview(log, session, inputs, words=BranchWords(log) if screen is None else None)
    exchanges = [row async for page in read_pages(log, overview.session.id) for row in page]
    if screen is None:
        return write_json(asdict(overview) | {"exchanges": list_calls(exchanges)})
    found = await load_cache(log, overview.session.id, inputs)
    epochs = await log.list_epochs(overview.session.id)
    loops = await load_loops(log, overview.session.id, settings.doom_loop.threshold)
    policy = settings.budget
    return format_session(overview, exchanges, policy, found, epochs, screen, loops)


def format_session(
    overview: OverviewDocument,
    exchanges: Sequence[ExchangeRow],
    policy: BudgetPolicy = _DEFAULT_BUDGET,
    found: CacheReport | None = None,
    epochs: Sequence[Epoch] = (),
    screen: Screen = PLAIN,
    loops: Sequence[Loop] = (),
) -> str:
    """Format a session: what became of its calls in a sentence, its name and relatives, then its calls as a tree."""
    session, own = overview.session, overview.session.auxiliary
    sent, output = format_tokens(session.sent_tokens), format_tokens(session.output_tokens)
    lines = [
        wrap(_tell_session(exchanges, session), screen.width),
        "",
        f"session   {session.id}",
        f"title     {session.title or UNKNOWN}",
        f"client    {session.client or UNKNOWN}, {session.status}",
        f"name      {session.family or f'{UNKNOWN} (its client sends none)'}",
        f"model     {session.model or UNKNOWN} at {session.upstream}",
        f"calls     {session.calls}, {format_count(session.branches, 'branch', 'branches')},"
        f" {format_count(session.side, 'side call')}",
        f"time      {format_local(session.created_ms)} to {format_local(session.last_ms)}",
        f"tokens    input {sent}, output {output}",
        *_format_shortening(exchanges, policy),
        *_format_misses(found),
    ]
    if own.calls:
        tokens = f"input {format_tokens(own.input)}, output {format_tokens(own.output)}"
        lines.append(f"auxiliary {format_count(own.calls, 'call')} of our own beside these: {tokens}")
    if session.parent:
        lines.append(f"parent    {session.parent}")
    if session.adopted:
        lines.append(f"goes on   from session {session.adopted}, under another credential")
    for child in overview.children:
        lines.append(f"child     {child.id}  {shorten(child.title or child.family, _LONGEST_NAME)}".rstrip())
    days = {format_local(row.opened_ms)[:10] for row in exchanges}
    facts = _CallFacts(found, epochs, loops, slice(11, 19) if len(days) < 2 else slice(5, 16))
    table = _format_calls(overview.branches, exchanges, facts, screen)
    return "\n".join([*map(make_plain, lines), "", table, "", _LEGEND])


def _tell_session(exchanges: Sequence[ExchangeRow], summary: SessionSummary) -> str:
    calls = [row for row in exchanges if row.kind != "auxiliary"]
    sizes = [size for row in calls if (size := _find_sizes(row))]
    cut = [size for size in sizes if size[1] < size[0]]
    if not cut:
        said = f"{format_count(len(calls), 'call')}; none was shortened."
    else:
        client, sent = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        if summary.client_tokens is not None and summary.sent_tokens is not None:
            client, sent = summary.client_tokens, summary.sent_tokens
        said = (
            f"{format_count(len(calls), 'call')}, {len(cut)} of them shortened:"
            f" the client sent {format_tokens(client)} tokens, the model got {format_tokens(sent)}."
        )
    return said if summary.saved is None else f"{said} {tell_saving(summary.saved)}"


def _find_sizes(row: ExchangeRow) -> tuple[int, int] | None:
    """Return the tokens of the client's request and of what was sent in the last round that was counted.

    The client had sent nothing for a round that follows one in which the model recalled.
    """
    plans = [each.plan for each in row.rounds if each.plan is not None]
    sizes = [
        (plan.tokens_client, plan.tokens_upstream)
        for plan in plans
        if plan.tokens_client is not None and plan.tokens_upstream is not None
    ]
    return (max(client for client, _ in sizes), sizes[-1][1]) if sizes else None


def _format_calls(
    branches: Sequence[BranchDocument], exchanges: Sequence[ExchangeRow], facts: "_CallFacts", screen: Screen
) -> str:
    """Format the tree of exchanges, then those that are on no branch."""
    rows = {row.n: row for row in exchanges}
    side = frozenset(n for n, row in rows.items() if row.is_side)
    lines: list[Sequence[Cell] | str] = []
    for label, n in draw_branches(branches, side):
        lines.append(facts.make_row(label, rows.pop(n)) if n else label)
    lines += [facts.make_row(f"{SIDE_MARK if row.is_side else '-'} {n}", row) for n, row in rows.items()]
    return render_table(_COLUMNS, lines, screen)


class _CallFacts:
    """What the rows of a session's calls are made of."""

    def __init__(self, found: CacheReport | None, epochs: Sequence[Epoch], loops: Sequence[Loop], when: slice) -> None:
        self._loops = {loop.n: loop for loop in loops}
        self._uses = {call.n: call for call in found.calls} if found is not None else {}
        self._opened = {epoch.exchange: (n, epoch) for n, epoch in enumerate(epochs, 1) if epoch.exchange}
        self._when = when

    def make_row(self, label: str, row: ExchangeRow) -> Sequence[Cell]:
        last = row.rounds[-1] if row.rounds else None
        usage = (last and last.usage) or _NO_USAGE
        use = self._uses.get(row.n)
        return (
            label,
            format_local(row.opened_ms)[self._when],
            _format_status(last),
            _format_sizes(row, usage),
            usage.output,
            _make_saved(use),
            self._tell_marks(row, last, use),
            f"{last.timings.total_ms / 1000:.1f}" if last and last.timings else None,
            row.model or f"{row.method} {row.target}",
        )

    def _tell_marks(self, row: ExchangeRow, last: RoundRow | None, use: CacheCall | None) -> Styled:
        """Return what is special about a call; the first thing decides how it looks."""
        marks: list[Styled] = []
        if last is not None and (last.status >= _FAILED or last.error):
            marks.append(Styled(f"{ERROR} {last.error or 'refused by the upstream'}", "bad"))
        if (loop := self._loops.get(row.n)) is not None:
            marks.append(Styled(f"{LOOP} loop: {loop.tool}, {loop.count} times in a row", "warn"))
        if row.id in self._opened:
            n, epoch = self._opened[row.id]
            marks.append(Styled(f"{EPOCH} epoch {n}, {CAUSES[epoch.why]}", "bold"))
        if use is not None and use.cause and not (use.cause == "epoch" and row.id in self._opened):
            marks.append(Styled(f"{MISS} {use.explanation}", "warn"))
        if row.relation in _SPECIAL:
            marks.append(Styled(_SPECIAL[row.relation], ""))
        if row.kind == "auxiliary":
            marks.append(Styled("our own call", "dim"))
        if row.kind == "recorded":
            marks.append(Styled("made elsewhere", "dim"))
        if row.is_side:
            marks.append(Styled("side call", "dim"))
        if last is not None and last.plan is not None and last.plan.rung == "minimal":
            marks.append(Styled("only a digest and the last turn", "warn"))
        if len(row.rounds) > 1:
            marks.append(Styled(f"{len(row.rounds)} rounds", "dim"))
        return Styled("; ".join(mark.text for mark in marks), marks[0].style if marks else "")


def _make_saved(use: CacheCall | None) -> Cell:
    if use is None or use.saved is None:
        return None
    if use.saved.money is None:
        return Styled(f"{format_tokens(use.saved.cost)} tok", "bad" if use.saved.cost < 0 else "good")
    return paint_money(use.saved.money)


def _format_sizes(row: ExchangeRow, usage: Usage) -> str | None:
    sizes = _find_sizes(row)
    if sizes is not None and sizes[0] != sizes[1]:
        return f"{format_tokens(sizes[0])} → {format_tokens(sizes[1])}"
    known = usage.input if usage.input is not None else sizes and sizes[0]
    return None if known is None else format_tokens(known)


def _format_status(last: RoundRow | None) -> Cell:
    if last is None or not last.completeness:
        return Styled("open", "warn")
    words = [str(last.status)] * bool(last.status) + [last.completeness] * (last.completeness != "complete")
    return Styled(" ".join(words), "bad" if last.status >= _FAILED or last.completeness != "complete" else "")


def _format_misses(found: CacheReport | None) -> Iterator[str]:
    """Yield a line on what was read from the cache, and how much was missed for each cause."""
    told = [call for call in found.calls if call.read is not None and call.input] if found is not None else []
    if found is not None and told:
        share = sum(call.read or 0 for call in told) / sum(call.input or 0 for call in told)
        missed = [f"{cause} {total.missed:,}" for cause, total in found.totals.items()]
        yield f"cache     {share:.1%} of the input read; missed {', '.join(missed) if missed else 'nothing'}"


def format_exchange(
    row: ExchangeRow,
    bound: int | None = None,
    policy: BudgetPolicy = _DEFAULT_BUDGET,
    found: CacheReport | None = None,
    screen: Screen = PLAIN,
) -> str:
    """Format one exchange: what was sent for it in a sentence, then each round with its status.

    `policy` is that of the command's settings, which may differ from the server's. `bound` is an upper bound of the
    request's tokens, where these were not counted.
    """
    uses = found.calls if found is not None else ()
    lines = [
        wrap(_tell_call(row, uses[0] if uses else None), screen.width),
        "",
        f"exchange  {row.id}, number {row.n} of session {row.session}",
        f"time      {format_local(row.opened_ms)}",
        f"call      {row.method} {row.target} ({row.wire or 'no known wire format'}; {row.kind}, mode {row.mode})",
        f"model     {row.model or UNKNOWN}",
        f"request   {row.request_size:,} bytes{', kept to the cap only' if row.is_capped else ''}",
    ]
    if bound is not None:
        lines.append(f"context   at most {bound:,} tokens, by its bytes: nothing was counted")
    lines += _format_shortening([row], policy)
    if row.relation:
        known = f"{row.base} of {format_count(row.depth, 'message')} known"
        relation = f"{row.relation}{', side' if row.is_side else ''}"
        lines.append(f"place     {relation}; {known}, on branch {row.tip.hex()}")
    for round_ in row.rounds:
        lines += _format_round(round_, len(row.rounds))
    for call in uses:
        lines.append(f"cache     {_format_use(call)}")
    return make_plain("\n".join(lines))


def _tell_call(row: ExchangeRow, use: CacheCall | None) -> str:
    sizes = _find_sizes(row)
    if sizes is None or sizes[0] == sizes[1]:
        count = "" if sizes is None else f", {format_tokens(sizes[0])} tokens"
        said = f"Call {row.n} was sent as its client sent it{count}."
        if row.rounds and row.rounds[-1].plan is not None and row.rounds[-1].plan.rung != "original":
            said = f"Call {row.n} was sent in a rewritten form{count}."
    else:
        client, sent = sizes
        said = f"Call {row.n} sent {format_tokens(sent)} of its client's {format_tokens(client)} tokens."
    if use is None or use.saved is None or not use.saved.cost:
        return said
    lost = use.saved.cost < 0
    saved = format_amount(use.saved.cost, use.saved.money)
    return f"{said} That {'cost' if lost else 'saved'} {saved}{' more' if lost else ''}."


def _format_use(call: CacheCall) -> str:
    if not call.expected:
        return call.explanation
    read = f"read {format_tokens(call.read)} of {format_tokens(call.expected)} tokens expected"
    if not call.cause:
        return read
    return f"{read}; {call.missed:,} missed, which cost {format_cost(call.cost, call.money)}: {call.explanation}"


def _format_round(row: RoundRow, count: int) -> Iterator[str]:
    """Yield the lines of one of so many rounds of a call."""
    size = f"{row.received_size:,} bytes{', kept to the cap only' if row.is_capped else ''}"
    state = row.completeness or "open, or cut by a crash"
    name = f"round {row.k + 1}" if count > 1 else "upstream"
    yield f"{name:<9} {row.upstream}: status {row.status or UNKNOWN}, {state}, {size}"
    if row.plan is not None:
        yield from format_plan(row.plan)
    if row.timings:
        added = "" if row.timings.overhead_ms is None else f", {row.timings.overhead_ms:.1f} ms before it was sent"
        yield f"timing    first byte {row.timings.first_byte_ms:.0f} ms, end {row.timings.total_ms:.0f} ms{added}"
    if row.usage:
        counts = [(name, getattr(row.usage, name)) for name in Usage.__struct_fields__]
        yield "tokens    " + ", ".join(f"{name} {count:,}" for name, count in counts if count is not None)
    if row.finish:
        yield f"finish    {row.finish}"
    if row.error:
        yield f"error     {row.error}"


def _format_shortening(rows: Sequence[ExchangeRow], policy: BudgetPolicy) -> Iterator[str]:
    """Yield the strategy of the newest of these exchanges, and the mark from which on they are shortened."""
    calls = [row for row in rows if row.kind == "managed" and row.mode == "manage"]
    if not calls:
        return
    plans: list[Plan] = [each.plan for row in calls for each in row.rounds if each.plan is not None]
    if plans and (strategy := read_view(plans[-1].view)[1]) != "epochs":
        yield f"strategy  {strategy}: shortened {_WHEN[strategy]}, from {plans[-1].usable:,} tokens on always"
    elif plans:
        soft = plans[-1].soft or compute_soft_mark(plans[-1].usable, policy)
        yield f"strategy  epochs: shortened from {soft:,} tokens on"
    else:
        soft = make_budget(None, None, None, policy).soft
        yield f"strategy  epochs: shortened from {soft:,} tokens on, or fewer by window or prices"
