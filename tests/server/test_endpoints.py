"""What a path of the API takes, and our own errors: one JSON shape, recognisable as ours."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from proxy.model.errors import (
    BadRequest,
    NotFound,
    ProxyError,
    SessionIdle,
    StoreUnavailable,
    TooLarge,
    TooSoon,
    Unproven,
    UpstreamUnreachable,
)
from proxy.server.endpoints import (
    Endpoint,
    read_body,
    read_document,
    read_number,
)
from proxy.server.errors import Refused, render_body, render_error, render_plain


class Shown(msgspec.Struct, frozen=True):
    """What of a path is shown."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5
    whole: bool = False


async def show(query: Shown) -> list[object]:
    return [query.limit, query.whole]


async def miss(request: Request) -> Response:
    raise NotFound("it is not here")


PATH = Endpoint(show).on("DELETE", miss, "name")


async def ask(method: str, query: str = "", path: Endpoint = PATH) -> tuple[int, dict[str, str], Any]:
    """Status, headers and document of the answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/", "query_string": query.encode(), "headers": []}
    await path(scope, None, send)  # type: ignore[arg-type]
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], fields, json.loads(sent[1]["body"] or b"null")


async def test_each_method_has_its_own_answer_and_parameters() -> None:
    assert (await ask("GET", "limit=7&whole=true"))[2] == [7, True]
    assert (await ask("GET", "token=x"))[0] == 400
    assert (await ask("HEAD"))[0] == 200
    assert (await ask("DELETE", "name=x"))[2]["error"]["code"] == "not_found"
    status, _, told = await ask("DELETE", "limit=7")
    assert (status, "this path takes: name" in told["error"]["message"]) == (400, True)


async def test_a_method_that_is_not_known_is_told_those_that_are() -> None:
    status, fields, _ = await ask("POST")
    assert (status, fields["allow"]) == (405, "GET, HEAD, DELETE")
    assert (await ask("GET", path=Endpoint().on("POST", miss)))[1]["allow"] == "POST"


async def test_nothing_it_answers_can_be_a_page() -> None:
    for method in ("GET", "DELETE", "PUT"):
        _, fields, _ = await ask(method)
        assert fields["content-security-policy"] == "default-src 'none'; sandbox"
        assert fields["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("query", ["limit=0", "limit=10", "limit=x", "whole=yes", "whole="])
async def test_what_a_parameter_cannot_be_is_an_error(query: str) -> None:
    assert (await ask("GET", query))[0] == 400


def test_a_number_has_nine_digits_at_most() -> None:
    assert read_number("007", "n") == 7
    for text in ("", "-1", "²", "1" * 10, "1.0"):
        with pytest.raises(BadRequest, match="n is a number from 0 to 999999999"):
            read_number(text, "n")


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a path may be asked."""

    level: int = 1


def test_what_a_body_leaves_out_is_as_usual() -> None:
    assert read_document(b"", Asked) == read_document(b"{}", Asked) == Asked(1)
    assert read_document(b'{"level": 3}', Asked) == Asked(3)


@pytest.mark.parametrize(
    "body", [b"{", b'{"level": "3"}', b'{"depth": 1}', b"[]", b'{"level": 3}x', b"\xff", b'"\xff"']
)
def test_a_body_that_says_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body is not valid"):
        read_document(body, Asked)


