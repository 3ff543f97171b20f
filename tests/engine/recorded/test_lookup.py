"""Sessions, exchanges and branches found by a prefix of their ids."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from proxy.engine.ports import ALL_SESSIONS
from proxy.engine.recorded.lookup import (
    find_exchange,
    find_session,
    list_matching,
    load_part,
    pick_branch,
    read_back,
    read_branch_back,
    read_exchanges,
    read_pages,
)
from proxy.model.errors import NotFound
from proxy.model.log import Call, ExchangeRow, Selection, SessionRow
from tests.support.fake_log import (
    ANSWER,
    BRANCHES,
    EXCHANGE,
    REQUEST,
    ROUND,
    SESSION,
    FakeLog,
    branch,
    exchange,
    tip_of,
    tree_log,
)


def log_of(*ids: str) -> FakeLog:
    return FakeLog(sessions=[replace(SESSION, id=id_) for id_ in ids])


async def test_a_unique_beginning_is_enough() -> None:
    assert await find_session(log_of("abc", "abd", "x"), "x") == "x"
    assert await find_session(log_of("abc", "abd"), "abc") == "abc"


async def test_a_whole_id_wins_over_longer_ones() -> None:
    assert await find_session(log_of("abcd", "abc"), "abc") == "abc"


async def test_several_candidates_are_named() -> None:
    with pytest.raises(NotFound, match=r"2 sessions begin with 'ab' \(abc, abd\)"):
        await find_session(log_of("abc", "abd"), "ab")
    with pytest.raises(NotFound, match=r"more than 5 sessions begin with 'a' \(a1, a2, a3, a4, a5, …\)"):
        await find_session(log_of("a1", "a2", "a3", "a4", "a5", "a6"), "a")


@pytest.mark.parametrize("asked", ["x", "", "ab", "..", "\0", "é", "\udcff", "x" * 10_000])
async def test_no_candidate_says_where_to_look(asked: str) -> None:
    with pytest.raises(NotFound, match=r"no session .* `palimpsest sessions` or GET /-/api/sessions"):
        await find_session(log_of("cbc"), asked)


async def test_what_is_near_is_named() -> None:
    with pytest.raises(NotFound, match=r"no session begins with '5f3b9', or is called so; near it: 5f3a, 5f3c$"):
        await find_session(log_of("5f3a", "abc", "5f3c", "5f4a"), "5f3b9")


@pytest.mark.parametrize("family", ["agent 7", "codex:agent 7", "claude-code:agent 7:main", "x-session-id:agent 7"])
async def test_a_session_is_found_by_the_name_that_its_client_gave_it(family: str) -> None:
    log = FakeLog(sessions=[replace(SESSION, id="other", family="agent 77"), replace(SESSION, family=family)])
    assert await find_session(log, "agent 7") == "abc1"


async def test_the_beginning_of_one_id_comes_before_a_name() -> None:
    log = FakeLog(sessions=[SESSION, replace(SESSION, id="other", family="abc")])
    assert await find_session(log, "abc") == "abc1"


async def test_of_a_name_that_several_have_the_ids_are_listed_newest_first() -> None:
    log = FakeLog(sessions=[replace(SESSION, id=id, seq=n) for n, id in enumerate(("a", "b"))])
    with pytest.raises(NotFound, match=r"2 sessions are called 'agent-7'; name one by its id: b, a$"):
        await find_session(log, "agent-7")


async def test_an_endless_name_is_not_repeated_in_full() -> None:
    with pytest.raises(NotFound) as caught:
        await find_session(log_of("x" * 20), "x" * 10_000)
    assert len(str(caught.value)) < 200


async def test_family_and_parent_are_matched_by_how_they_begin() -> None:
    log = FakeLog(sessions=[SESSION, replace(SESSION, id="b", parent="abc1"), replace(SESSION, id="c", family="x")])
    assert [row.id for row in await list_matching(log, 9, Selection("agent-"))] == ["abc1", "b"]
    assert [row.id for row in await list_matching(log, 9, Selection("", "abc"))] == ["b"]
    assert [row.id for row in await list_matching(log, 1, Selection("agent-"))] == ["abc1"]
    assert [row.id for row in await list_matching(log, 2)] == ["abc1", "b"]


class Noting(FakeLog):
    """A log that notes how much of it is asked for at once."""

    limits: ClassVar[list[int]] = []

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        self.limits.append(limit)
        return await super().list_sessions(limit, selection)

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        self.limits.append(limit)
        return await super().list_exchanges(session, after, limit)


async def test_a_long_listing_is_asked_for_page_by_page() -> None:
    log = Noting(sessions=[replace(SESSION, id=f"s{seq}", seq=seq) for seq in range(250, 0, -1)])
    for limit, found in ((240, 240), (250, 250), (10**9, 250), (200, 200)):
        log.limits.clear()
        rows = await list_matching(log, limit, Selection(before=251))
        assert [row.seq for row in rows] == list(range(250, 250 - found, -1))
        assert max(log.limits) <= 100


@pytest.mark.parametrize(
    ("after", "limit", "found"),
    [(0, None, (1, 250)), (0, 100, (1, 100)), (99, 101, (100, 200)), (240, 1000, (241, 250)), (249, None, (250, 250))],
)
async def test_exchanges_are_read_page_by_page(after: int, limit: int | None, found: tuple[int, int]) -> None:
    log = Noting(exchanges=[exchange(n) for n in range(1, 251)])
    log.limits.clear()
    numbers = [row.n async for page in read_pages(log, "abc1", after, limit) for row in page]
    assert numbers == list(range(found[0], found[1] + 1))
    assert max(log.limits) <= 100


@pytest.mark.parametrize("count", [0, 1, 100, 250])
async def test_calls_are_read_back_from_the_newest(count: int) -> None:
    log = Noting(exchanges=[exchange(n) for n in range(1, count + 1)], sessions=[replace(SESSION, exchanges=count)])
    log.limits.clear()
    assert [row.n async for row in read_back(log, "abc1")] == list(range(count, 0, -1))
    assert max(log.limits, default=0) <= 100
    with pytest.raises(NotFound):
        _ = [row async for row in read_back(log, "nobody")]


async def test_calls_of_a_branch_are_read_back_from_the_newest() -> None:
    log = FakeLog(exchanges=[exchange(n) for n in range(1, 7)])
    trunk = replace(BRANCHES[0], trunk=None, own=tuple(Call(n, f"x{n}", n) for n in (1, 2, 4)))
    leaf = replace(BRANCHES[0], own=(Call(3, "x3", 3), Call(6, "x6", 6)), trunk=trunk, shared=2)
    assert [row.n async for row in read_branch_back(log, "abc1", leaf)] == [6, 3, 2, 1]


async def test_calls_of_our_own_are_numbered_among_the_others() -> None:
    log = Noting(exchanges=[exchange(n, kind="auxiliary" if n % 2 else "managed") for n in range(1, 8)])
    assert [row.n async for page in read_pages(log, "abc1") for row in page] == list(range(1, 8))
    assert [row.n async for row in read_exchanges(log, "abc1")] == list(range(1, 8))
    assert (await find_exchange(log, "abc1", 7)).kind == "auxiliary"
    with pytest.raises(NotFound, match="it has 7, counted from 1"):
        await find_exchange(log, "abc1", 8)


async def test_what_was_answered_is_in_no_page_and_is_read_one_exchange_at_a_time() -> None:
    log = Noting(exchanges=[exchange(n) for n in range(1, 251)])
    pages = [page async for page in read_pages(log, "abc1")]
    assert [row.rounds[0].answer for page in pages for row in page] == [b""] * 250
    log.limits.clear()
    rows = [row async for row in read_exchanges(log, "abc1")]
    assert ([row.n for row in rows], {row.rounds[0].answer for row in rows}) == (list(range(1, 251)), {ANSWER})
    assert set(log.limits) == {1}
    assert [row.n async for row in read_exchanges(tree_log(), "abc1", BRANCHES[1])] == [1, 4, 5]
    with pytest.raises(NotFound):
        await anext(read_exchanges(tree_log(), "x"))


async def test_behind_the_last_exchange_there_is_no_page() -> None:
    assert [page async for page in read_pages(tree_log(), "abc1", 8)] == []
    with pytest.raises(NotFound):
        await anext(read_pages(tree_log(), "x"))


async def test_an_exchange_that_is_not_there_is_not_made_up() -> None:
    assert (await find_exchange(tree_log(), "ab", 4)).id == "x4"
    for n in (9, 0, -1):
        with pytest.raises(NotFound, match=f"no exchange {n}; it has 8, counted from 1"):
            await find_exchange(tree_log(), "abc1", n)


def test_a_branch_is_found_by_how_its_tip_begins() -> None:
    assert pick_branch(BRANCHES, b"five".hex()[:3]).depth == 5
    assert pick_branch([branch("jk", 7, (1,))], "6A6B").depth == 7
    assert pick_branch(BRANCHES, tip_of("seven").hex()).is_side


def test_a_branch_that_is_not_there_is_answered_with_the_tips() -> None:
    tips = [name.encode().ljust(16, b"\0").hex()[:12] for name in ("seven", "five", "three")]
    for asked in ("ff", "", "x" * 10_000):
        with pytest.raises(NotFound, match="; its branches are " + ", ".join(tips)):
            pick_branch(BRANCHES, asked)
    with pytest.raises(NotFound, match="2 branches begin with '61'"):
        pick_branch([branch("aa", 1, (1,)), branch("ab", 1, (2,))], "61")
    with pytest.raises(NotFound, match="has no branches"):
        pick_branch([], "61")


async def test_a_body_is_that_of_the_round_named_or_the_last() -> None:
    log, row = FakeLog(), replace(EXCHANGE, rounds=(ROUND, replace(ROUND, k=1)))
    assert await load_part(log, row, "request") == REQUEST
    assert (await load_part(log, row, "sent")).startswith(b"sent 1")
    assert (await load_part(log, row, "sent", 0)).startswith(b"sent 0")
    assert (await load_part(log, row, "received", 0)).startswith(b"received 0")
    assert (await load_part(log, replace(row, rounds=()), "sent")).startswith(b"sent 0")
