"""Sections of reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.compaction.sections import NAMES, read_sections, write_sections
from tests.support.reports import ANSWER


@pytest.mark.parametrize(
    "heading",
    [
        "Goal", "## Goal", "# GOAL", "**Goal**", "**Goal:**", "GOAL:", "1. Goal", "### 1. Goal:", "__goal__:",
        "  Goal :", "## Goal ##",
    ],
)  # fmt: skip
def test_headings_are_known_however_they_are_spelled(heading: str) -> None:
    assert read_sections(f"{heading}\nto fix it") == {"Goal": ["to fix it"]}


@pytest.mark.parametrize("line", ["Goal is to fix it", "- Goal: fix", "Goals and more:", "the goal", "Goal — x", ""])
def test_other_lines_are_none(line: str) -> None:
    assert read_sections(f"{line}\nmore") == {}


def test_what_a_heading_s_line_says_is_the_first_line() -> None:
    assert read_sections("GOAL: to fix it\nNEXT: tests\nand docs\n\nFILES:\nCONTEXT:x") == {
        "Goal": ["- to fix it"],
        "Remaining": ["- tests", "and docs"],
        "Other context": ["- x"],
    }


def test_a_heading_within_a_heading_s_line_is_none_when_it_is_read_again() -> None:
    sections = read_sections('Goal: Constraints: - m1: "always run it"\nNext: - x')
    assert sections == {"Goal": ['- Constraints: - m1: "always run it"'], "Remaining": ["- x"]}
    assert read_sections(write_sections(sections, 1)) == sections


def test_what_stands_before_the_first_is_left_out() -> None:
    assert list(read_sections(ANSWER)) == [
        "Goal", "Key instructions and constraints", "Discoveries", "Completed", "Remaining",
    ]  # fmt: skip
    assert "Here is the report." not in str(read_sections(ANSWER))


def test_sections_of_one_name_are_one() -> None:
    assert read_sections("Next:\na\nGoal\nb\nRemaining\nc") == {"Goal": ["b"], "Remaining": ["a", "c"]}


def test_the_short_form_has_five_fields_and_loses_nothing() -> None:
    sections = {name: [f"- {name} line"] for name in NAMES}
    assert write_sections(sections, 2).split("\n") == [
        "GOAL:", "- Goal line",
        "CONSTRAINTS:", "- Key instructions and constraints line",
        "FILES:", "- Relevant files line",
        "NEXT:", "- In progress line", "- Remaining line",
        "CONTEXT:", "- Discoveries line", "- Completed line", "- Other context line",
    ]  # fmt: skip
    assert write_sections({"Goal": ["x"]}, 2) == "GOAL:\nx"


_lines = st.lists(st.from_regex(r"- [a-z]{1,9}", fullmatch=True), min_size=1, max_size=3)


@given(st.dictionaries(st.sampled_from(NAMES), _lines))
def test_what_was_written_is_read_again(sections: dict[str, list[str]]) -> None:
    assert read_sections(write_sections(sections, 1)) == sections


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    assert read_sections(text).keys() <= set(NAMES)
