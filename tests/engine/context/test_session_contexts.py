"""The contexts of many sessions: each asked of the log once, and no more of them remembered than may be."""

import asyncio
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proxy.engine.context import session_context as module
from proxy.engine.context.session_context import SessionContext, SessionContexts
from proxy.model.epoch import StoredContext
from proxy.model.errors import StoreUnavailable
from tests.support.contexts import BUDGET, StatedArchive, ask, make_epoch
from tests.support.examples import examples
from tests.support.managing import MODEL
from tests.support.summaries import make_summary

PLENTY = 1 << 30


async def test_a_context_is_asked_of_the_log_once() -> None:
    archive = StatedArchive(s1=StoredContext((make_epoch("a"),)))
    contexts = SessionContexts(archive, PLENTY)
    context = await contexts.open(ask())
    assert [epoch.id for epoch in context.epochs] == ["a"]
    assert await contexts.open(ask()) is await contexts.load("s1") is contexts.get("s1") is context
    assert (archive.asked, len(contexts), contexts.weight) == (["s1"], 1, context.weight)


async def test_of_a_new_session_the_log_is_not_asked() -> None:
    archive = StatedArchive()
    contexts = SessionContexts(archive, PLENTY)
    assert (await contexts.open(ask(base=0))).is_known
    await contexts.open(ask())
    assert archive.asked == []


async def test_a_log_that_hangs_is_waited_for_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_SECONDS", 0)
    archive = StatedArchive(s1=StoredContext((make_epoch("a"),)))
    archive.may_answer.clear()
    contexts = SessionContexts(archive, PLENTY)
    context = await contexts.open(ask())
    assert (context.is_known, list(context.epochs)) == (False, [])
    monkeypatch.setattr(module, "LOAD_SECONDS", 5)
    archive.may_answer.set()
    assert await contexts.open(ask()) is context
    assert (context.is_known, len(context.epochs), archive.asked) == (True, 1, ["s1", "s1"])


async def test_a_log_that_cannot_be_read_is_asked_again() -> None:
    archive = StatedArchive(s1=StoredContext((make_epoch("a"),)))
    archive.is_broken = True
    contexts = SessionContexts(archive, PLENTY)
    assert not (await contexts.open(ask())).is_known
    with pytest.raises(StoreUnavailable):
        await contexts.load("s1")
    archive.is_broken = False
    assert (await contexts.open(ask())).is_known


async def test_two_requests_at_once_take_what_the_log_knows_once() -> None:
    archive = StatedArchive(s1=StoredContext((make_epoch("a"),), (), ((MODEL, 12.5),)))
    archive.may_answer.clear()
    contexts = SessionContexts(archive, PLENTY)
    opening = asyncio.gather(contexts.open(ask()), contexts.open(ask(8)))
    await asyncio.sleep(0)
    contexts.add("s1", make_epoch("b"))
    known = contexts.get("s1")
    assert known is not None
    standing = known.get_account(MODEL, "a", BUDGET)
    archive.may_answer.set()
    assert [context is known for context in await opening] == [True, True]
    assert [epoch.id for epoch in known.epochs] == ["a", "b"]
    assert standing.account.owed == 12.5
    assert contexts.weight == known.weight


async def test_what_the_log_says_of_a_context_that_was_dropped_meanwhile_is_not_reckoned_with() -> None:
    archive = StatedArchive(s1=StoredContext((make_epoch("a"),)))
    archive.may_answer.clear()
    contexts = SessionContexts(archive, PLENTY)
    opening = asyncio.create_task(contexts.open(ask()))
    await asyncio.sleep(0)
    contexts.clear()
    archive.may_answer.set()
    assert len((await opening).epochs) == 1
    assert (contexts.get("s1"), contexts.weight, len(contexts)) == (None, 0, 0)


async def test_the_contexts_used_least_are_dropped() -> None:
    contexts = SessionContexts(StatedArchive(), 3 * SessionContext().weight)
    for session in ("s1", "s2", "s3", "s1", "s4"):
        await contexts.open(ask(session=session, base=0))
    assert [contexts.get(name) is not None for name in ("s1", "s2", "s3", "s4")] == [True, False, True, True]


async def test_a_context_that_has_grown_drives_others_out_when_it_is_used_again() -> None:
    contexts = SessionContexts(StatedArchive(), 3 * SessionContext().weight)
    for session in ("s1", "s2", "s3"):
        await contexts.open(ask(session=session, base=0))
    grown = await contexts.open(ask(session="s1"))
    for number in range(2, 5):
        grown.choose(MODEL, ask(number), "")
    await contexts.open(ask(session="s1"))
    assert [contexts.get(name) is not None for name in ("s1", "s2", "s3")] == [True, False, False]
    assert contexts.weight == grown.weight


