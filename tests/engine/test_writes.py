"""Writes of one turn: one at once, the others together and in order, none to a transport that closes."""

import asyncio

from proxy.engine.writes import Writes
from tests.support.writes import Page, as_transport


def make_pages() -> tuple[list[tuple[str, bytes]], Page, Page]:
    """Two transports and the book they are written in."""
    book: list[tuple[str, bytes]] = []
    return book, Page(book, "a"), Page(book, "b")


async def test_the_first_write_of_a_turn_leaves_at_once_and_the_others_behind_it_in_order() -> None:
    book, a, b = make_pages()
    writes = Writes()
    writes.put(as_transport(a), b"1")
    writes.put(as_transport(b), b"2")
    writes.put(as_transport(a), b"3")
    writes.put(as_transport(b), b"4")
    assert book == [("a", b"1")]
    await asyncio.sleep(0)
    assert book == [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]


async def test_every_turn_has_a_first_write() -> None:
    book, a, b = make_pages()
    writes = Writes()
    for page in (a, b, a):
        before = len(book)
        writes.put(as_transport(page), b"x")
        assert len(book) == before + 1
        await asyncio.sleep(0)


async def test_what_is_flushed_leaves_at_once_and_what_follows_waits_again() -> None:
    book, a, b = make_pages()
    writes = Writes()
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
    writes = Writes()
    for page in (a, b, a, b):
        writes.put(as_transport(page), b"x")
    b.is_closed = True
    await asyncio.sleep(0)
    assert book == [("a", b"x"), ("a", b"x")]


async def test_a_write_has_been_done_once_its_turn_is_over() -> None:
    _, a, b = make_pages()
    writes = Writes()
    assert writes.put(as_transport(a), b"1") < writes.turn
    held = writes.put(as_transport(b), b"2")
    assert held == writes.turn
    await asyncio.sleep(0)
    assert held < writes.turn
    again = [writes.put(as_transport(a), b"3") for _ in range(2)][1]
    assert again == writes.turn
    writes.flush()
    assert again < writes.turn
