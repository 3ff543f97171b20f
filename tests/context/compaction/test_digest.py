"""Reports that no model wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.compaction.acceptance import AcceptedSummary, check_summary
from proxy.context.compaction.digest import MAX_DIGEST_TOKENS, digest_messages, digest_summaries
from proxy.context.compaction.spans import MessageRange
from proxy.context.compaction.summary_text import (
    CONSTRAINTS,
    SUMMARY_END,
    SummaryFrame,
    find_references,
    parse_sections,
)
from tests.support.examples import examples
from tests.support.reports import ANSWER, DAY, FRAME, POISON, look, make_task
from tests.support.views import RawMessage, act, count, said, user

ALONE = SummaryFrame("aaaaaaaaaa", "", "2026-11-22")


def digest(messages: list[RawMessage], most: int = MAX_DIGEST_TOKENS, references: tuple[str, ...] = ()) -> str:
    return digest_messages(look(messages), MessageRange(0, len(messages), 0), ALONE, references, count, most=most)


def test_it_quotes_the_user_and_counts_the_rest() -> None:
    text = digest_messages(look(DAY), MessageRange(0, 9, 0), ALONE, ("bbbbbbbbbb", "cccccccccc"), count)
    assert text.split("\n") == [
        "[Report by palimpsest on messages 1 to 9 of this session, put together on 2026-11-22 without a model."
        " Original: ref:aaaaaaaaaa]",
        "## Goal",
        '- m1: "Fix the parser in src/parse.py. Never push to main. All numbers stay in hex."',
        '- m7: "Now the tests, please. Keep the old API working at all costs."',
        "## Key instructions and constraints",
        '- m1: "Never push to main."',
        "## Completed",
        "- 3 calls: shell 3",
        "- an output ended with: exit 1",
        "## Relevant files",
        "- src/parse.py (edited)",
        "- tests/test_parse.py (read)",
        "Files and references: ref:cccccccccc ref:bbbbbbbbbb",
        SUMMARY_END,
    ]
    assert POISON not in text


def test_what_the_user_pasted_is_not_quoted() -> None:
    pasted = f"```\n{POISON}\n```"
    text = digest([user(f"Look:\n{pasted}\nFix it."), *act("a", "ls", "x"), user(pasted)])
    assert parse_sections(text)["Goal"] == ['- m1: "Fix it."'] and "rm -rf" not in text


_message = st.tuples(st.sampled_from(["user", "said", "act"]), st.text(max_size=80), st.integers(1, 60))


@examples(100)
@given(st.lists(_message, max_size=15), st.integers(0, 700), st.integers(0, 40))
def test_it_never_fails_and_always_fits(steps: list[tuple[str, str, int]], most: int, named: int) -> None:
    messages: list[RawMessage] = []
    for i, (kind, text, times) in enumerate(steps):
        text = f"{text} always " * times
        messages += act(f"{i}", text, text) if kind == "act" else [user(text) if kind == "user" else said(text)]
    references = tuple(f"{i:010}" for i in range(named))
    text = digest(messages, most, references)
    assert count(text) <= most
    assert text == digest(messages, most, references)
    assert count(digest_summaries([text, text], MessageRange(0, 9, 0), ALONE, count, most)) <= most


def test_a_day_with_much_in_it_is_cut_to_what_matters_most() -> None:
    rules = [user(f"Never touch the file number {i}, which is not ours to touch.") for i in range(60)]
    work = [m for i in range(60) for m in act(f"{i}", f"cat src/file_{i}.py", f"error: {i} failed")]
    text = digest([*rules, *work, user("and that was all")], references=tuple(f"{i:010}" for i in range(90)))
    constraints = parse_sections(text)[CONSTRAINTS]
    assert 350 < count(text) <= MAX_DIGEST_TOKENS and "file number 59" in constraints[0]
    assert 5 < len(constraints) < 40 and 5 < len(find_references(text)) < 40
    assert find_references(text)[:2] == ("aaaaaaaaaa", "0000000089")


def test_reports_are_merged_with_their_constraints_and_references() -> None:
    first = check_summary(ANSWER, make_task(), FRAME, count)
    assert isinstance(first, AcceptedSummary)
    second = digest_messages(look(DAY), MessageRange(9, 17, 0), SummaryFrame("eeeeeeeeee", "", "x"), (), count)
    text = digest_summaries([first.text, second], MessageRange(0, 17, 0), ALONE, count)
    sections = parse_sections(text)
    assert sections[CONSTRAINTS] == ['- m7: "Keep the old API working at all costs."', '- m1: "Never push to main."']
    assert find_references(text) == ("aaaaaaaaaa", "eeeeeeeeee", "cccccccccc", "bbbbbbbbbb")
    assert text.startswith("[Report by palimpsest on messages 1 to 17 of this session, put together")
    assert "Remaining" not in sections
    assert parse_sections(digest_summaries([second, first.text], MessageRange(0, 17, 0), ALONE, count))["Remaining"]


@pytest.mark.parametrize("texts", [[], [""], ["no report at all"], ["x\n" * 10_000]])
def test_what_is_no_report_gives_a_head_at_least(texts: list[str]) -> None:
    assert digest_summaries(texts, MessageRange(0, 3, 0), ALONE, count).startswith(
        "[Report by palimpsest on messages 1 to 3"
    )


def test_a_counter_that_adds_up_to_more_than_its_parts_is_no_way_around_the_bound() -> None:
    def count_roughly(text: str) -> int:
        return len(text) ** 2 // 2000

    text = digest_messages(look(DAY), MessageRange(0, 9, 0), ALONE, ("bbbbbbbbbb",), count_roughly, most=40)
    assert count_roughly(text) <= 40 and text.startswith("[Report") and "Goal" not in text
