"""`palimpsest context`: what fills the context window of a session now, also beside a running server."""

from collections.abc import Sequence

from proxy.cli.formatting import show
from proxy.cli.inspection.naming import read_session
from proxy.cli.services import READS, Invocation, SessionArgument, offers
from proxy.cli.terminal import (
    PLAIN,
    Cell,
    Column,
    Screen,
    Styled,
    format_share,
    format_tokens,
    render_table,
    wrap,
)
from proxy.config import Settings
from proxy.engine.ports import LogReader
from proxy.read.window import Window, load_window

_SENT, _HELD, _FREE = "█", "▒", "·"
_BAR = 24
_COLUMNS = (
    Column("KIND"),
    Column("TOKENS", is_number=True),
    Column("SHARE", is_number=True),
    Column("MESSAGES", is_number=True, is_optional=True),
    Column("HELD BACK", is_number=True),
    Column(""),
    Column("NOTE", least=20, is_optional=True),
)


@offers("as_json", *READS)
def show_window(
    called: Invocation,
    session: SessionArgument,
) -> None:
    """Show what fills the context window of a session."""

    async def query(log: LogReader, settings: Settings, id: str) -> Window:
        inputs, tally = await called.services.load_savings_inputs(settings), called.services.build_tally(settings)
        return await load_window(log, id, inputs, tally)

    show(called, read_session(called, session, query), format_window)


def format_window(found: Window, screen: Screen = PLAIN) -> str:
    """Format what fills the context: in a sentence, then a line for each kind; solid is sent, hatched held back."""
    most = max([found.used, *(each.tokens + each.held_tokens for each in found.kinds)], default=0) or 1
    rows: list[Sequence[Cell]] = [
        (
            each.kind,
            each.tokens,
            format_share(each.tokens / found.used if found.used else None),
            each.count,
            each.held_tokens or "",
            _SENT * round(_BAR * each.tokens / most) + _HELD * round(_BAR * each.held_tokens / most),
            Styled(each.note, "dim"),
        )
        for each in found.kinds
    ]
    free = Styled(_FREE * min(_BAR, round(_BAR * found.free / most)), "dim")
    rows.append((Styled("free", "dim"), found.free, "", "", "", free, ""))
    legend = f"{_SENT} sent   {_HELD} held back, still in the log   {_FREE} free"
    return "\n\n".join([wrap(_tell_window(found), screen.width), render_table(_COLUMNS, rows, screen), legend])


def _tell_window(found: Window) -> str:
    held = sum(each.held_tokens for each in found.kinds)
    said = f"Call {found.call} has {format_tokens(found.used)} of {format_tokens(found.ceiling)} tokens in use"
    said += f"; {format_tokens(held)} are held back." if held else "; nothing is held back."
    if found.window is not None:
        kept = format_tokens(found.output_reserve)
        said += f" The model's window has {format_tokens(found.window)}; {kept} are kept for the response."
    soft, high = format_tokens(found.soft), format_tokens(found.high)
    said += f" It is shortened from {soft} tokens on where that pays, at {high} always."
    if found.next_epoch is not None:
        away = found.next_epoch.away
        said += f" The {found.next_epoch.reason} is {format_tokens(away)} tokens away." if away else " An epoch is due."
    return said
