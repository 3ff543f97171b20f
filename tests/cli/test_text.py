"""Plain text."""

from proxy.cli.formatting import cut, lay_out, make_plain, write_time


def test_control_characters_become_visible_and_line_breaks_stay() -> None:
    assert make_plain("a\x1b[1m\tb\nc\x85é") == "a\N{REPLACEMENT CHARACTER}[1m\tb\nc\N{REPLACEMENT CHARACTER}é"


def test_times_are_utc() -> None:
    assert write_time(0) == "1970-01-01 00:00:00Z"


def test_long_text_is_cut_to_its_width() -> None:
    assert cut("a  b\nc", 5) == "a b c"
    assert cut("abcdef", 4) == "abc…"


def test_columns_are_as_wide_as_they_need_and_numbers_stand_right() -> None:
    assert lay_out(("A", "COUNT"), [("abc", 7), ("d", 1234567)]) == "A    COUNT\nabc        7\nd    1234567"


def test_a_cell_cannot_break_its_line() -> None:
    assert len(lay_out(("A",), [("a\nb",)]).splitlines()) == 2


def test_fractions_stand_to_the_right_and_lines_as_they_are() -> None:
    assert lay_out(("A", "SECONDS"), [("x", "1.5"), "a line\tof its own", ("y", "v1.5")]).splitlines() == [
        "A  SECONDS",
        "x      1.5",
        "a line of its own",
        "y  v1.5",
    ]
