"""Summaries in plans: before the ledger of their place, as many as there is room for, and in what stays for good."""

from collections.abc import Callable

import msgspec
import pytest

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, LiveSummary, PlanRequest
from proxy.context.ledger import NO_LEDGERS, CarriedLedgers
from proxy.context.plan_draft import can_show_compaction, choose_summaries, compute_summaries_budget
from proxy.model.epoch import Compacted, ContextPlan, Kept, Written
from tests.context.test_builder import DAY
from tests.support.views import act, count, view

BUILDER = ContextBuilder(BuilderPolicy(), count)
CEILING = 6000
ROOMY = 7000  # a ledger of before has room beside what is new


def report(id: str, start: int, stop: int, size: int = 100) -> LiveSummary:
    text = f"[{id}] {'word ' * size}"
    return LiveSummary(id, text, start, stop, count(text))


def see(
    *reports: LiveSummary, frozen: ContextPlan | None = None, ceiling: int = CEILING, until: int = len(DAY)
) -> PlanRequest:
    return msgspec.structs.replace(view(DAY[:until], ceiling), reports=reports, frozen=frozen)


def list_written(plan: ContextPlan) -> list[tuple[str, str]]:
    """What of ours is in a plan: the ids of summaries, and what is a ledger."""
    return [(each.report, each.text) for each in plan.edits if isinstance(each, Written)]


def list_ids(plan: ContextPlan) -> list[str]:
    return [report for report, _ in list_written(plan)]


def test_summaries_stand_before_the_ledger_which_names_what_it_named() -> None:
    first, second = report("a", 0, 9), report("b", 9, 21)
    plan = BUILDER.build(see(first, second))
    assert list_ids(plan) == ["a", "b", ""]
    assert list_written(plan)[:2] == [("a", first.text), ("b", second.text)]
    assert plan.edits[:2] == (Kept(0), Written(first.text, 0, 9, "a"))
    without = BUILDER.build(see())
    assert {each.id for each in plan.references} & {each.id for each in without.references}
    assert plan.tokens <= view(DAY, CEILING).budget.high


def test_steps_under_a_summary_are_told_all_the_same() -> None:
    alone, beside = (list_written(BUILDER.build(see(*reports)))[-1][1] for reports in ((), (report("a", 0, 49, 60),)))
    assert (
        "sed -n 22p" in alone and "sed -n 23p" in beside
    )  # the newest that is not sent: the report takes a step's room


def test_those_that_stay_keep_their_place_and_bytes_while_their_ledger_does() -> None:
    until = len(DAY) - 8
    frozen = BUILDER.build(see(report("a", 0, 9), until=until, ceiling=ROOMY))
    plan = BUILDER.build(see(report("a", 0, 9), report("b", 9, 21), frozen=frozen, ceiling=ROOMY))
    assert list_ids(plan) == ["a", "", "b", ""]
    assert list_written(plan)[:2] == list_written(frozen)
    stop = next(each.stop for each in frozen.edits if isinstance(each, Written) and not each.report)
    late = next(each for each in plan.edits if isinstance(each, Written) and each.report == "b")
    assert (late.start, late.stop) == (stop, max(stop, 21))


def test_what_was_merged_waits_until_the_ledgers_are_written_anew() -> None:
    frozen = BUILDER.build(see(report("a", 0, 9, 30), report("b", 9, 15, 30), until=len(DAY) - 8, ceiling=ROOMY))
    merged = report("c", 0, 21, 30)
    plan = BUILDER.build(see(merged, frozen=frozen, ceiling=ROOMY))
    assert list_ids(plan)[:3] == ["a", "b", ""]
    assert "c" not in list_ids(plan)
    assert list_ids(BUILDER.build(see(merged, ceiling=ROOMY))) == ["c", ""]


