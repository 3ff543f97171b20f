"""The parsing of an answer, without a connection: framing, what is refused, what is left alone."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.incoming import BadAnswer, Incoming

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"


@given(st.sampled_from([CHUNKED, SIZED]), st.sets(st.integers(1, 80)))
def test_an_answer_cut_anywhere_is_the_same_answer(sent: bytes, cuts: set[int]) -> None:
    incoming = Incoming("POST")
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    body = b""
    for start, end in itertools.pairwise(edges):
        incoming.feed(sent[start:end])
        body += incoming.take()
    assert (incoming.status, body, incoming.is_complete, incoming.can_keep) == (200, b"hello world", True, True)


def test_an_interim_answer_is_not_the_answer() -> None:
    incoming = Incoming("POST")
    incoming.feed(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    assert not incoming.has_head
    incoming.feed(SIZED)
    assert (incoming.status, incoming.headers, incoming.is_complete) == (200, ((b"content-length", b"11"),), True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    incoming = Incoming("POST")
    incoming.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not incoming.is_complete
    assert incoming.end()
    assert (incoming.take(), incoming.is_complete) == (b"abc", True)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", SIZED[:-1], CHUNKED[:-2]])
def test_the_end_of_the_connection_does_not_end_any_other_answer(sent: bytes) -> None:
    incoming = Incoming("POST")
    incoming.feed(sent)
    assert not incoming.end()


def test_an_answer_to_head_has_no_body_and_the_connection_is_not_kept() -> None:
    incoming = Incoming("HEAD")
    incoming.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n")
    assert (incoming.is_complete, incoming.take(), incoming.can_keep) == (True, b"", False)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"not http at all\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "101"),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "999"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok", "99"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", "head exceeds"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 600_000, "head exceeds"),
        (CHUNKED.replace(b"6\r\n", b"zz\r\n"), "chunk"),
        (SIZED + SIZED, "behind the answer"),
    ],
)
def test_what_is_no_single_answer_is_refused(sent: bytes, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason):
        Incoming("POST").feed(sent)


def test_the_bytes_before_a_fault_can_still_be_taken() -> None:
    incoming = Incoming("POST")
    with pytest.raises(BadAnswer):
        incoming.feed(CHUNKED.replace(b"6\r\n", b"zz\r\n"))
    assert incoming.take() == b"hello"


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", CHUNKED[:-2] + b"X: "])
def test_an_endless_field_is_refused_before_and_behind_the_body(begin: bytes) -> None:
    incoming = Incoming("POST")
    incoming.feed(begin)
    with pytest.raises(BadAnswer, match="exceeds"):
        for _ in range(30):
            incoming.feed(b"a" * 10_000)


def test_a_long_body_is_no_endless_field() -> None:
    incoming = Incoming("POST")
    incoming.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")
    for _ in range(9):
        incoming.feed(bytes(100_000))
    assert incoming.is_complete
