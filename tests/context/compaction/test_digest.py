"""Reports that no model wrote."""

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