async def test_a_context_alone_keeps_its_newest_epochs() -> None:
    contexts = SessionContexts(StatedArchive(), 8000)
    context = await contexts.open(ask(base=0))
    for number in range(6):
        context.sizes[f"e{number}"] = 7
        contexts.add("s1", make_epoch(f"e{number}"))
    kept = [epoch.id for epoch in context.epochs]
    assert kept == [f"e{number}" for number in range(6)][-len(kept) :]
    assert 1 < len(kept) < 6
    assert list(context.sizes) == kept
    assert contexts.weight == context.weight <= 8000


async def test_one_epoch_is_kept_however_large() -> None:
    contexts = SessionContexts(StatedArchive(), 100)
    contexts.add("s1", epoch := make_epoch("a"))
    context = contexts.get("s1")
    assert context is not None
    assert list(context.epochs) == [epoch]


SESSIONS = ("s1", "s2", "s3")
sessions = st.sampled_from(SESSIONS)
depths = st.integers(1, 13)


class ManyContexts(RuleBasedStateMachine):
    """Requests of three sessions, with all that happens to what is remembered of them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.archive = StatedArchive()
        self.contexts = SessionContexts(self.archive, 0)
        self.most = 0
        self.used: list[str] = []
        self.names = count()

    @initialize(most=st.sampled_from([3_000, 12_000, PLENTY]))
    def begin(self, most: int) -> None:
        self.most = most
        self.contexts = SessionContexts(self.archive, most)

    def use(self, session: str) -> None:
        self.used = [*(each for each in self.used if each != session), session]

    @rule(session=sessions, is_new=st.booleans(), is_broken=st.booleans())
    def open(self, session: str, is_new: bool, is_broken: bool) -> None:
        """A request comes."""
        self.archive.is_broken = is_broken
        context = self.runner.run(self.contexts.open(ask(session=session, base=not is_new)))
        self.use(session)
        assert self.contexts.get(session) is context
        assert context.is_known or is_broken

    @rule(session=sessions, depth=depths, size=st.sampled_from([10, 2000]))
    def add(self, session: str, depth: int, size: int) -> None:
        """An epoch opens, and is in the log."""
        epoch = make_epoch(f"e{next(self.names)}", depth, session=session, rendered=(b"r" * size,))
        self.contexts.add(session, epoch)
        self.use(session)
        stored = self.archive.known.get(session, StoredContext())
        self.archive.known[session] = StoredContext((*stored.epochs, epoch), (), ((MODEL, 1.0),))

    @rule(session=sessions, depth=depths, is_chosen=st.booleans())
    def grow(self, session: str, depth: int, is_chosen: bool) -> None:
        """A request was sent: what is known of its session has grown behind the back of what reckons with it."""
        context = self.contexts.get(session)
        if context is not None:
            subject = ask(depth + 1)
            epoch = context.find(MODEL, subject)
            context.get_account(MODEL, epoch.id if epoch else "", BUDGET).before = subject.nodes
            if is_chosen:
                context.choose(MODEL, subject, epoch.id if epoch else "")
            self.runner.run(self.contexts.open(ask(session=session)))
            self.use(session)

    @rule()
    def clear(self) -> None:
        self.contexts.clear()
        self.used = []

    @invariant()
    def those_used_last_are_there_and_weigh_what_they_weigh(self) -> None:
        there = [session for session in self.used if self.contexts.get(session) is not None]
        assert there == self.used[len(self.used) - len(there) :]
        assert len(there) == len(self.contexts)
        kept = [context for session in there if (context := self.contexts.get(session)) is not None]
        assert self.contexts.weight == sum(context.weight for context in kept)
        assert self.contexts.weight <= self.most or (len(kept) == 1 and len(kept[0].epochs) <= 1)

    @invariant()
    def an_epoch_is_there_once_and_in_order(self) -> None:
        for session in SESSIONS:
            context = self.contexts.get(session)
            names = [epoch.id for epoch in context.epochs] if context is not None else []
            known = [epoch.id for epoch in self.archive.known.get(session, StoredContext()).epochs]
            assert names == known[len(known) - len(names) :]

    def teardown(self) -> None:
        self.runner.close()


def test_whatever_happens_weights_add_up() -> None:
    run_state_machine_as_test(ManyContexts, settings=examples(40, stateful_step_count=20))


async def test_a_summary_is_known_in_its_session_and_weighs_something() -> None:
    contexts = SessionContexts(StatedArchive(), PLENTY)
    contexts.add_summary(make_summary("a", 0, 2))
    context = contexts.get("s")
    assert context is not None
    assert context.get_summary("a") is not None
    assert contexts.weight == context.weight
