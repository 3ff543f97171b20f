"""Headers and request targets: what is forwarded and what may be stored; rate limit headers.

Every header is forwarded unless it is hop-by-hop or ours. Only listed headers are stored, so that a credential in an
unexpected header is never written to disk. Names are lower case throughout.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from urllib.parse import unquote_to_bytes

import msgspec

from proxy.model.exchange import Headers

OWN_PREFIX = b"x-palimpsest-"
HOP = b"x-palimpsest-hop"
OWN_COOKIE = b"palimpsest_admin"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_STAY_OF_REQUEST = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_BETA = b"anthropic-beta"
_ALLOW_ORIGIN = b"access-control-allow-origin"
_CREDENTIALS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_QUERY_CREDENTIALS = frozenset(
    {b"access_token", b"api-key", b"api_key", b"apikey", b"auth", b"key", b"sig", b"signature", b"subscription-key"}
    | {b"token", b"x-amz-credential", b"x-amz-security-token", b"x-amz-signature"}
)
_OF_PROVIDERS = (b"anthropic-version", b"anthropic-beta", b"openai-", b"user-agent")
_OF_ONE_BODY = frozenset(
    {b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"idempotency-key"}
)
_PLAIN_JSON = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))
_STORED = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"date",
        b"idempotency-key",
        b"originator",
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"server",
        b"session-id",
        b"thread-id",
        b"user-agent",
        b"x-request-id",
        b"x-session-affinity",
        b"x-session-id",
        b"x-parent-session-id",
        b"x-should-retry",
    }
)
_STORED_PREFIXES = (
    b"anthropic-",
    b"openai-",
    b"x-claude-code-",
    b"x-codex-",
    b"x-openai-",
    b"x-palimpsest-",
    b"x-ratelimit-",
    b"x-stainless-",
)


# More names than any mix of clients and servers uses.
_MOST_VERDICTS = 1024

_name_of, _value_of = itemgetter(0), itemgetter(1)


class _HeaderChoice(dict[bytes, bool]):
    """A filter of headers by name. Every call has the same names, so the verdict on each is cached."""

    def __init__(self, matches: Callable[[bytes], bool]) -> None:
        self._matches = matches

    def __missing__(self, name: bytes) -> bool:
        verdict = self._matches(name)
        if len(self) < _MOST_VERDICTS:
            self[name] = verdict
        return verdict

    def pick(self, headers: Headers) -> Iterator[tuple[bytes, bytes]]:
        """Yield the headers that pass the filter, in order."""
        return compress(headers, map(self.__getitem__, map(_name_of, headers)))


_secret = _HeaderChoice(lambda name: name in _CREDENTIALS)
_stored = _HeaderChoice(lambda name: name in _STORED or name.startswith(_STORED_PREFIXES))
_sent_up = _HeaderChoice(lambda name: name not in _STAY_OF_REQUEST and not name.startswith(OWN_PREFIX))
_sent_down = _HeaderChoice(lambda name: name not in _HOP_BY_HOP and not name.startswith(OWN_PREFIX))


def find_header(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header, empty if absent."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def read_encoding(headers: Headers) -> str:
    """Return the content-encoding of a body: its codings in the order in which they were applied, or an empty string.

    A header that comes more than once is one list.
    """
    values = [value for name, value in headers if name == b"content-encoding"]
    return b",".join(values).decode("latin-1").strip().lower() if values else ""


def forward_request(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the client's headers that go upstream. The sender sets Host and Content-Length."""
    return _forward(headers, _sent_up)


def forward_response(headers: Headers) -> Headers:
    """Return the upstream's headers that go to the client, Content-Length included, for the body is not changed.

    `x-palimpsest-` headers are dropped: an upstream that is also a palimpsest names its own sessions, not ours. No
    upstream may set the cookie that opens our pages.
    """
    fields = _forward(headers, _sent_down)
    if b"set-cookie" in map(_name_of, fields):
        # a browser sends a cookie without a name back as its bare value
        return tuple([(k, v) for k, v in fields if k != b"set-cookie" or not v.lstrip(b" \t=").startswith(OWN_COOKIE)])
    return tuple(fields)


def allows_cross_origin(answered: Headers) -> bool:
    """Return whether a response has a CORS header that lets other origins read it."""
    return _ALLOW_ORIGIN in map(_name_of, answered)


