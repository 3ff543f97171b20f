"""Text for people at a terminal: tables that fit its width, colour, a pager; and for pipes the same as plain text.

Control characters of clients and providers are replaced, so that they can neither move the cursor nor hide a line, and
characters that turn the direction of text are, too. Widths are those on a terminal: wide characters have two columns,
combining ones none.
"""

import shlex
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import typer

from proxy.config import read_environment
from proxy.context.pricing import MINUS as MINUS
from proxy.context.pricing import format_money as format_money

WIDTH = 80
UNKNOWN = "\N{EN DASH}"

Style = Literal["", "dim", "bold", "good", "bad", "warn"]

_CODES: dict[Style, str] = {"dim": "2", "bold": "1", "good": "32", "bad": "31", "warn": "33"}
_GAP = "  "
_LEAST_WIDTH, _MOST_WIDTH = 40, 160
_LEAST_COLUMN = 8
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
_NO_WIDTH = ("Mn", "Me", "Cf")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_FEW_DAYS = 7
_THOUSAND, _MILLION = 1000, 1_000_000


class Screen(NamedTuple):
    """Where text is shown. `height` is 0 where it is not a terminal, so that nothing is paged."""

    width: int = WIDTH
    height: int = 0
    has_colour: bool = False


PLAIN = Screen()


class Styled(NamedTuple):
    """A piece of text, and how it looks where there is colour."""

    text: str
    style: Style


class Column(NamedTuple):
    """A column of a table. Numbers are aligned right.

    Where the table is too wide, columns with a `least` width are shortened to it, then `is_optional` ones left out, the
    last one first; then the others are shortened as far as they have to.
    """

    heading: str
    is_number: bool = False
    least: int = 0
    is_optional: bool = False


Cell = str | int | float | Styled | None
"""What stands in a table. None is not known."""


def find_screen() -> Screen:
    """Return what standard output is. Colour is off with NO_COLOR (no-color.org), and for a terminal that has none."""
    width, height = shutil.get_terminal_size((WIDTH, 24))
    if not sys.stdout.isatty():
        return PLAIN
    variables = read_environment()
    has_colour = not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"
    return Screen(max(_LEAST_WIDTH, min(width, _MOST_WIDTH)), height, has_colour)


def write(text: str, screen: Screen) -> None:
    """Write a text, through a pager where it is longer than the terminal: $PAGER, or less; none with PAGER=cat."""
    if screen.height and text.count("\n") >= screen.height and _page(text):
        return
    typer.echo(text)


def _page(text: str) -> bool:
    variables = read_environment()
    words = shlex.split(variables.get("PAGER") or "less")
    if not words or words[0] == "cat" or shutil.which(words[0]) is None:
        return False
    environment = {"LESS": "FRX"} | variables  # colours; what fits on the screen stays there
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as pager:
        try:
            pager.communicate(text.encode("utf-8", "replace"))
        except KeyboardInterrupt:  # less takes it for itself
            pager.wait()
    return True


def paint(text: str, style: Style, screen: Screen) -> str:
    """Return the text in this style, where there is colour."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and screen.has_colour and text else text


def make_plain(text: str) -> str:
    """Replace what is not printable, but for line breaks and tabs. Any space is a space."""
    return "".join(map(_make_printable, text))


def _make_printable(c: str) -> str:
    if c.isprintable() or c in "\n\t" or c in _JOINERS:
        return c
    return " " if unicodedata.category(c) == "Zs" else "\N{REPLACEMENT CHARACTER}"


def measure(text: str) -> int:
    """Return how many columns a line has on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_measure_character, text))


