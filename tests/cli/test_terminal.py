"""Text for people: tables that fit, colour, the pager, money, times."""

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli.terminal import (
    MINUS,
    PLAIN,
    UNKNOWN,
    Column,
    Screen,
    Styled,
    find_screen,
    format_age,
    format_local,
    format_share,
    format_short,
    format_tokens,
    make_plain,
    measure,
    paint,
    paint_money,
    render_table,
    shorten,
    wrap,
    write,
)

COLOURED = Screen(80, 0, has_colour=True)
NOW = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC, a Tuesday
MINUTE = 60_000


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_what_could_move_the_cursor_or_turn_text_around_is_replaced() -> None:
    assert make_plain("a\x1b[2Kb\rc\u202ed\u2066e\x9b") == "a\ufffd[2Kb\ufffdc\ufffdd\ufffde\ufffd"
    assert make_plain("one\ttwo\nthree\u00a0four") == "one\ttwo\nthree four"
    assert (
        make_plain("\N{MAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}")
        == "\N{MAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}"
    )


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("a\u200db", 2), ("", 0)])
def test_a_width_is_that_on_a_terminal(text: str, width: int) -> None:
    assert measure(text) == width


def test_a_text_is_cut_by_its_columns() -> None:
    assert shorten("日本語テキスト", 14) == "日本語テキスト"
    assert shorten("日本語テキスト", 8) == "日本語…"
    assert shorten("one  two\nthree", 9) == "one two …"
    assert wrap("one two three four", 9, "  ") == "  one two\n  three\n  four"


def test_a_table_is_as_wide_as_its_content() -> None:
    columns = (Column("NAME"), Column("COUNT", is_number=True), Column("NOTE"))
    table = render_table(columns, [("日本", 1234, "a\nb"), "  a line of its own", ("x", None, "")], PLAIN)
    assert table.splitlines() == [
        "NAME  COUNT  NOTE",
        "日本  1,234  a b",
        "  a line of its own",
        f"x         {UNKNOWN}",
    ]


def test_a_table_that_is_too_wide_shortens_what_may_be_shortened_then_leaves_out() -> None:
    columns = (Column("ID"), Column("TITLE", least=8), Column("MODEL", is_optional=True), Column("N", is_number=True))
    row = ("abcdef", "a title of thirty characters..", "a-model-name", 12345)

    def draw(width: int) -> str:
        return render_table(columns, [row], Screen(width)).splitlines()[1]

    assert draw(60) == "abcdef  a title of thirty characters..  a-model-name  12,345"
    assert draw(50) == "abcdef  a title of thirty c…  a-model-name  12,345"
    assert draw(34) == "abcdef  a title of thirty…  12,345"
    assert all(measure(draw(width)) <= width for width in range(26, 70))


def test_colour_is_only_where_there_is_colour() -> None:
    cell = paint_money(-1.5)
    columns = (Column("A"), Column("B", is_number=True))
    assert "\x1b" not in render_table(columns, [("x", cell)], PLAIN)
    table = render_table(columns, [("x", cell), ("\x1b[31my", Styled("z", "dim"))], COLOURED)
    assert f"\x1b[31m{MINUS}$1.50\x1b[0m" in table
    assert "\ufffd[31my" in table
    assert paint("", "bad", COLOURED) == ""


@pytest.mark.parametrize(
    ("variables", "has_colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_no_colour_is_honoured(variables: dict[str, str], has_colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    for name in ("NO_COLOR", "TERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"COLUMNS": "120", "LINES": "30"} | variables).items():
        monkeypatch.setenv(name, value)
    assert find_screen() == Screen(120, 30, has_colour)


def test_a_pipe_has_neither_colour_nor_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "300")
    assert find_screen() == PLAIN


@pytest.mark.parametrize(("columns", "width"), [("20", 40), ("500", 160)])
def test_a_very_narrow_or_wide_terminal_has_a_readable_width(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", columns)
    assert find_screen().width == width


def test_what_is_longer_than_the_terminal_goes_to_the_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paged = tmp_path / "paged"
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\necho "$LESS" > {paged}\ncat >> {paged}\n')
    pager.chmod(0o755)
    monkeypatch.delenv("LESS", raising=False)
    monkeypatch.setenv("PAGER", str(pager))
    write("one\ntwo\nthree", Screen(80, 2))
    assert paged.read_text() == "FRX\none\ntwo\nthree"
    write("short", Screen(80, 2))
    assert capsys.readouterr().out == "short\n"


@pytest.mark.parametrize("pager", ["cat", "a-pager-that-is-not-there"])
def test_without_a_pager_all_is_written(
    pager: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGER", pager)
    write("one\ntwo\nthree", Screen(80, 2))
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


def test_a_gain_a_loss_and_what_is_unknown_look_different() -> None:
    assert [paint_money(each).style for each in (1.0, -1.0, 0.0, None)] == ["good", "bad", "", "dim"]


def test_shares_and_tokens() -> None:
    assert [format_share(each) for each in (0.4217, -0.1, None)] == ["42.2%", f"{MINUS}10.0%", UNKNOWN]
    assert [format_tokens(each) for each in (182_400, -3.2, None)] == ["182,400", f"{MINUS}3", UNKNOWN]
    sizes = (0, 999, 1500, 18_249, 999_400, 999_600, 1_240_000, -2000, None)
    short = ["0", "999", "1.5k", "18k", "999k", "1.0M", "1.2M", f"{MINUS}2.0k", UNKNOWN]
    assert [format_short(each) for each in sizes] == short


@pytest.mark.usefixtures("utc")
def test_times_are_local() -> None:
    ages = (0.5, 5, 90, 24 * 60, 3 * 24 * 60, 20 * 24 * 60)
    told = [format_age(round(NOW - minutes * MINUTE), NOW) for minutes in ages]
    assert told == ["now", "5 min ago", "20:43", "Mon 22:13", "Sat 22:13", "2023-10-25"]
    assert format_age(round(time.time() * 1000)) == "now"
    assert format_local(NOW) == "2023-11-14 22:13:20 UTC"
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    assert format_local(NOW) == "2023-11-15 07:13:20 +0900"
    assert format_age(NOW - 90 * MINUTE, NOW) == "05:43"
