"""What litellm raises, as the provider's response in the shape of OpenAI's and Anthropic's errors, or as our own error.

Both SDKs read one shape. Its message is litellm's, which has the provider's in it, so that `wire/overflow` finds there
what it looks for. What no provider has said is an `UpstreamUnreachable`; its text has only names of exceptions, because
it is logged, and the exceptions may quote the conversation.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import httpx
import orjson

from proxy.model.errors import ProxyError, UpstreamUnreachable
from proxy.model.exchange import Headers

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OTHER_TYPE = "api_error"
# litellm finds some of these by texts of which ours are only a part.
_CODES = {
    "ContextWindowExceededError": "context_length_exceeded",
    "ContentPolicyViolationError": "content_policy_violation",
}
_SILENT = 408  # litellm's Timeout
_ERRORS = range(400, 600)
_UNSENT = frozenset({"APIConnectionError"})
_PREFIX = "llm_provider-"
_TELLING = ("anthropic-ratelimit-", "x-ratelimit-")
_TOLD = frozenset({"request-id", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry"})


class ProviderRefusal(Exception):
    """A provider's error: its status, the headers that clients read, and a body in the common shape."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: Headers = ()) -> None:
        super().__init__(message)
        error = {"message": message, "type": _TYPES.get(status, _OTHER_TYPE), "param": None, "code": code}
        self.status = status
        self.body = orjson.dumps({"type": "error", "error": error})
        self.headers = headers


@contextlib.contextmanager
def mapping_errors(upstream: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Turn what litellm raises within into ProviderRefusal or ProxyError."""
    try:
        yield
    except ProxyError:
        raise
    except Exception as error:
        raise explain(error, upstream, secrets) from error


def explain(error: Exception, upstream: str, secrets: Iterable[str] = ()) -> ProxyError | ProviderRefusal:
    """Return what an exception of litellm means. None of `secrets` is in the text."""
    inner = getattr(error, "original_exception", None)  # of an error in the middle of a stream
    error = inner if isinstance(inner, Exception) else error
    status = getattr(error, "status_code", None)
    if isinstance(error, TimeoutError) or status == _SILENT:
        return UpstreamUnreachable(f"the upstream {upstream!r} did not answer litellm in time", was_silent=True)
    chain = list(_list_causes(error))
    names = [type(each).__name__ for each in chain]
    is_unsent = names[0] in _UNSENT or any(isinstance(each, httpx.TransportError | OSError) for each in chain)
    if not isinstance(status, int) or status not in _ERRORS or is_unsent:
        told = " from ".join(dict.fromkeys(names))
        return UpstreamUnreachable(f"litellm got no answer from the upstream {upstream!r}: {told}")
    message = str(getattr(error, "message", "") or error)
    for secret in filter(None, secrets):
        message = message.replace(secret, "[api_key]")
    return ProviderRefusal(status, message, _find_code(error), pick_headers(_find_headers(error)))


def pick_headers(headers: object) -> Headers:
    """Return the headers of a provider's response that clients read: its id, its limits, and when to try again."""
    if not isinstance(headers, Mapping | httpx.Headers):
        return ()
    named = {str(name).lower().removeprefix(_PREFIX): str(value) for name, value in headers.items()}
    picked = [(name, value) for name, value in named.items() if name in _TOLD or name.startswith(_TELLING)]
    return tuple([(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in picked])


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _find_code(error: Exception) -> str | None:
    body = getattr(error, "body", None)
    code = body.get("code") if isinstance(body, dict) else None
    return _CODES.get(type(error).__name__) or (code if isinstance(code, str) else None)


def _find_headers(error: Exception) -> object:
    told = getattr(error, "litellm_response_headers", None)
    return told if told is not None else getattr(getattr(error, "response", None), "headers", None)
