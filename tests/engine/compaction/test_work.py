"""What a report is wanted of, and what follows from that."""

import msgspec
import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.engine.compaction.work import Latest, Work, count_hidden, find_foreign, find_references, tell_date
from proxy.model.exchange import SessionKey
from proxy.model.manifest import digest_of
from tests.support.compacting import Workshop
from tests.support.managing import Message, make_history
from tests.support.summaries import make_summary

HISTORY = make_history(22, 1600)
WORDS: list[Message] = [
    {"role": "user", "content": "<system-reminder>Be quick.</system-reminder>"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Be slow."},
]


async def plan(messages: list[Message] = HISTORY, start: int = 0, stop: int = 20, **changes: object) -> Work:
    workshop = Workshop()
    latest = await workshop.look_at(messages)
    survey = await workshop.worker._survey(latest)
    span = MessageRange(start, stop, latest.case.path.count(start, stop))
    return msgspec.structs.replace(Work(latest, survey, span), **changes)


async def open_epoch(workshop: Workshop, steps: int = 22) -> Latest:
    """A request for which an epoch opens."""
    case = (await workshop.look_at(make_history(steps, 1600))).case

    async def commit(epoch: object) -> bool:
        return True

    footing = await workshop.steward._ladder.climb(case, "hard", commit)
    assert footing.epoch is not None
    assert footing.is_opened
    return Latest(case, footing.body, footing.epoch)


async def test_a_leaf_is_of_messages_and_what_is_merged_of_reports() -> None:
    work = await plan()
    assert (work.kind, work.covered) == ("leaf", work.span.tokens)
    raws = work.latest.case.subject.list_raws()
    assert work.list_digests() == tuple(digest_of(raw) for raw in raws[:20])
    parents = (make_summary("a", 0, 10, tokens=70), make_summary("b", 10, 20, tokens=80))
    merged = msgspec.structs.replace(work, parents=parents)
    assert (merged.kind, merged.covered, merged.list_digests()) == ("condensed", 150, ())


async def test_how_long_a_report_may_be_goes_by_the_budget_and_by_what_it_is_of() -> None:
    work = await plan()
    assert (work.find_most(1, 8192), work.find_limit(1, 8192)) == (300, 600)
    assert work.find_most(1, 100) == work.find_limit(1, 100) == 100
    tiny = await plan(stop=1)
    assert tiny.find_most(1, 8192) == tiny.covered - 1


@pytest.mark.parametrize(("level", "most"), [(1, 1940), (2, 970)])
async def test_of_a_large_budget_it_has_a_small_share(level: int, most: int) -> None:
    workshop = Workshop(ceiling=100_000)
    latest = await workshop.look_at(make_history(60, 1600))
    survey = await workshop.worker._survey(latest)
    work = Work(latest, survey, MessageRange(0, 50, 20_000))
    assert work.find_most(level, 8192) == most  # type: ignore[arg-type]


async def test_its_name_tells_the_span_the_level_and_when_and_cannot_be_guessed() -> None:
    work = await plan()
    names = {
        work.name(b"secret", 1, 5),
        work.name(b"secret", 2, 5),
        work.name(b"secret", 1, 6),
        work.name(b"other", 1, 5),
        (await plan(start=2)).name(b"secret", 1, 5),
    }
    assert len(names) == 5
    assert work.name(b"secret", 1, 5) in names


async def test_what_was_elided_has_references_and_stands_in_a_ledger_only() -> None:
    workshop = Workshop()
    before = await workshop.look_at(HISTORY)
    assert find_references(before, MessageRange(0, 20, 0)) == ()
    latest = await open_epoch(workshop)
    survey = await workshop.worker._survey(latest)
    epoch = latest.epoch
    assert epoch is latest.opened
    assert epoch is not None
    assert latest.tokens < latest.case.tokens
    inside = [each.id for each in epoch.originals if each.place < 20]
    assert inside
    assert sorted(find_references(latest, MessageRange(0, 20, 0))) == sorted(set(inside))
    assert find_references(latest, MessageRange(epoch.depth, epoch.depth + 5, 0)) == ()
    assert count_hidden(Work(latest, survey, MessageRange(3, epoch.depth + 4, 0))) == epoch.depth - 3
    assert count_hidden(Work(before, survey, MessageRange(0, 20, 0))) == 0


async def test_without_an_epoch_of_its_own_it_was_sent_under_the_one_that_held() -> None:
    workshop = Workshop()
    opened = await open_epoch(workshop)
    latest = await workshop.look_at(make_history(23, 1600), base=47)
    assert latest.epoch is opened.epoch
    assert latest.tokens == latest.case.tokens
    assert latest.session == "s1"


async def test_reminders_of_clients_and_prompts_of_subagents_are_nobodys_words() -> None:
    work = await plan([*HISTORY, *WORDS])
    place = len(HISTORY) - 1
    assert find_foreign(work.latest, work.survey) == {place}
    child = SessionKey("s1", b"t" * 16, "main", "family", parent="s0")
    latest = await Workshop().look_at([*HISTORY, *WORDS], session=child)
    assert find_foreign(latest, work.survey) == {0, place, place + 2}


def test_a_time_is_told_in_words() -> None:
    assert tell_date(1_700_000_000_000) == "2023-11-14 22:13 UTC"
