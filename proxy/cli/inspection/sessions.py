"""`palimpsest sessions`: what ran, what was held back of it, and what that saved, also beside a running server."""

from collections.abc import Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import format_amount, format_count, order_children
from proxy.cli.services import READS, Invocation, offers
from proxy.cli.terminal import (
    PLAIN,
    Cell,
    Column,
    Screen,
    Styled,
    find_screen,
    format_age,
    format_money,
    format_share,
    format_short,
    format_tokens,
    paint_money,
    render_table,
    wrap,
    write,
)
from proxy.config import Settings
from proxy.context.pricing import Cost
from proxy.engine.ports import LogReader
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import list_matching
from proxy.model.log import Selection
from proxy.read.savings import Saving
from proxy.read.session_summary import SessionSummary, summarize_sessions

ID_DIGITS = 8
"""Digits of a session's id that are shown where it is a column: a prefix of an id will do wherever one is asked for."""

_UNPRICED = "tokens of uncached input (no price is known)"
_EMPTY = "The log holds no sessions yet; start `palimpsest serve` and point a client at it, or try `palimpsest demo`."
_COLUMNS = (
    Column("SESSION"),
    Column("TITLE", least=16),
    Column("CLIENT", least=8),
    Column("STATUS"),
    Column("TOKENS", is_number=True),
    Column("SPENT", is_number=True, is_optional=True),
    Column("SAVED", is_number=True),
    Column("LAST CALL"),
    Column("CALLS", is_number=True, is_optional=True),
    Column("EPOCHS", is_number=True, is_optional=True),
    Column("MODEL", least=12, is_optional=True),
)


@offers("as_json", *READS)
def sessions(
    called: Invocation,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    family: Annotated[
        str, typer.Option(metavar="NAME", help="Only sessions whose name, as the client sent it, has this prefix.")
    ] = "",
    parent: Annotated[
        str, typer.Option(metavar="SESSION", help="Only sessions started by the session whose id has this prefix.")
    ] = "",
) -> None:
    """List sessions, the newest call first."""
    selection = Selection(family, parent)

    async def query(log: LogReader, settings: Settings) -> tuple[list[SessionSummary], int]:
        rows, inputs = await list_matching(log, limit, selection), await called.services.load_savings_inputs(settings)
        return await summarize_sessions(log, rows, inputs), inputs.now_ms()

    found, now_ms = called.read(query)
    screen = find_screen()
    if called.as_json:
        typer.echo(write_json(found), nl=False)
    elif not found and (family or parent):
        typer.echo("No session matches; without --family and --parent all are listed.")
    else:
        write(format_sessions(found, now_ms, screen), screen)


def format_sessions(found: Sequence[SessionSummary], now_ms: int, screen: Screen = PLAIN) -> str:
    """Format sessions: what they came to together, then a line for each, below the one that started it."""
    if not found:
        return _EMPTY
    rows: list[Sequence[Cell]] = []
    for each, depth in order_children(found):
        lead = "  " * (depth - 1) + "└ " * bool(depth)
        is_live = each.status == "live"
        rows.append(
            (
                each.id[:ID_DIGITS],
                lead + (each.title or "(no text of a user)"),
                each.client or None,
                Styled("● live", "good") if is_live else Styled(each.status, "dim"),
                format_sizes(each),
                None if not each.spent.tokens else format_money(each.spent.money),
                None if each.saved is None else paint_money(each.saved.money),
                format_age(each.last_ms, now_ms),
                each.calls,
                each.epochs,
                each.model,
            )
        )
    return f"{wrap(_tell_all(found), screen.width)}\n\n{render_table(_COLUMNS, rows, screen)}"


def format_sizes(summary: SessionSummary) -> str | None:
    """Format how many tokens the client sent, and how many the model got if these were others."""
    client, sent = summary.client_tokens, summary.sent_tokens
    if client is None or sent is None or client == sent:
        return None if client is None and sent is None else format_short(sent if client is None else client)
    return f"{format_short(client)} → {format_short(sent)}"


def _tell_all(found: Sequence[SessionSummary]) -> str:
    live = sum(each.status == "live" for each in found)
    client, sent = (sum(sizes) for sizes in zip(*_list_sizes(found), strict=True)) if _list_sizes(found) else (0, 0)
    said = f"{format_count(len(found), 'session')}{f', {live} live' if live else ''}"
    if client != sent:
        said += f": clients sent {format_tokens(client)} tokens, models got {format_tokens(sent)}"
    managed = [(each.saved, each.spent) for each in found if each.saved is not None]
    return f"{said}. {tell_saving(sum_saving(managed))}" if managed else f"{said}."


def _list_sizes(found: Sequence[SessionSummary]) -> list[tuple[int, int]]:
    sizes = [(each.client_tokens, each.sent_tokens) for each in found]
    return [(client, sent) for client, sent in sizes if client is not None and sent is not None]


def sum_saving(managed: Sequence[tuple[Saving, Cost]]) -> Saving:
    """Return what managing several sessions saved, by what each saved and cost; money only where all have a price."""
    tokens = sum(saved.tokens for saved, _ in managed)
    amounts = [(saved.money, spent.money) for saved, spent in managed]
    priced = [(saved, spent) for saved, spent in amounts if saved is not None and spent is not None]
    money = sum(saved for saved, _ in priced) if len(priced) == len(managed) else None
    whole = tokens + sum(spent.tokens for _, spent in managed)
    share = tokens / whole if whole > 0 else None
    if money is not None and (paid := money + sum(spent for _, spent in priced)) > 0:
        share = money / paid
    losing = sum(saved.is_loss for saved, _ in managed)
    reason = f"{format_count(losing, 'session')} of {len(managed)} cost more than without us" if losing else ""
    return Saving(tokens, money, share, (tokens if money is None else money) < 0, reason)


def tell_saving(saving: Saving) -> str:
    """Return in a sentence what managing saved or lost, and why it was lost."""
    amount = format_amount(saving.tokens, saving.money, _UNPRICED)
    share = (
        ""
        if saving.share is None
        else f", {format_share(abs(saving.share))} of what sending everything would have cost"
    )
    why = f": {saving.reason}" if saving.reason else ""
    return f"Managing {'lost' if saving.is_loss else 'saved'} {amount}{share}{why}."