def _measure_character(c: str) -> int:
    if unicodedata.category(c) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Put a text on one line of at most `width` columns."""
    line = " ".join(text.split())
    if measure(line) <= width:
        return line
    kept, room = [], width - 1
    for c in line:
        room -= _measure_character(c)
        if room < 0:
            break
        kept.append(c)
    return "".join(kept) + "…"


def wrap(text: str, width: int, indent: str = "") -> str:
    """Break a line between words, so that it fits a width; a longer word stays whole."""
    lines, line = [], ""
    for word in text.split():
        if line and measure(indent + line) + 1 + measure(word) > width:
            lines.append(line)
            line = ""
        line += f" {word}" if line else word
    return "\n".join(indent + each for each in (*lines, line))


def render_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell] | str], screen: Screen) -> str:
    """Render a table that fits the screen as far as its columns allow. A row that is a string is a line of its own."""
    lines = [row if isinstance(row, str) else [_make_cell(cell) for cell in row] for row in rows]
    cells = [line for line in lines if not isinstance(line, str)]
    widths = [
        max([measure(column.heading), *(measure(line[i].text) for line in cells)]) for i, column in enumerate(columns)
    ]
    chosen = _fit(columns, widths, screen.width)
    heads = [Styled(column.heading, "bold") for column in columns]
    return "\n".join(
        _render_note(line, screen) if isinstance(line, str) else _render_row(line, columns, chosen, screen)
        for line in (heads, *lines)
    )


def _fit(columns: Sequence[Column], widths: Sequence[int], most: int) -> dict[int, int]:
    """Return the columns that are shown, by their places, with their widths."""
    chosen = dict(enumerate(widths))

    def count_excess() -> int:
        return sum(chosen.values()) + len(_GAP) * (len(chosen) - 1) - most

    for i, column in enumerate(columns):
        if column.least and (excess := count_excess()) > 0:
            chosen[i] = max(min(column.least, widths[i]), widths[i] - excess)
    for i in reversed([i for i, column in enumerate(columns) if column.is_optional]):
        if count_excess() > 0:
            del chosen[i]
    for i, column in enumerate(columns):  # what was left out may leave room, or not enough
        if column.least and i in chosen:
            chosen[i] = max(min(_LEAST_COLUMN, widths[i]), min(widths[i], chosen[i] - count_excess()))
    return chosen


def _make_cell(cell: Cell) -> Styled:
    if isinstance(cell, Styled):
        return Styled(_make_line(cell.text), cell.style)
    if cell is None:
        return Styled(UNKNOWN, "dim")
    return Styled(_make_line(f"{cell:,}" if isinstance(cell, int) else str(cell)), "")


def _make_line(text: str) -> str:
    return make_plain(text).replace("\n", " ").replace("\t", " ")


def _render_note(line: str, screen: Screen) -> str:
    text = _make_line(line)
    indent = text[: len(text) - len(text.lstrip())]
    return paint(indent + shorten(text, screen.width - len(indent)), "dim", screen)


def _render_row(line: Sequence[Styled], columns: Sequence[Column], chosen: dict[int, int], screen: Screen) -> str:
    parts = []
    for i, width in chosen.items():
        text, style = line[i]
        if measure(text) > width:
            text = shorten(text, width)
        space = " " * (width - measure(text))
        painted = paint(text, style, screen)
        parts.append(space + painted if columns[i].is_number else painted + space)
    return _GAP.join(parts).rstrip()


def paint_money(amount: float | None) -> Styled:
    """Return an amount that was saved, or lost: both look alike but for their colour."""
    return Styled(format_money(amount), "dim" if amount is None else "bad" if amount < 0 else "good" if amount else "")


def format_share(share: float | None) -> str:
    """Format a share in percent."""
    return UNKNOWN if share is None else f"{share:.1%}".replace("-", MINUS)


def format_tokens(tokens: float | None) -> str:
    """Format a number of tokens with separators."""
    return UNKNOWN if tokens is None else f"{tokens:,.0f}".replace("-", MINUS)


def format_short(tokens: float | None) -> str:
    """Format a number of tokens in few columns: 940, 18k, 1.2M."""
    if tokens is None:
        return UNKNOWN
    size, sign = abs(tokens), MINUS if tokens < 0 else ""
    if size < _THOUSAND:
        return f"{sign}{size:.0f}"
    if size < 10 * _THOUSAND:
        return f"{sign}{size / _THOUSAND:.1f}k"
    return f"{sign}{size / _THOUSAND:.0f}k" if size < _MILLION - _THOUSAND / 2 else f"{sign}{size / _MILLION:.1f}M"


def format_age(ms: int, now_ms: int | None = None) -> str:
    """Format how long ago a time was, or when in local time: `5 min ago`, `14:02`, `Tue 14:02`, `2026-11-02`."""
    now = time.time() if now_ms is None else now_ms / 1000
    then, age = datetime.fromtimestamp(ms / 1000).astimezone(), now - ms / 1000
    today = datetime.fromtimestamp(now).astimezone()
    if age < _HOUR:
        return "now" if age < _MINUTE else f"{age // _MINUTE:.0f} min ago"
    if then.date() == today.date():
        return then.strftime("%H:%M")
    return then.strftime("%a %H:%M") if age < _FEW_DAYS * _DAY else then.strftime("%Y-%m-%d")


def format_local(ms: int) -> str:
    """Format a time to the second, in local time with its offset."""
    text = datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return text.replace("+0000", "UTC")