def restrict_cross_origin(asked: Headers, answered: Headers) -> Headers:
    """Return a response's headers with CORS restricted to the requesting page, for requests that need no credential.

    An upstream that lets every page read its responses (`*`) relies on the caller's credential. Here callers need none,
    and a page of another origin could find the response in the browser's cache.
    """
    origin = find_header(asked, b"origin")
    if find_header(answered, _ALLOW_ORIGIN).strip() != b"*" and origin:
        return answered
    left = (_ALLOW_ORIGIN, b"access-control-allow-credentials")  # has no effect with `*`, and must not get one
    fields = [field for field in answered if field[0] not in left]
    if origin:
        fields += [(_ALLOW_ORIGIN, origin), (b"vary", b"origin")]
    return tuple(fields)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address (lower case, without brackets) is a loopback one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def list_hops(headers: Headers) -> list[bytes]:
    """Return the ids of the palimpsest servers that a request came through, in order."""
    if HOP not in map(_name_of, headers):
        return []
    values = b",".join([value for name, value in headers if name == HOP])
    return [hop for part in values.split(b",") if (hop := part.strip())]


def accept_identity_only(headers: Headers) -> Headers:
    """Return the headers with `accept-encoding: identity`, so that the response can be read as it passes."""
    return (*[field for field in headers if field[0] != b"accept-encoding"], (b"accept-encoding", b"identity"))


def drop_encoding(headers: Headers) -> Headers:
    """Return the headers of a body whose content-encoding was undone. Its length is left to whoever sends it."""
    return tuple([field for field in headers if field[0] != b"content-encoding"])


def drop_beta(headers: Headers, begin: bytes) -> Headers:
    """Return the headers without the values of `anthropic-beta` that begin so."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == _BETA:
            values = [part for part in value.split(b",") if not part.strip().startswith(begin)]
            kept += [(name, b",".join(values).strip())] if values else []
        else:
            kept.append((name, value))
    return tuple(kept)


def select_stored(headers: Headers) -> Headers:
    """Return the headers that may be stored."""
    return tuple(_stored.pick(headers))


def select_for_model_list(headers: Headers) -> Headers:
    """Return the headers to ask a caller's upstream for its models: credentials and versions."""
    kept = [field for field in headers if field[0] in _CREDENTIALS or field[0].startswith(_OF_PROVIDERS)]
    return (*kept, (b"accept", b"application/json"), (b"accept-encoding", b"identity"))


def add_to_list(headers: Headers, name: bytes, value: bytes) -> Headers:
    """Return the headers with a value in a header that is a list of values separated by commas."""
    values = [each.strip() for field, listed in headers if field == name for each in listed.split(b",")]
    if value in values:
        return headers
    others = tuple([header for header in headers if header[0] != name])
    return (*others, (name, b",".join([*filter(None, values), value])))


def select_for_own_call(headers: Headers, *, is_same_upstream: bool = True) -> Headers:
    """Return the headers of a call of our own to a caller's upstream, which should look like the caller's.

    Headers that describe the caller's body are left out. Any other upstream gets no header of the caller.
    """
    if not is_same_upstream:
        return _PLAIN_JSON
    kept = [field for field in forward_request(headers) if field[0] not in _OF_ONE_BODY]
    return (*kept, *_PLAIN_JSON)


def list_credentials(headers: Headers, target: bytes = b"", fields: Iterable[bytes] = ()) -> tuple[bytes, ...]:
    """Return all credentials of a request, without their schemes, because an upstream may echo them.

    Includes those in the query and in cookies, and the values of the headers in `fields`, which identify callers.
    """
    found = list(map(strip_scheme, map(_value_of, _secret.pick(headers))))
    for field in fields:
        found += [value for name, value in headers if name == field]
    if b"cookie" in map(_name_of, headers):
        cookies = b";".join([value for name, value in headers if name == b"cookie"])
        found += [cookie.partition(b"=")[2].strip(b' "') for cookie in cookies.split(b";")]
    for part in target.partition(b"?")[2].split(b"&") if b"?" in target else ():
        name, _, value = part.partition(b"=")
        if name.lower() in _QUERY_CREDENTIALS:
            found += [value, unquote_to_bytes(value)]
    return tuple(dict.fromkeys(filter(None, found)))


def is_credential(name: bytes) -> bool:
    """Return whether a request header carries the caller's credential."""
    return name in _CREDENTIALS


def find_credential(headers: Headers) -> bytes:
    """Return the credential of a request, empty if it has none."""
    for name in _CREDENTIALS:
        if value := find_header(headers, name):
            return value
    return b""


def _forward(headers: Headers, choice: _HeaderChoice) -> list[tuple[bytes, bytes]]:
    """Return the headers that pass the filter, without those that a Connection header names."""
    fields = list(choice.pick(headers))
    if b"connection" not in map(_name_of, headers):
        return fields
    left = _read_names(b",".join([value for name, value in headers if name == b"connection"]))
    return [field for field in fields if field[0] not in left]


