"""What litellm raises, as a client is told it."""

import json

import httpx
import pytest

from proxy.model.errors import BadRequest, UpstreamUnreachable
from proxy.upstream.litellm_errors import ProviderRefusal, explain, mapping_errors, pick_headers


class Raised(Exception):
    """An exception with what litellm's have."""

    def __init__(self, message: str = "no good", **told: object) -> None:
        super().__init__(message)
        self.__dict__.update(told)


class APIConnectionError(Raised):
    """A namesake of litellm's, which has a status although nothing was answered."""


class ContextWindowExceededError(Raised):
    """A namesake of litellm's."""


def read(refusal: object) -> dict[str, object]:
    assert isinstance(refusal, ProviderRefusal)
    value: dict[str, object] = json.loads(refusal.body)["error"]
    return value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Raised(status_code=400), None),
        (Raised(status_code=400, body={"code": "why"}), "why"),
        (Raised(status_code=400, body={"code": 7}), None),
        (ContextWindowExceededError(status_code=400, body={"code": "why"}), "context_length_exceeded"),
    ],
)
def test_a_code_is_that_of_the_provider_or_of_what_litellm_recognised(error: Exception, code: str | None) -> None:
    assert read(explain(error, "u")) == {
        "message": "no good",
        "type": "invalid_request_error",
        "param": None,
        "code": code,
    }


def test_an_error_in_a_stream_is_told_by_what_led_to_it() -> None:
    inner = Raised("the provider's", status_code=429)
    assert read(explain(Raised(status_code=503, original_exception=inner), "u"))["message"] == "the provider's"


@pytest.mark.parametrize("error", [TimeoutError(), Raised(status_code=408)])
def test_silence_is_a_timeout(error: Exception) -> None:
    told = explain(error, "u")
    assert isinstance(told, UpstreamUnreachable)
    assert (told.status, told.code) == (504, "upstream_silent")


@pytest.mark.parametrize("status", [None, 200, "400"])
def test_what_has_no_status_of_an_error_was_no_response(status: object) -> None:
    assert isinstance(explain(Raised(status_code=status), "u"), UpstreamUnreachable)


def test_a_connection_that_failed_is_no_response_whatever_status_litellm_gives_it() -> None:
    error = Raised("secret text", status_code=500)
    error.__cause__ = httpx.ConnectError("refused")
    error.__cause__.__context__ = error  # a circle
    assert str(explain(error, "u")).endswith("'u': Raised from ConnectError")
    assert str(explain(APIConnectionError(status_code=500), "u")).endswith("'u': APIConnectionError")


@pytest.mark.parametrize(
    ("headers", "picked"),
    [
        (None, ()),
        ({"Retry-After": "7", "server": "s"}, ((b"retry-after", b"7"),)),
        ({"llm_provider-x-ratelimit-limit-tokens": 9}, ((b"x-ratelimit-limit-tokens", b"9"),)),
        (
            httpx.Headers({"anthropic-ratelimit-tokens-remaining": "1"}),
            ((b"anthropic-ratelimit-tokens-remaining", b"1"),),
        ),
    ],
)
def test_headers_that_clients_read_are_kept(headers: object, picked: object) -> None:
    assert pick_headers(headers) == picked


def test_headers_are_found_where_litellm_puts_them() -> None:
    told = explain(Raised(status_code=429, litellm_response_headers={"retry-after": "7"}), "u")
    assert isinstance(told, ProviderRefusal)
    assert told.headers == ((b"retry-after", b"7"),)


def test_our_own_errors_stay_as_they_are() -> None:
    with pytest.raises(BadRequest, match="ours"), mapping_errors("u"):
        raise BadRequest("ours")
    with pytest.raises(ProviderRefusal, match=r"with \[api_key\]"), mapping_errors("u", ("sk-1",)):
        raise Raised("with sk-1", status_code=400)