async def test_a_body_is_read_up_to_its_cap() -> None:
    pieces = [b"abc", b"def"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    assert await read_body(Request(scope, receive), 6) == b"abcdef"
    pieces[:] = [b"abc", b"def"]
    with pytest.raises(TooLarge, match="may have 5 bytes at most"):
        await read_body(Request(scope, receive), 5)


class Named(msgspec.Struct, frozen=True):
    """A path."""

    n: Annotated[int, Meta(ge=1, le=9)]


class Wanted(msgspec.Struct, frozen=True):
    """What may be asked of it."""

    q: Annotated[str, Meta(description="what to look for")]
    most: Annotated[int, Meta(le=5)] | None = None
    kind: Literal["a", "b"] = "a"
    is_on: bool = False


async def find(path: Named, query: Wanted, body: Asked) -> list[object]:
    """Find something."""
    return [path.n, query.q, query.most, query.kind, query.is_on, body.level]


async def nothing() -> list[int]:
    """Take nothing."""
    return [1]


async def ask_typed(query: str, n: str = "3", body: bytes = b"") -> tuple[int, Any]:
    """Status and document of the answer of a handler that has types."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": query.encode(), "headers": []}
    await Endpoint().on("POST", find)({**scope, "path_params": {"n": n}}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_a_handler_gets_what_its_types_say() -> None:
    assert await ask_typed("q=x") == (200, [3, "x", None, "a", False, 1])
    assert await ask_typed("q=&most=5&kind=b&is_on=TRUE", "9", b'{"level": 2}') == (200, [9, "", 5, "b", True, 2])
    assert (await ask("GET", path=Endpoint(nothing)))[2] == [1]


@pytest.mark.parametrize(
    ("query", "n", "body", "told"),
    [
        ("", "3", b"", "q is missing: what to look for"),
        ("q=x", "x", b"", "n is a number from 0 to 999999999, not 'x'"),
        ("q=x", "0", b"", "n is 1 to 9, not 0"),
        ("q=x&most=6", "3", b"", "most is 0 to 5, not 6"),
        ("q=x&kind=c", "3", b"", "kind is one of a, b, not 'c'"),
        ("q=x&is_on=1", "3", b"", "is_on is true or false, not '1'"),
        ("q=x&other=1", "3", b"", "this path takes: is_on, kind, most, q"),
        ("q=x&q=y", "3", b"", "q' is given more than once"),
        ("q=x", "3", b'{"level": "2"}', "the body is not valid"),
    ],
)
async def test_what_a_handler_cannot_take_is_refused(query: str, n: str, body: bytes, told: str) -> None:
    status, document = await ask_typed(query, n, body)
    assert status == 400
    assert told in document["error"]["message"]


def test_what_a_handler_takes_is_read_from_its_annotations() -> None:
    (operation,) = Endpoint().on("POST", find).operations.values()
    assert (operation.path, operation.query, operation.body) == (Named, Wanted, Asked)
    assert (operation.result, operation.text) == (list[object], "Find something.")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequest("why"), 400, "bad_request"),
        (TooLarge("why"), 413, "too_large"),
        (UpstreamUnreachable("why"), 502, "upstream_unreachable"),
        (UpstreamUnreachable("why", was_silent=True), 504, "upstream_silent"),
        (StoreUnavailable("why"), 503, "store_unavailable"),
        (Refused(426, "upgrade_required", "why"), 426, "upgrade_required"),
        (Unproven("why"), 403, "unproven_credential"),
        (SessionIdle("why"), 409, "session_idle"),
        (TooSoon("why", 3.2), 429, "too_soon"),
    ],
)
def test_an_error_is_json_that_both_kinds_of_sdk_read(error: ProxyError, status: int, code: str) -> None:
    got, headers, body = render_error(error)
    fields = dict(headers)
    assert got == status
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"content-length"] == b"%d" % len(body)
    assert fields[b"x-palimpsest-error"] == b"true"
    assert json.loads(body) == {
        "type": "error",
        "error": {"message": "palimpsest: why", "type": "palimpsest_error", "param": None, "code": code},
    }


@pytest.mark.parametrize(("seconds", "told"), [(0.01, b"1"), (29.0, b"29"), (29.2, b"30")])
def test_what_comes_too_soon_is_told_when_to_come_again(seconds: float, told: bytes) -> None:
    _, headers, _ = render_error(TooSoon("why", seconds))
    assert dict(headers)[b"retry-after"] == told


def test_text_from_outside_stays_text() -> None:
    message = 'a "quoted" \u2028 line\r\nx: 1'
    assert json.loads(render_body("c", message))["error"]["message"] == f"palimpsest: {message}"


def test_a_whole_answer_closes_the_connection() -> None:
    head, _, body = render_plain(431, "headers_too_large", "why").partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    assert line == b"HTTP/1.1 431 Request Header Fields Too Large"
    assert b"content-length: %d" % len(body) in fields
    assert b"connection: close" in fields
    assert json.loads(body)["error"]["code"] == "headers_too_large"
