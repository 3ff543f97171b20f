"""What came of compacting a session by hand, as JSON."""

from msgspec.structs import replace

from proxy.engine.reports.context import Compaction, count_covered, describe_compaction
from tests.support.contexts import make_epoch
from tests.support.summaries import make_summary

LEAVES = (make_summary("a", 0, 4), make_summary("b", 4, 9))


def test_the_summary_that_was_made_last_is_told_and_each_message_counts_once() -> None:
    merged = replace(make_summary("c", 0, 9, parents=("a", "b")), level=2)
    found = Compaction("s1", make_epoch("e1"), (*LEAVES, merged), 9500, 1200, ("x1", "x2"), 12.6, "it was slow")
    assert describe_compaction(found) == {
        "session": "s1",
        "epoch": "e1",
        "summary": "c",
        "level": 2,
        "kind": "condensed",
        "messages_covered": 9,
        "tokens_before": 9000,
        "tokens_after": 2000,
        "ms": 1200,
        "calls": ["x1", "x2"],
        "cost_tokens": 13,
        "reason": "it was slow",
    }


def test_without_a_summary_and_an_epoch_all_stays_as_it_was() -> None:
    told = describe_compaction(Compaction("s1", None, (), 9500, 1, (), 0.0, "too little"))
    assert [told[name] for name in ("epoch", "summary", "level", "kind", "messages_covered")] == [None] * 4 + [0]
    assert (told["tokens_before"], told["tokens_after"]) == (9500, 9500)


def test_messages_of_several_summaries_are_added_up() -> None:
    assert count_covered(LEAVES) == 9
    assert count_covered((LEAVES[1],)) == 5
