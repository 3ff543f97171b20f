"""`palimpsest sessions` and `show`: read the log, also beside a running server."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import (
    SIDE_MARK,
    cut,
    draw_forks,
    lay_out,
    make_plain,
    order_children,
    tell_plan,
    write_saving,
    write_time,
)
from proxy.cli.services import MOST, ConfigOption, DataOption, Doors, JsonOption, SessionArgument
from proxy.config import Settings
from proxy.context.budget import BudgetPolicy, find_soft, make_budget
from proxy.engine.context.controller import MANAGED_WIRES
from proxy.engine.ports import LogReader
from proxy.engine.reports.export import describe_whole
from proxy.engine.reports.lookup import Part, find_exchange, list_matching, load_part, read_pages
from proxy.engine.reports.sessions import (
    Overview,
    describe_overview,
    describe_sessions,
    list_calls,
    load_overview,
    write_json,
)
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow, RoundRow, Selection, SessionRow


def sessions(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    family: Annotated[str, typer.Option(metavar="NAME", help="Only those whose client's name begins so.")] = "",
    parent: Annotated[
        str, typer.Option(metavar="SESSION", help="Only those started by the session whose id begins so.")
    ] = "",
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """List sessions, the newest call first."""
    doors: Doors = context.obj
    selection = Selection(family, parent)
    rows = doors.read(data, config, lambda log: list_matching(log, limit, selection))
    if as_json:
        typer.echo(write_json(describe_sessions(rows)), nl=False)
    elif not rows and (family or parent):
        typer.echo("No session matches; without --family and --parent all are listed.")
    else:
        typer.echo(list_sessions(rows))


def show(
    context: typer.Context,
    session: SessionArgument,
    n: Annotated[
        int | None, typer.Argument(metavar="N", min=1, max=MOST, help="One exchange of it, counted from 1.")
    ] = None,
    raw: Annotated[Part | None, typer.Option(help="Write one body of exchange N, byte for byte.")] = None,
    as_json: JsonOption = False,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the branches and exchanges of a session, or one exchange."""
    doors: Doors = context.obj
    if n is None and raw is not None:
        raise typer.BadParameter("needs the number of an exchange: show SESSION N --raw ...", param_hint="--raw")

    async def ask(log: LogReader, settings: Settings) -> bytes:
        if n is None:
            return await _render_session(log, session, settings, as_json=as_json)
        row = await find_exchange(log, session, n)
        if raw is not None:
            return await load_part(log, row, raw)
        document = await describe_whole(log, row)
        if as_json:
            return write_json(document)
        return tell_exchange(row, document["bound"], settings.budget_policy()).encode()

    typer.echo(doors.read_by(data, config, ask), nl=False)


async def _render_session(log: LogReader, session: str, settings: Settings, *, as_json: bool) -> bytes:
    overview = await load_overview(log, session)
    exchanges = [row async for page in read_pages(log, overview.session.id) for row in page]
    if as_json:
        return write_json(describe_overview(overview) | {"exchanges": list_calls(exchanges)})
    return tell_session(overview, exchanges, settings.budget_policy()).encode()


_SESSION_HEADINGS = ("SESSION", "LAST CALL (UTC)", "CALLS", "BRANCHES", "SIDE", "INPUT", "OUTPUT")
_CALL_HEADINGS = ("CALL", "RELATION", "TIME", "STATUS", "INPUT", "OUTPUT", "SECONDS", "MODEL")
_ID_DIGITS = 12
_WIDTH = 80
_MODEL_WIDTH = 14
_FAMILY_WIDTH = 56
_OPEN = "open, or cut by a crash"
_NO_USAGE = Usage()
_DEFAULT_BUDGET = BudgetPolicy()


def list_sessions(rows: Sequence[SessionRow]) -> str:
    """A table of sessions, two lines each: what it is and how much of it, and what it is called."""
    if not rows:
        return "The log holds no sessions yet; start `palimpsest serve` and point a client at it."
    lines: list[Sequence[object] | str] = []
    for row, level in order_children(rows):
        lines += (
            _place_session(row, level),
            "  " * level + "  " + cut(_name_session(row, level), _WIDTH - 2 * level - 2),
        )
    return lay_out(_SESSION_HEADINGS, lines)


def tell_session(overview: Overview, exchanges: Sequence[ExchangeRow], policy: BudgetPolicy = _DEFAULT_BUDGET) -> str:
    """A session: what it is called, whose it is, its tree, and the sessions it started."""
    row = overview.session
    lines = [
        f"session   {row.id}",
        f"name      {row.family or '- (its client sends none)'}",
        f"model     {row.model or '-'}, upstream {row.upstream}",
        f"calls     {row.exchanges}, {_count(row.branches, 'branch', 'branches')}, {_count(row.side, 'side call')}",
        f"time      {write_time(row.created_ms)} to {write_time(row.last_ms)}",
        f"tokens    input {row.input_tokens}, output {row.output_tokens}",
        *_tell_shortening(exchanges, policy),
        *_tell_savings(row),
        *_tell_auxiliary(row),
        *([f"parent    {row.parent}"] if row.parent else []),
        *([f"goes on   from session {row.adopted}, under another credential"] if row.adopted else []),
        *[f"child     {child.id}  {cut(child.family, _FAMILY_WIDTH - 10)}".rstrip() for child in overview.children],
    ]
    return make_plain("\n".join(lines)) + f"\n\n{_list_calls(overview, exchanges)}\n"


