"""Credentials that an answer echoes: none is kept, whatever the answer is packed in."""

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.encoding import decode_content
from proxy.wire.redaction import redact, redact_answer

SECRET = b"sk-0123456789abcdefghij"


@given(st.lists(st.one_of(st.binary(max_size=10), st.just(SECRET))), st.booleans())
def test_an_echoed_credential_is_gone_and_nothing_else_moved(pieces: list[bytes], is_error: bool) -> None:
    content = b"".join(pieces)
    kept = redact(content, [SECRET], is_error=is_error)
    assert SECRET not in kept
    assert len(kept) == len(content)
    assert all(now in (before, ord("*")) for before, now in zip(content, kept, strict=True))
    assert kept.count(b"*" * len(SECRET)) >= content.count(SECRET)


def test_every_secret_is_searched_for() -> None:
    other = b"key-" + b"z" * 20
    assert redact(SECRET + b"-" + other, [SECRET, other], is_error=False) == b"*" * 23 + b"-" + b"*" * 24


@pytest.mark.parametrize(
    ("secret", "is_error", "is_hidden"),
    [(b"lm-studio", False, False), (b"lm-studio", True, True), (b"ollama", True, False), (b"", True, False)],
)
def test_a_short_dummy_key_is_searched_for_in_error_texts_only(secret: bytes, is_error: bool, is_hidden: bool) -> None:
    content = b"ask ollama or lm-studio"
    assert (redact(content, [secret], is_error=is_error) != content) == is_hidden


def test_a_secret_is_known_with_its_slashes_escaped() -> None:
    secret = b"sk-or-v1/0123456789abcdef"
    content = b'{"error":"bad key sk-or-v1\\/0123456789abcdef"}'
    assert redact(content, [secret], is_error=True) == b'{"error":"bad key ' + b"*" * 26 + b'"}'


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "X-GZip": gzip.compress,
    "deflate": zlib.compress,
}
ECHO = b'{"error":"bad key ' + SECRET + b'"}'
CAP = 1000


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
@pytest.mark.parametrize("status", [200, 401])
def test_a_secret_in_encoded_content_is_overwritten(encoding: str, status: int) -> None:
    headers = ((b"content-encoding", encoding.encode()),)
    for cap, whole in ((CAP, ECHO.replace(SECRET, b"*" * len(SECRET))), (5, ECHO[:5])):
        kept = redact_answer(ENCODERS[encoding](ECHO), headers, status, [SECRET], cap)
        assert decode_content(kept, encoding, CAP) == whole


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_encoded_content_without_a_secret_keeps_its_bytes(encoding: str) -> None:
    content = ENCODERS[encoding](b"all is well")
    assert redact_answer(content, ((b"content-encoding", encoding.encode()),), 200, [SECRET], CAP) == content


@pytest.mark.parametrize("headers", [(), ((b"content-encoding", b" Identity"),)])
def test_plain_content_is_searched_whole(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert redact_answer(ECHO, headers, 200, [SECRET], 5) == ECHO.replace(SECRET, b"*" * len(SECRET))
    assert redact_answer(b"ask lm-studio", headers, 400, [b"lm-studio"], CAP) == b"ask *********"
    assert redact_answer(b"ask lm-studio", headers, 399, [b"lm-studio"], CAP) == b"ask lm-studio"


@pytest.mark.parametrize(("status", "is_kept"), [(200, True), (400, True), (401, False), (403, False)])
def test_what_refuses_a_credential_and_cannot_be_read_is_not_kept(status: int, is_kept: bool) -> None:
    headers = ((b"content-encoding", b"br"),)
    assert redact_answer(b"packed", headers, status, [SECRET], CAP) == (b"packed" if is_kept else b"")
    assert redact_answer(b"packed", headers, status, [], CAP) == b"packed"
