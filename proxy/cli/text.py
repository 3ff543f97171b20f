"""Plain text for people. Rule: no colour; nothing a client or provider sent can move the cursor or hide a line."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

_GAP = "  "


def make_plain(text: str) -> str:
    """The text with control characters replaced, line breaks and tabs kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def write_time(ms: int) -> str:
    """A time of the log, in UTC to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def cut(text: str, width: int) -> str:
    """The text on one line, at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def lay_out(headings: Sequence[str], rows: Iterable[Sequence[object] | str]) -> str:
    """A table: columns as wide as they need, numbers to the right. A row that is a string is a line as it stands."""
    lines = [list(headings), *(_flatten_row(row) for row in rows)]
    cells = [line for line in lines if not isinstance(line, str)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    return "\n".join(line if isinstance(line, str) else _join(line, widths) for line in lines)


def _flatten_row(row: Sequence[object] | str) -> list[str] | str:
    return _flatten(row) if isinstance(row, str) else [_flatten(str(cell)) for cell in row]


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _flatten(text: str) -> str:
    return make_plain(text).replace("\n", " ").replace("\t", " ")


def _pad(cell: str, width: int) -> str:
    return cell.rjust(width) if cell.replace(".", "", 1).isdigit() else cell.ljust(width)
