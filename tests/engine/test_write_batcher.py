"""Writes of one turn: one at once, the others together and in order, none to a transport that closes."""

import asyncio

from proxy.engine.runtime import WriteBatcher
from tests.support.writes import Page, as_transport


def make_pages() -> tuple[list[tuple[str, bytes]], Page, Page]:
    """Two transports and the book they are written in."""
    book: list[tuple[str, bytes]] = []
    return book, Page(book, "a"), Page(book, "b")


def make_writes(calls: int = 100) -> WriteBatcher:
    """Where so many calls write, on a clock that stands still."""
    return WriteBatcher(range(calls), lambda: 0.0)


async def test_the_first_write_of_a_turn_leaves_at_once_and_the_others_behind_it_in_order() -> None:
    book, a, b = make_pages()
    writes = make_writes()
    writes.put(as_transport(a), b"1")
    writes.put(as_transport(b), b"2")
    writes.put(as_transport(a), b"3")
    writes.put(as_transport(b), b"4")
    assert book == [("a", b"1")]
    await asyncio.sleep(0)
    assert book == [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]


async def test_every_turn_has_a_first_write() -> None:
    book, a, b = make_pages()
    writes = make_writes()
    for page in (a, b, a):
        before = len(book)
        writes.put(as_transport(page), b"x")
        assert len(book) == before + 1
        await asyncio.sleep(0)


async def test_what_is_flushed_leaves_at_once_and_what_follows_waits_again() -> None:
    book, a, b = make_pages()
    writes = make_writes()
    for content in (b"1", b"2"):
        writes.put(as_transport(a), content)
    writes.flush()
    assert book == [("a", b"1"), ("a", b"2")]
    writes.put(as_transport(b), b"3")
    assert book[2:] == []
    await asyncio.sleep(0)
    assert book[2:] == [("b", b"3")]


async def test_nothing_is_written_to_a_transport_that_closes_meanwhile() -> None:
    book, a, b = make_pages()
    writes = make_writes()
    for page in (a, b, a, b):
        writes.put(as_transport(page), b"x")
    b.is_closed = True
    await asyncio.sleep(0)
    assert book == [("a", b"x"), ("a", b"x")]


async def test_a_write_has_been_done_once_its_turn_is_over() -> None:
    _, a, b = make_pages()
    writes = make_writes()
    assert writes.put(as_transport(a), b"1") < writes.turn
    held = writes.put(as_transport(b), b"2")
    assert held == writes.turn
    await asyncio.sleep(0)
    assert held < writes.turn
    again = [writes.put(as_transport(a), b"3") for _ in range(2)][1]
    assert again == writes.turn
    writes.flush()
    assert again < writes.turn


async def test_of_few_calls_every_write_leaves_at_once() -> None:
    book, a, b = make_pages()
    writes = make_writes(calls=7)
    for page in (a, b, a):
        assert writes.put(as_transport(page), b"x") < writes.turn
    assert book == [("a", b"x"), ("b", b"x"), ("a", b"x")]


async def test_nothing_waits_longer_than_a_millisecond_for_a_turn_that_takes_its_time() -> None:
    book, a, b = make_pages()
    now = 5.0
    writes = WriteBatcher(range(8), lambda: now)
    for content, at, written in [
        (b"1", 5.0, 1),
        (b"2", 5.0009, 1),
        (b"3", 5.0011, 3),  # late, so that it leaves with what waits
        (b"4", 5.002, 3),
        (b"5", 5.0022, 5),
    ]:
        now = at
        turn = writes.put(as_transport(b if content in b"24" else a), content)
        assert len(book) == written
        assert (turn < writes.turn) == (len(book) == int(content))
    await asyncio.sleep(0)
    assert [content for _, content in book] == [b"1", b"2", b"3", b"4", b"5"]