@lru_cache(maxsize=64)
def _read_names(value: bytes) -> frozenset[bytes]:
    """Return the headers that a Connection header names, besides those that are never forwarded."""
    return frozenset([token.strip().lower() for token in value.split(b",")]) - _HOP_BY_HOP


def redact_target(target: bytes) -> str:
    """Return path and query as they may be stored: without the query's values, which may be keys."""
    path, separator, query = target.partition(b"?")
    names = b"&".join(part.partition(b"=")[0] for part in query.split(b"&")) if separator else b""
    return (path + separator + names).decode("latin-1")


def strip_scheme(value: bytes) -> bytes:
    """Return a credential without its scheme: `Bearer abc` is `abc`."""
    return value.rpartition(b" ")[2]


_TOKENS = (
    b"x-ratelimit-remaining-tokens",
    b"anthropic-ratelimit-tokens-remaining",
    b"anthropic-ratelimit-input-tokens-remaining",
    b"x-ratelimit-remaining-tokens-minute",
)
_REQUESTS = (b"x-ratelimit-remaining-requests", b"anthropic-ratelimit-requests-remaining", b"x-ratelimit-remaining")
_TOKENS_RESET = (
    b"x-ratelimit-reset-tokens",
    b"anthropic-ratelimit-tokens-reset",
    b"anthropic-ratelimit-input-tokens-reset",
)
_REQUESTS_RESET = (b"x-ratelimit-reset-requests", b"anthropic-ratelimit-requests-reset", b"x-ratelimit-reset")
_PAUSE, _PAUSE_MS = (b"retry-after",), (b"retry-after-ms",)
# A response has rate limits if it has one of these. A reset time means nothing alone.
_TELLING = frozenset((*_TOKENS, *_REQUESTS, *_PAUSE, *_PAUSE_MS))
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# A number from the first on is not a duration but a time since 1970, in seconds; from the second on in milliseconds.
_LONGEST, _IN_MS = 1e8, 1e11


class RateLimitHeaders(msgspec.Struct, frozen=True, gc=False):
    """The rate limits that a response's headers state; None for each that they do not."""

    tokens: int | None = None  # remaining
    requests: int | None = None  # remaining
    tokens_reset: float | None = None  # seconds until more tokens are available
    requests_reset: float | None = None  # seconds until more requests are available
    retry_after: float | None = None  # seconds to wait before the next request


def has_rate_limits(headers: Headers) -> bool:
    """Return whether headers state rate limits. This is cheap, because it is called for every response."""
    return not _TELLING.isdisjoint(map(_name_of, headers))


def read_rate_limits(headers: Headers, now_ms: int) -> RateLimitHeaders:
    """Return the rate limits that headers state. `now_ms` is the wall time, for headers with an absolute time."""
    pause = _read_seconds(headers, _PAUSE_MS, now_ms, unit=0.001)
    return RateLimitHeaders(
        _read_left(headers, _TOKENS),
        _read_left(headers, _REQUESTS),
        _read_seconds(headers, _TOKENS_RESET, now_ms),
        _read_seconds(headers, _REQUESTS_RESET, now_ms),
        _read_seconds(headers, _PAUSE, now_ms) if pause is None else pause,
    )


def _read_left(headers: Headers, names: tuple[bytes, ...]) -> int | None:
    """Return the smallest number among these headers."""
    texts = [find_header(headers, name).decode("latin-1").strip() for name in names]
    return min((int(float(text)) for text in texts if _NUMBER.fullmatch(text)), default=None)


def _read_seconds(headers: Headers, names: tuple[bytes, ...], now_ms: int, unit: float = 1.0) -> float | None:
    for name in names:
        text = find_header(headers, name).decode("latin-1").strip()
        if text and (seconds := _read_time(text, now_ms, unit)) is not None:
            return max(0.0, seconds)
    return None


def _read_time(text: str, now_ms: int, unit: float) -> float | None:
    """Return the seconds from now, given as a number, a duration such as `6m0.5s`, or a date."""
    if _NUMBER.fullmatch(text):
        value = float(text) * unit
        if value < _LONGEST:
            return value
        return (value if value < _IN_MS else value / 1000) - now_ms / 1000
    if _DURATION.fullmatch(text):
        return sum(float(count) * _SECONDS[name] for count, name in _PART.findall(text))
    date = _read_date(text)
    return None if date is None else date.timestamp() - now_ms / 1000


def _read_date(text: str) -> datetime | None:
    """Return a date in the format of RFC 3339 or RFC 9110; without a zone it is in UTC."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            date = read(text)
        except (ValueError, TypeError):
            continue
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return None
