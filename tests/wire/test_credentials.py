"""Credentials: whose they are, and that none is stored."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.wire.body import decode_content
from proxy.wire.credentials import (
    find_owner,
    find_provider,
    is_jwt,
    is_subscription,
    read_claims,
    redact,
    redact_answer,
    redact_headers,
    redact_quickly,
)


def token(claims: object) -> bytes:
    return b"eyJhbGciOiJ9." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b".c2ln"


def test_claims_are_read_as_they_stand() -> None:
    assert {name: bytes(raw) for name, raw in read_claims(token({"iss": "a", "n": 1})).items()} == {
        "iss": b'"a"',
        "n": b"1",
    }


@pytest.mark.parametrize("text", [b"sk-1", b"a.b.c", b"eyJ.ey!!.x", b"eyJ.eyJzdWIi.x"])
def test_what_is_no_token_claims_nothing(text: bytes) -> None:
    assert not read_claims(text)


def test_the_form_alone_tells_a_token() -> None:
    assert is_jwt(b"eyJ.eyJzdWIi.x")
    assert not is_jwt(b"sk-proj-1")


@pytest.mark.parametrize(
    "headers",
    [
        ((b"authorization", b"Bearer sk-ant-oat01-x"),),
        ((b"x-api-key", b"sk-ant-oat01-x"),),
        ((b"authorization", b"Bearer gho_16C7e42F292c6912E7710c838347Ae178B4a"),),
        ((b"authorization", b"Bearer tid=1;exp=2"),),
        ((b"authorization", b"Bearer " + token({"iss": "https://auth.openai.com"})),),
        ((b"authorization", b"Bearer " + token({"iss": "accounts.google.com"})),),
        ((b"authorization", b"Bearer " + token({"iss": 7})),),
        ((b"authorization", b"Bearer " + token({"iss": "http://[x"})),),
        ((b"authorization", b"Bearer eyJ.eyJzdWIi.x"),),
        ((b"authorization", b"Bearer x"), (b"chatgpt-account-id", b"1")),
        ((b"authorization", b"Bearer x"), (b"copilot-integration-id", b"vscode-chat")),
    ],
)
def test_a_plan_is_known_by_its_credential(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert is_subscription(headers)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer sk-proj-1",
        b"Bearer sk-ant-api03-x",
        b"Bearer " + token({"iss": "https://gateway.example", "sub": "a"}),
        b"Bearer " + token({"sub": "a"}),
    ],
)
def test_a_key_is_no_plan(value: bytes) -> None:
    assert not is_subscription(((b"authorization", value),))


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
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "gzip, br": lambda content: brotli.compress(gzip.compress(content)),
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
    for encoding, content in ((b"compress", b"packed"), (b"br", b"this is plain text")):
        headers = ((b"content-encoding", encoding),)
        for redacted in (
            redact_answer(content, headers, status, [SECRET], CAP),
            redact_quickly(content, headers, status, [SECRET]),
        ):
            assert redacted == (content if is_kept else b"")
        assert redact_answer(content, headers, status, [], CAP) == content


def test_plain_content_that_claims_an_encoding_is_searched_as_it_is() -> None:
    hidden = ECHO.replace(SECRET, b"*" * len(SECRET))
    assert redact_answer(ECHO, ((b"content-encoding", b"gzip"),), 200, [SECRET], CAP) == hidden


# --- how long it takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
@pytest.mark.parametrize("at", [0, 900_000, 1_500_000])
def test_encoded_content_is_searched_to_its_end_but_not_while_others_wait(encoding: str, at: int) -> None:
    plain = b"x" * at + SECRET + b"y" * (2_000_000 - at)
    headers, content = ((b"content-encoding", encoding.encode()),), ENCODERS[encoding](plain)
    assert redact_quickly(content, headers, 200, [SECRET]) is None
    kept = redact_answer(content, headers, 200, [SECRET], 1_200_000)
    assert decode_content(kept, encoding, 10**7) == plain.replace(SECRET, b"*" * len(SECRET))[:1_200_000]


def test_a_credential_across_two_pieces_is_found() -> None:
    plain = b"x" * (256 * 1024 - 7) + SECRET + b"y" * 1_000_000
    content = gzip.compress(plain)
    kept = redact_answer(content, ((b"content-encoding", b"gzip"),), 200, [SECRET], 100)
    assert gzip.decompress(kept) == b"x" * 100


def test_short_encoded_content_is_searched_at_once() -> None:
    headers = ((b"content-encoding", b"br"),)
    kept = redact_quickly(brotli.compress(ECHO), headers, 200, [SECRET])
    assert kept is not None
    assert brotli.decompress(kept) == ECHO.replace(SECRET, b"*" * len(SECRET))
    assert redact_quickly(b"", headers, 401, [SECRET]) == b""
    assert redact_quickly(b"packed", ((b"content-encoding", b"none"),), 401, []) == b"packed"


def test_what_has_no_end_is_not_kept() -> None:
    bomb = gzip.compress(b"\0" * 70_000_000)
    assert redact_answer(bomb, ((b"content-encoding", b"gzip"),), 200, [SECRET], CAP) == b""


# --- header fields ---------------------------------------------------------------------------------------------------


def test_a_credential_in_a_field_is_overwritten() -> None:
    fields = ((b"x-request-id", b"req-" + SECRET + b"-1"), (b"openai-organization", b"org"))
    assert redact_headers(fields, [SECRET], is_error=False) == (
        (b"x-request-id", b"req-" + b"*" * 23 + b"-1"),
        fields[1],
    )
    assert redact_headers(fields, [b"other" * 5], is_error=False) is fields
    assert redact_headers(((b"server", b"lm-studio"),), [b"lm-studio"], is_error=False) == ((b"server", b"lm-studio"),)
    assert redact_headers(((b"server", b"lm-studio"),), [b"lm-studio"], is_error=True) == ((b"server", b"*" * 9),)


# --- streams that spell a credential in pieces -----------------------------------------------------------------------

SLASHED = b"sk-or-v1/0123456789abcdef"
LINES: dict[str, Callable[[str, int], bytes]] = {
    "chat": lambda text, i: _event({"choices": [{"index": i, "delta": {"content": text}}]}),
    "arguments": lambda text, i: _event(
        {"choices": [{"delta": {"tool_calls": [{"index": i, "function": {"arguments": text}}]}}]}
    ),
    "responses": lambda text, i: _event({"item_id": f"msg_{i}", "output_index": i, "content_index": 0, "delta": text}),
    "messages": lambda text, i: _event({"delta": {"type": "text_delta", "text": text}, "index": i}),
    "lines": lambda text, i: json.dumps({"message": {"content": text, "index": i}}).encode() + b"\n",
}


def _event(value: object) -> bytes:
    return b"event: x\r\ndata: " + json.dumps(value, separators=(",", ":")).encode() + b"\r\n\r\n"


def _cut(secret: bytes, cuts: set[int]) -> list[str]:
    text, places = "so " + secret.decode() + " it is", sorted({0, *cuts, len(secret) + 9})
    return [text[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("form", sorted(LINES))
@pytest.mark.parametrize("secret", [SECRET, SLASHED])
@given(cuts=st.sets(st.integers(1, 31), min_size=1))
@example(cuts={4})  # behind the first character of the credential
def test_a_credential_in_pieces_is_overwritten_and_nothing_else(form: str, secret: bytes, cuts: set[int]) -> None:
    stream = b"".join(LINES[form](piece, 0) for piece in _cut(secret, cuts))
    expected = b"".join(LINES[form](piece, 0) for piece in _cut(b"*" * len(secret), cuts))
    assert redact_quickly(stream, (), 200, [secret]) == expected


@pytest.mark.parametrize("cut", [3, 11, 12, 20])
def test_a_credential_in_pieces_is_known_with_its_slashes_escaped(cut: int) -> None:
    stream = b"".join(LINES["chat"](piece, 0) for piece in _cut(SLASHED, {cut})).replace(b"/", b"\\/")
    kept = redact_quickly(stream, (), 200, [SLASHED])
    assert kept is not None
    assert (len(kept), kept.count(b"*"), b"0123" in kept) == (len(stream), len(SLASHED) + 1, False)


@pytest.mark.parametrize("form", sorted(LINES))
def test_choices_that_come_in_turns_are_read_apart(form: str) -> None:
    line = LINES[form]
    stream = b"".join(
        line(piece, 0) + line(f"other {i}", 1) for i, piece in enumerate(_cut(SECRET, set(range(1, 29, 3))))
    )
    kept = redact_answer(stream, (), 200, [SECRET], CAP)
    hidden = b"".join(
        line(piece, 0) + line(f"other {i}", 1) for i, piece in enumerate(_cut(b"*" * 23, set(range(1, 29, 3))))
    )
    assert kept == hidden


def test_a_piece_that_the_stream_was_cut_in_counts() -> None:
    stream = LINES["chat"](SECRET[:10].decode(), 0) + b'data: {"choices":[{"index":0,"delta":{"content":"' + SECRET[10:]
    kept = redact_quickly(stream, (), 200, [SECRET])
    assert kept == stream.replace(SECRET[:10], b"*" * 10).replace(SECRET[10:], b"*" * 13)


def test_pieces_that_only_look_like_it_stay() -> None:
    stream = b"".join(LINES["chat"](piece, 0) + LINES["chat"](" ", 0) for piece in _cut(SECRET, {8, 16}))
    assert redact_quickly(stream, (), 200, [SECRET]) == stream


def test_every_time_that_it_is_spelt_is_found_in_encoded_streams_too() -> None:
    stream = b"".join(LINES["chat"](piece, 0) for piece in ["", *_cut(SECRET, {9, 20}) * 2])
    hidden = b"".join(LINES["chat"](piece, 0) for piece in ["", *_cut(b"*" * 23, {9, 20}) * 2])
    kept = redact_quickly(zstandard.compress(stream), ((b"content-encoding", b"zstd"),), 200, [SECRET])
    assert kept is not None
    assert decode_content(kept, "zstd", 10_000) == hidden


def test_a_long_stream_that_may_spell_one_is_not_read_while_others_wait() -> None:
    stream = LINES["chat"]("x" * 300_000, 0) + b"".join(LINES["chat"](piece, 0) for piece in _cut(SECRET, {9, 20}))
    assert redact_quickly(stream, (), 200, [SECRET]) is None
    kept = redact_answer(stream, (), 200, [SECRET], CAP)
    assert len(kept) == len(stream)
    assert kept.endswith(b"".join(LINES["chat"](piece, 0) for piece in _cut(b"*" * 23, {9, 20})))
    stream = stream[250_000:]
    assert redact_quickly(stream, (), 200, [SECRET]) == redact_answer(stream, (), 200, [SECRET], CAP) != stream
    stream = LINES["chat"]("x" * 100_000, 0) + stream[50_000:]
    assert redact_quickly(stream, (), 200, [SECRET]) is None
    assert redact_quickly(b"x" * 100_000, (), 200, [SECRET]) == b"x" * 100_000


@pytest.mark.parametrize(
    ("credential", "owner"),
    [
        (b"sk-ant-api03-x", "Anthropic"),
        (b"sk-proj-x", "OpenAI"),
        (b"sk-or-v1-x", "OpenRouter"),
        (b"AIzaSyX", "Google"),
        (b"gsk_x", "Groq"),
        (b"xai-x", "xAI"),
        (b"ghu_x", "GitHub"),
        (b"sk-plain-of-anybody", ""),
        (b"", ""),
    ],
)
def test_the_form_of_a_credential_names_its_provider(credential: bytes, owner: str) -> None:
    assert find_owner(credential) == owner


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "OpenAI"),
        ("openrouter.ai", "OpenRouter"),
        ("api.x.ai", "xAI"),
        ("api.githubcopilot.com", "GitHub"),
        ("notopenai.com", ""),
        ("openai.com.example", ""),
        ("127.0.0.1", ""),
        ("", ""),
    ],
)
def test_a_host_is_that_of_a_provider_by_whole_labels(host: str, provider: str) -> None:
    assert find_provider(host) == provider
