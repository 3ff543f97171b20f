"""`palimpsest epochs`: when what is sent of a session was rewritten, and why, also beside a running server."""

from collections.abc import Sequence

from proxy.cli.formatting import format_count, show
from proxy.cli.inspection.naming import read_session
from proxy.cli.services import READS, Invocation, SessionArgument, offers
from proxy.cli.terminal import (
    PLAIN,
    Cell,
    Column,
    Screen,
    Styled,
    format_local,
    format_money,
    format_tokens,
    paint_money,
    render_table,
    wrap,
)
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.model.epoch import read_view
from proxy.read.timeline import EpochSummary, load_epochs

_COLUMNS = (
    Column("EPOCH", is_number=True),
    Column("CALL", is_number=True),
    Column("TOKENS", is_number=True),
    Column("COST", is_number=True),
    Column("PAID BACK", is_number=True),
    Column("STATE"),
    Column("OPENED", is_optional=True),
    Column("REFERENCES", is_number=True, is_optional=True),
    Column("MODEL", least=10, is_optional=True),
)
_INDENT = " " * 7
_NONE = (
    "This session has no epoch: everything is sent as its client sends it. `palimpsest show SESSION` says from how many"
    " tokens on its calls are shortened."
)


@offers("as_json", *READS)
def epochs(
    called: Invocation,
    session: SessionArgument,
) -> None:
    """Tell when what is sent of a session was rewritten, and why."""

    async def query(log: LogReader, settings: Settings, id: str) -> list[EpochSummary]:
        return await load_epochs(log, id, await called.services.load_savings_inputs(settings))

    show(called, read_session(called, session, query), format_epochs)


def format_epochs(found: Sequence[EpochSummary], screen: Screen = PLAIN) -> str:
    """Format epochs: what the newest does, then a line for each, and why it was opened."""
    if not found:
        return wrap(_NONE, screen.width)
    newest = found[-1]
    sizes = f"{format_tokens(newest.tokens_after)} tokens in place of {format_tokens(newest.tokens_before)}"
    said = f"{format_count(len(found), 'epoch')}; with the newest a request had {sizes}."
    rows: list[Sequence[Cell] | str] = []
    for each in found:
        rows.append(
            (
                each.n,
                each.call,
                f"{format_tokens(each.tokens_before)} → {format_tokens(each.tokens_after)}",
                None if each.cost is None else format_money(each.cost.money),
                paint_money(each.paid_back.money),
                Styled(each.state, "good" if each.state == "active" else "dim"),
                format_local(each.at_ms),
                len(each.references),
                read_view(each.view)[0],
            )
        )
        rows += wrap(each.explanation, screen.width, _INDENT).split("\n")
    hint = "`palimpsest diff SESSION CALL` shows what went, `palimpsest revert SESSION` undoes the newest."
    return "\n\n".join([wrap(said, screen.width), render_table(_COLUMNS, rows, screen), wrap(hint, screen.width)])
