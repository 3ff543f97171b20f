"""`palimpsest sessions` and `show`: read the log, also beside a running server.

The text fits into 80 columns; what only a program needs is in the JSON form.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from proxy.cli.formatting import (
    WIDTH,
    format_table,
    format_time,
    order_children,
    shorten,
)
from proxy.cli.services import ConfigOption, DataOption, JsonOption, Services
from proxy.config import Settings
from proxy.context.budget import BudgetPolicy
from proxy.engine.ports import LogReader
from proxy.engine.reports.lookup import list_matching
from proxy.engine.reports.savings import SavingEstimate, load_estimates
from proxy.engine.reports.sessions import (
    describe_sessions,
    write_json,
)
from proxy.model.epoch import Strategy
from proxy.model.exchange import Usage
from proxy.model.log import Selection, SessionRow

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

    async def query(log: LogReader, settings: Settings) -> tuple[Sequence[SessionRow], dict[str, SavingEstimate]]:
        rows = await list_matching(log, limit, selection)
        return rows, await load_estimates(log, rows, await services.load_savings_inputs(settings))

    rows, saved = services.read_with_settings(data, config, query)
    if as_json:
        typer.echo(write_json(describe_sessions(rows, saved)), nl=False)
    elif not rows and (family or parent):
        typer.echo("No session matches; without --family and --parent all are listed.")
    else:
        typer.echo(format_sessions(rows, saved))


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
