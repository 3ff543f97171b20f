"""Memory of sessions: made of whole turns, kept in the log, and in use only where all it was made of is."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.engine.compaction.job import ManualOptions, SummaryJob, make_leaf_job, make_turns_job
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.memory.memory import DIGEST_TAG
from proxy.engine.memory.path import load_path
from proxy.engine.policy import Provider
from proxy.model.errors import BadRequest, Conflict, Erased, NotFound, StoreUnavailable
from proxy.model.memory import CLAIMED, MemoryBundle, StoredMemory
from tests.support.compacting import Workshop, fail, give_report, say
from tests.support.kept_log import KeptLog
from tests.support.managing import make_history
from tests.support.remembering import make_memory, report_with_facts, talk

TEXTS = (
    "Never push to main. Fix the parser.",
    "Now the lexer.",
    "I prefer short names. Now the printer.",
    "And the docs.",
)


@pytest.fixture
async def shop() -> Workshop:
    return Workshop(report_with_facts, ceiling=100_000)


async def list_items(shop: Workshop, memory: Any) -> MemoryBundle:
    path = await load_path(shop.log, shop.session)
    found: MemoryBundle = await memory.memory.list_items(shop.session, path.nodes)
    return found


async def test_reports_and_facts_are_made_of_all_turns_but_the_current(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    made = await memory.compact(shop.session)
    assert made.turn_ids == ("turn_0001", "turn_0002", "turn_0003")
    assert made.items == await list_items(shop, memory)
    (episode,) = made.items.episodic
    assert (episode.id, episode.turn_ids) == ("ep_0001", made.turn_ids)
    assert episode.summary.startswith("## Goal\n- The tests of the parser") and "Facts" not in episode.summary
    (summary,) = shop.summaries
    assert episode.tags == (f"ref:{summary.id}",) and summary.calls == made.calls
    assert [(each.id, each.kind, each.fact) for each in made.items.semantic] == [
        ("sem_0001", "constraint", "Never push to main."),
        ("sem_0002", "preference", "I prefer short names."),
        ("sem_0003", "decision", "The parser stays recursive descent."),
        ("sem_0004", "fact", "The port of the test server is 8484."),
    ]
    assert [CLAIMED in each.tags for each in made.items.semantic] == [False, False, True, True]
    assert made.cost > 0 and made.reason == ""


async def test_turns_of_which_there_is_memory_are_left_out_unless_they_are_named(shop: Workshop) -> None:
    memory = make_memory(shop)
    await talk(shop, TEXTS[:2])
    await memory.compact(shop.session)
    await talk(shop, TEXTS)
    assert (await memory.compact(shop.session)).turn_ids == ("turn_0002", "turn_0003")
    with pytest.raises(Conflict, match="no whole turn"):
        await memory.compact(shop.session)
    shop.clock.advance(60)
    again = await memory.compact(shop.session, ["turn_0001", "turn_0003"])
    assert again.turn_ids == ("turn_0001", "turn_0003")
    assert [each.turn_ids for each in again.items.episodic] == [("turn_0001",), ("turn_0003",)]
    found = await list_items(shop, memory)
    assert [each.id for each in found.episodic] == ["ep_0003", "ep_0002", "ep_0004"]
    assert [each.id for each in found.semantic if each.fact == "Never push to main."] == ["sem_0001"]


@pytest.mark.parametrize("turn", ["turn_0009", "turn_0000", "12", "ep_0001"])
async def test_an_unknown_turn_is_refused(shop: Workshop, turn: str) -> None:
    await talk(shop, TEXTS[:2])
    with pytest.raises(BadRequest, match="there is no turn"):
        await make_memory(shop).compact(shop.session, [turn])
    assert shop.summaries == []


async def test_without_a_model_there_are_digests_and_rules(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    made = await make_memory(shop).compact(shop.session, options=ManualOptions(level=3))
    (episode,) = made.items.episodic
    assert episode.tags[0] == DIGEST_TAG and not shop.model.asked
    assert [each.fact for each in made.items.semantic] == ["Never push to main.", "I prefer short names."]


async def test_where_every_model_fails_memory_is_made_without_one() -> None:
    shop = Workshop(fail, ceiling=100_000)
    await talk(shop, TEXTS)
    made = await make_memory(shop).compact(shop.session)
    assert made.items.episodic[0].tags[0] == DIGEST_TAG and len(made.calls) == 2 and "500" in made.reason


async def test_without_options_what_is_spent_on_a_session_is_limited() -> None:
    shop = Workshop(policy=CompactionPolicy(spend_fraction=0.0), ceiling=100_000)
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    manual = memory.manual
    request = await manual.load_request(await manual.find_newest(shop.session))
    made = await memory.compact_request(request, ["turn_0001"])
    assert made.items.episodic[0].tags[0] == DIGEST_TAG and shop.model.asked == []


async def test_a_session_that_is_only_observed_costs_nothing(shop: Workshop) -> None:
    history = await talk(shop, TEXTS)  # so that a credential is known
    await shop.ask(history[:-1], ((b"x-palimpsest-mode", b"observe"),))
    made = await make_memory(shop).compact(shop.session)
    assert made.items.episodic[0].tags[0] == DIGEST_TAG and shop.model.asked == []


async def test_short_turns_are_remembered_without_a_model_and_without_a_summary(shop: Workshop) -> None:
    await talk(shop, ("Never push to main.", "Go on."), steps=1, size=100)
    made = await make_memory(shop).compact(shop.session)
    assert made.items.episodic[0].tags == (DIGEST_TAG,)
    assert [each.fact for each in made.items.semantic] == ["Never push to main."]
    assert shop.summaries == [] and shop.model.asked == []


async def test_what_does_not_fit_into_one_report_is_divided_between_turns() -> None:
    shop = Workshop(give_report, ceiling=100_000, window=14_000)
    await talk(shop, TEXTS, steps=4, size=6000)
    made = await make_memory(shop).compact(shop.session)
    assert [each.turn_ids for each in made.items.episodic] == [("turn_0001",), ("turn_0002",), ("turn_0003",)]


async def test_each_accepted_report_of_the_background_is_remembered() -> None:
    shop = Workshop(report_with_facts, ceiling=12_000)
    memory = make_memory(shop)
    await talk(shop, [f"{TEXTS[0]} Part {n}." for n in range(12)], steps=3, size=2400)
    leaves = [each for each in shop.summaries if each.kind == "leaf"]
    assert leaves
    entries = [entry for _, entry in (await memory.memory.load(shop.session)).entries]
    assert [(each.start, each.stop, each.report) for each in entries] == [
        (each.start, each.stop, each.id) for each in leaves
    ]
    assert [entry.number for entry in entries] == list(range(1, len(leaves) + 1))
    assert "Never push to main." in [each.fact for each in (await list_items(shop, memory)).semantic]


async def test_a_branch_has_only_what_its_own_path_contains(shop: Workshop) -> None:
    memory = make_memory(shop)
    await talk(shop, TEXTS[:3])
    await memory.compact(shop.session, ["turn_0001"])
    await memory.compact(shop.session, ["turn_0002"])
    await talk(shop, (TEXTS[0], "Never mind. Now something else.", "Always ask first. Go on.", "And on."))
    found = await list_items(shop, memory)
    assert [each.id for each in found.episodic] == ["ep_0001"]
    made = await memory.compact(shop.session)
    assert [each.id for each in made.items.episodic] == ["ep_0003"]  # no number is given twice in a session
    assert made.items.semantic[0].fact == "Always ask first."
    trunk, fork = (await shop.log.list_branches(shop.session))[:2]
    old = await load_path(shop.log, shop.session, trunk.tip.hex())
    new = await load_path(shop.log, shop.session, fork.tip.hex())
    items = await memory.memory.list_items(shop.session, old.nodes)
    assert [each.id for each in items.episodic] == ["ep_0001", "ep_0002"]
    assert old.turns[0] == new.turns[0] and old.list_traces()[:5] == new.list_traces()[:5]
    assert old.list_traces()[5].source_event == "x1" and new.list_traces()[5].source_event == "x6"  # it was sent again


async def test_memory_is_the_same_after_a_restart(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    made = await memory.compact(shop.session)
    again = Workshop(ceiling=100_000, after=shop)
    assert await list_items(again, make_memory(again)) == made.items == await list_items(shop, memory)


async def test_items_are_pinned_and_retracted_by_their_ids(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    await memory.compact(shop.session)
    path = await load_path(shop.log, shop.session)
    await memory.memory.order(shop.session, "pin", "sem_0004")
    await memory.memory.order(shop.session, "retract", "sem_0001")
    shown = await memory.memory.retrieve(shop.session, path.nodes, max_episodic=3, max_semantic=2)
    assert [each.id for each in shown.semantic] == ["sem_0004", "sem_0002"]
    await memory.memory.order(shop.session, "reset")
    assert await memory.memory.retrieve(shop.session, path.nodes, max_episodic=3, max_semantic=20) == MemoryBundle()
    assert (await memory.compact(shop.session)).items.episodic[0].id == "ep_0002"


@pytest.mark.parametrize(
    ("item", "error"),
    [("sem_0099", NotFound), ("ep_0002", NotFound), ("rt_0001", BadRequest), ("turn_0001", BadRequest)],
)
async def test_an_order_about_what_was_never_made_is_refused(shop: Workshop, item: str, error: type[Exception]) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    await memory.compact(shop.session)
    with pytest.raises(error):
        await memory.memory.order(shop.session, "pin", item)


async def test_memory_may_be_asked_for_and_is_then_made_once(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    assert not await memory.memory.is_requested(shop.session)
    await memory.memory.order(shop.session, "request")
    assert await memory.memory.is_requested(shop.session)
    await memory.compact(shop.session)
    assert not await memory.memory.is_requested(shop.session)
    assert [order.kind for _, order in (await memory.memory.load(shop.session)).orders] == ["request", "clear"]


async def test_two_at_once_give_no_number_twice(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    manual = memory.manual
    request = await manual.load_request(await manual.find_newest(shop.session))
    index = await manual.worker.index_conversation(request)
    made = await memory.compact_request(request, ["turn_0001"])
    entry = (await memory.memory.load(shop.session)).entries[0][1]
    assert made.items.episodic
    job, summary = make_turns_job(request, index, entry.start, entry.stop), shop.summaries[0]
    load = shop.log.load_memory

    async def load_slowly(session: str) -> StoredMemory:
        found: StoredMemory = await load(session)
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(shop.log, "load_memory", load_slowly)
    fresh = make_memory(shop).memory
    await asyncio.gather(*(fresh.remember(job, summary) for _ in range(3)))
    entries = [each for _, each in (await fresh.load(shop.session)).entries]
    assert [each.number for each in entries] == [1, 2, 3, 4]
    firsts = [each.first_fact for each in entries]
    assert firsts == [1 + n * len(entry.facts) for n in range(4)]


async def test_a_log_that_takes_nothing_is_said_and_hurts_no_summary(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    told: list[str] = []
    memory.memory.listeners.append(told.append)
    append = shop.log.append

    def refuse(*records: Any, **options: Any) -> Any:
        if type(records[0]).__name__ in ("Remembered", "MemoryOrder"):
            lost = asyncio.get_running_loop().create_future()
            lost.set_result(False)
            return lost
        return append(*records, **options)

    shop.log.append = refuse
    with pytest.raises(StoreUnavailable, match="did not take"):
        await memory.memory.order(shop.session, "reset")
    made = await memory.compact(shop.session)
    assert made.items == MemoryBundle() and len(shop.summaries) == 1 and told == []


async def test_what_the_log_lost_is_read_anew(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    before = await memory.memory.load(shop.session)
    assert await memory.memory.load(shop.session) is before
    health = shop.log.health
    monkeypatch.setattr(shop.log, "health", msgspec.structs.replace(health, generation=7))
    again = await memory.memory.load(shop.session)
    assert again == before and again is not before
    assert await memory.memory.load(shop.session) is again


async def test_a_report_that_says_nothing_is_not_remembered(shop: Workshop) -> None:
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    await memory.compact(shop.session)
    silent = msgspec.structs.replace(shop.summaries[0], text=" ")
    assert await memory.memory.remember(cast(Any, None), silent) is None


async def test_turns_with_a_message_that_the_log_does_not_have_whole_are_remembered_without_a_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Workshop(report_with_facts, ceiling=100_000, archive=KeptLog(durability="full"))
    await talk(shop, TEXTS)
    memory = make_memory(shop)
    monkeypatch.setattr(SummaryJob, "list_digests", lambda job: (b"x" * 32,) * (job.span.stop - job.span.start))
    made = await memory.compact(shop.session)
    assert [each.tags for each in made.items.episodic] == [()]
    assert list(await shop.log.list_summaries(shop.session)) == []
    assert made.items.semantic[0].fact == "Never push to main."


async def test_a_provider_s_own_compaction_is_not_asked_for() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000, wire="responses", provider=Provider(has_compaction=True))
    await talk(shop, TEXTS)
    manual = make_memory(shop).manual
    request = await manual.load_request(await manual.find_newest(shop.session))
    index = await shop.worker.index_conversation(request)
    job = make_leaf_job(request, index, MessageRange(0, 6, 10))
    assert shop.summarizer.provider_compaction.find_job(job) is not None
    for_memory = make_turns_job(request, index, 0, 6)
    assert shop.summarizer.provider_compaction.find_job(for_memory) is None


async def test_a_model_that_says_nothing_of_use_leaves_a_digest(shop: Workshop) -> None:
    shop.model.summarise = lambda body: say("no")
    await talk(shop, TEXTS)
    made = await make_memory(shop).compact(shop.session)
    assert made.items.episodic[0].tags[0] == DIGEST_TAG


async def test_a_session_that_was_erased_says_that(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop()
    await shop.ask(make_history(4, 100))

    async def load(exchange: str) -> bytes:
        raise Erased("this call was erased", shop.session)

    monkeypatch.setattr(shop.log, "load_request", load)
    with pytest.raises(Erased, match="this call was erased"):
        await load_path(shop.log, shop.session)
