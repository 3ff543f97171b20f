"""What an answer's header says of how much may still be asked (BEHAVIOUR B30).

Rule: lenient and total; a field nobody understands says nothing. Fields as OpenAI, Azure, Groq, Mistral, Anthropic and
OpenRouter document them: what is left as a number, when it comes back as a duration, a time or seconds.
"""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from proxy.model.exchange import Headers
from proxy.wire.headers import find

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
# What is left tells enough: a time at which more comes means nothing alone.
_TELLING = frozenset((*_TOKENS, *_REQUESTS, *_PAUSE, *_PAUSE_MS))
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# A number above it is no duration but a time: in seconds, and in milliseconds, since 1970.
_LONGEST, _IN_MS = 1e8, 1e11


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """What is left of tokens and requests, and the seconds until more comes; None where nobody says.

    `retry_after`: the seconds for which nothing is to be asked.
    """

    tokens: int | None = None
    requests: int | None = None
    tokens_reset: float | None = None
    requests_reset: float | None = None
    retry_after: float | None = None


def tells_limits(headers: Headers) -> bool:
    """Whether a header has anything to say; cheap, for every answer is asked."""
    return not _TELLING.isdisjoint([name for name, _ in headers])


def read_allowance(headers: Headers, now_ms: int) -> Allowance:
    """What a header says. `now_ms` is the wall time, for fields that name one."""
    pause = _read_seconds(headers, _PAUSE_MS, now_ms, unit=0.001)
    return Allowance(
        _read_left(headers, _TOKENS),
        _read_left(headers, _REQUESTS),
        _read_seconds(headers, _TOKENS_RESET, now_ms),
        _read_seconds(headers, _REQUESTS_RESET, now_ms),
        _read_seconds(headers, _PAUSE, now_ms) if pause is None else pause,
    )


def _read_left(headers: Headers, names: tuple[bytes, ...]) -> int | None:
    """The least of what the fields say."""
    texts = [find(headers, name).decode("latin-1").strip() for name in names]
    return min((int(float(text)) for text in texts if _NUMBER.fullmatch(text)), default=None)


def _read_seconds(headers: Headers, names: tuple[bytes, ...], now_ms: int, unit: float = 1.0) -> float | None:
    for name in names:
        text = find(headers, name).decode("latin-1").strip()
        if text and (seconds := _read_time(text, now_ms, unit)) is not None:
            return max(0.0, seconds)
    return None


def _read_time(text: str, now_ms: int, unit: float) -> float | None:
    """Seconds from now: of a number, of a duration such as `6m0.5s`, or until a date."""
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
    """A date as RFC 3339 or RFC 9110 write it; of one without a zone it is UTC's."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            date = read(text)
        except (ValueError, TypeError):
            continue
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return None