def tell_exchange(row: ExchangeRow, bound: int | None = None, policy: BudgetPolicy = _DEFAULT_BUDGET) -> str:
    """One exchange: what was asked, how each round ended, the answer.

    `policy` are the settings of the command, which the server may have been given others of. `bound` are more tokens
    than the request has, where nobody counted them.
    """
    lines = [
        f"exchange  {row.id}, number {row.n} of session {row.session}",
        f"time      {write_time(row.opened_ms)}",
        f"call      {row.method} {row.target} ({row.wire or 'no known wire format'}; {row.kind}, mode {row.mode})",
        f"model     {row.model or '-'}",
        f"request   {row.request_size} bytes{', kept to the cap only' if row.is_capped else ''}",
    ]
    if bound is not None:
        lines.append(f"context   at most {bound} tokens, by its bytes: nothing was counted")
    lines += _tell_shortening([row], policy)
    if row.relation:
        lines.append(
            f"place     {_relate(row)}; {row.base} of {_count(row.depth, 'message')} known, tip {row.tip.hex()}"
        )
    for round_ in row.rounds:
        lines += _tell_round(round_)
    return make_plain("\n".join(lines)) + "\n"


def _tell_shortening(rows: Sequence[ExchangeRow], policy: BudgetPolicy) -> Iterator[str]:
    """From where on calls are shortened, and how many of these are only recorded for their format."""
    asked = [row for row in rows if row.kind == "managed" and row.mode == "manage"]
    others = [row for row in asked if row.wire not in MANAGED_WIRES]
    if len(others) < len(asked):
        usable = [each.plan.usable for row in asked for each in row.rounds if each.plan is not None]
        if usable:
            yield f"shortened from {find_soft(usable[-1], policy)} tokens on"
        else:
            soft = make_budget(None, None, None, policy).soft
            yield f"shortened from {soft} tokens on, or fewer where the model's window asks for it"
    if others:
        wires = ", ".join(sorted({row.wire for row in others}))
        yield f"recorded  {_count(len(others), 'call')} of format {wires}, which is not shortened yet"


def _tell_savings(row: SessionRow) -> Iterator[str]:
    if row.counted:
        yield f"context   client {row.counted}, upstream {row.sent} tokens, of the rounds that were counted"
    if row.saving is not None:
        yield f"saved     {write_saving(row.saving)} (estimated)"


def _tell_auxiliary(row: SessionRow) -> Iterator[str]:
    if row.auxiliary:
        tokens = f"input {row.auxiliary_input}, output {row.auxiliary_output}"
        yield f"auxiliary {_count(row.auxiliary, 'call')} of our own beside these: {tokens}"


def _place_session(row: SessionRow, level: int) -> tuple[object, ...]:
    name = "  " * (level - 1) + "└ " * bool(level) + row.id[:_ID_DIGITS]
    tokens = (row.input_tokens, row.output_tokens)
    return name, write_time(row.last_ms)[:16], row.exchanges, row.branches, row.side, *tokens


def _name_session(row: SessionRow, level: int) -> str:
    names = []
    if row.parent and not level:
        names.append(f"child of {row.parent[:_ID_DIGITS]}")
    if row.adopted:
        names.append(f"goes on from {row.adopted[:_ID_DIGITS]}")
    if row.family:
        names.append(cut(row.family, _FAMILY_WIDTH))
    saved = [] if row.saving is None else [f"saved {row.saving:+.0f}"]
    aside = [f"{row.auxiliary} auxiliary"] if row.auxiliary else []
    return "; ".join([*names, f"{row.model or 'no model'} at {row.upstream}", *saved, *aside])


def _list_calls(overview: Overview, exchanges: Sequence[ExchangeRow]) -> str:
    """The tree, then what has no place in it."""
    rows = {row.n: row for row in exchanges}
    side = frozenset(n for n, row in rows.items() if row.is_side)
    days = {write_time(row.opened_ms)[:10] for row in rows.values()}
    when = slice(11, 19) if len(days) == 1 else slice(5, 16)
    lines: list[Sequence[object] | str] = []
    for drawn, n in draw_forks(overview.forks, side):
        lines.append(_place_call(drawn, rows.pop(n), when) if n else drawn)
    lines += [_place_call(f"{SIDE_MARK if row.is_side else '-'} {n}", row, when) for n, row in rows.items()]
    return lay_out(_CALL_HEADINGS, lines)


def _place_call(drawn: str, row: ExchangeRow, when: slice) -> tuple[object, ...]:
    last = row.rounds[-1] if row.rounds else None
    usage = (last and last.usage) or _NO_USAGE
    seconds = f"{last.timings.total_ms / 1000:.1f}" if last and last.timings else ""
    what = row.model or f"{row.method} {row.target}"
    tokens = (_write_count(usage.input), _write_count(usage.output))
    return drawn, _relate(row), write_time(row.opened_ms)[when], _end(last), *tokens, seconds, cut(what, _MODEL_WIDTH)


def _relate(row: ExchangeRow) -> str:
    if row.kind == "auxiliary":
        return row.kind
    return f"{row.relation}{', side' if row.is_side else ''}"


def _end(last: RoundRow | None) -> str:
    """How a call ended in a word or two."""
    if last is None or not last.completeness:
        return "open"
    words = [str(last.status)] * bool(last.status) + [last.completeness] * (last.completeness != "complete")
    return " ".join(words)


def _tell_round(row: RoundRow) -> Iterator[str]:
    size = f"{row.received_size} bytes{', kept to the cap only' if row.is_capped else ''}"
    yield f"round {row.k}   {row.upstream}: status {row.status or '-'}, {row.completeness or _OPEN}, {size}"
    if row.plan is not None:
        yield from tell_plan(row.plan)
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
        yield f"answer    {row.answer.decode(errors='replace')}"


def _write_count(count: int | None) -> str:
    return "" if count is None else str(count)


def _count(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