def test_what_stays_and_is_not_live_any_more_takes_its_room_all_the_same() -> None:
    stays = CarriedLedgers((Written("x" * 400, 0, 9, "gone"), Written("ledger", 0, 9)), 105, (), frozenset(), 0.0, 104)
    room = compute_summaries_budget(see().budget.usable)
    fits = report("b", 9, 15, (4 * (room - 104) - 40) // 5)
    assert [each.report for each in choose_summaries(see(fits), stays)] == ["b"]
    large = report("b", 9, 15, (4 * (room - 50)) // 5)
    assert choose_summaries(see(large), stays) == ()
    assert [each.report for each in choose_summaries(see(large), NO_LEDGERS)] == ["b"]


def test_the_newest_go_first_where_there_is_little_room() -> None:
    reports = [report(id, 5 * i, 5 * i + 5, 110) for i, id in enumerate("abcd")]
    assert list_ids(BUILDER.build(see(*reports))) == ["c", "d", ""]


def test_they_have_a_quarter_of_the_ledgers_share_and_always_room_for_one() -> None:
    rooms = [compute_summaries_budget(usable) for usable in (200_000, 100_000, 31_040, 15_520, 2_000)]
    assert rooms == [14_000, 7_000, 2_172, 1_086, 350]


def test_where_protection_gives_way_there_are_none() -> None:
    large = act("l", "cat large", "a line of output\n" * 1100)
    tight = msgspec.structs.replace(view([*DAY, *large], CEILING), reports=(report("a", 0, 9),))
    for plan in (BUILDER.build(tight), BUILDER.minimal(tight)):
        assert plan.beyond and set(list_ids(plan)) == {""}
    assert list_ids(BUILDER.minimal(see(report("a", 0, 9)))) == ["a", ""]


def test_a_conversation_that_is_left_alone_gets_none() -> None:
    short = msgspec.structs.replace(view(DAY[-6:], CEILING), reports=(report("a", 0, 2),))
    assert BUILDER.build(short).edits == ()


def compact(id: str, stop: int, tokens: int = 300) -> LiveSummary:
    """A provider's own compaction."""
    return LiveSummary(id, f"told of {id}", 0, stop, tokens, f'{{"block":"{id}"}}')


def test_the_providers_own_compaction_precedes_everything_and_the_ledger_stands_beside_it() -> None:
    alone, plan = BUILDER.build(see()), BUILDER.build(see(compact("p", 21), report("a", 21, 27)))
    assert plan.edits[:3] == (
        Compacted("told of p", 0, 21, "p", '{"block":"p"}', 300),
        Kept(0),
        Written(report("a", 21, 27).text, 0, 27, "a"),
    )
    assert list_ids(plan) == ["p", "a", ""]
    assert {each.id for each in plan.references} & {each.id for each in alone.references}
    assert plan.tokens - BUILDER.build(see(compact("p", 21, 200), report("a", 21, 27))).tokens == 100
    assert plan.tokens <= see().budget.high


def test_a_later_plan_has_only_the_newest_and_keeps_its_ledgers() -> None:
    frozen = BUILDER.build(see(compact("p", 21), until=len(DAY) - 8, ceiling=ROOMY))
    ledgers = [text for report, text in list_written(frozen) if not report]
    for newest, ids in (("p", ["p", "", ""]), ("q", ["q", "", ""]), ("", ["", ""])):
        reports = (compact(newest, 25),) if newest else ()
        plan = BUILDER.build(see(*reports, frozen=frozen, ceiling=ROOMY))
        assert list_ids(plan) == ids
        assert [text for report, text in list_written(plan) if not report][:1] == ledgers


def test_one_that_takes_more_than_a_ledger_is_not_shown() -> None:
    room = int(0.2 * see().budget.usable)
    assert [can_show_compaction(tokens, see().budget.usable) for tokens in (room, room + 1)] == [True, False]
    assert list_ids(BUILDER.build(see(compact("p", 21, room)))) == ["p", ""]
    assert list_ids(BUILDER.build(see(compact("p", 21, room + 1)))) == [""]


@pytest.mark.parametrize("make", [compact, lambda id, stop: report(id, 0, stop)])
def test_a_plan_replaces_all_messages_that_it_covers_so_that_no_other_branch_is_sent_it(
    make: Callable[[str, int], LiveSummary],
) -> None:
    shown = BUILDER.build(see(make("p", 9)))
    stop = shown.through + 3
    plan = BUILDER.build(see(make("p", stop)))
    assert "p" in list_ids(plan)
    assert stop <= plan.through < len(DAY)
    assert plan.edits[-3:] == tuple(Kept(place) for place in range(plan.through - 3, plan.through))


@pytest.mark.parametrize(("lines", "shown"), [(1100, set()), (700, {"p"})])
def test_where_protection_gives_way_that_of_the_provider_stays_if_a_ledger_has_room_beside_it(
    lines: int, shown: set[str]
) -> None:
    large = [*act("k", "cat first", "a line of output\n" * 300), *act("l", "cat large", "a line of output\n" * lines)]
    tight = msgspec.structs.replace(view([*DAY, *large], CEILING), reports=(compact("p", 9), report("a", 9, 15)))
    plan = BUILDER.build(tight)
    assert plan.beyond and set(list_ids(plan)) == {"", *shown}
    assert plan.tokens <= tight.budget.high
    short = msgspec.structs.replace(view(DAY[-6:], CEILING), reports=(compact("p", 2),))
    assert BUILDER.build(short).edits == ()
