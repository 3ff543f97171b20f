"""What is known of the models that are asked for summaries, and whether one may be asked now."""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import SpendBudget
from proxy.engine.models import Models
from proxy.engine.ports import Clock
from proxy.engine.runtime import EngineBus
from proxy.model.events import AnswerRead, ExchangeRecorded, LimitsTold
from proxy.model.exchange import Headers, SessionKey, Usage
from proxy.model.lru import LruCache
from proxy.wire.credentials import is_subscription
from proxy.wire.headers import read_rate_limits

_MOST_MODELS = 1024

# Consecutive failures that open a circuit, and the seconds that it stays open.
_MOST_FAILURES = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 900.0

# A call that repeats a cached prefix counts as a miss if less than this share of it was read from the cache.
_LEAST_HIT_SHARE = 0.8
_MOST_MISSES = 2
_MOST_SAMPLES = 64
_PERCENTILE = 0.95

_TOO_MANY_REQUESTS = 429
_PAUSE_SECONDS = 60.0
# Most limits are per minute, so one without a reset time is trusted for a minute.
_RESET_SECONDS = 60.0
# A call is made only if the remaining limits would allow it this many times: the rest is for the clients.
_RESERVE = 2


class CircuitBreaker(msgspec.Struct, frozen=True, gc=False):
    """The number of consecutive failures, and when the next call may be tried, in monotonic seconds.

    Two failures open the circuit. After each pause one call may probe, and each failed probe makes the next pause
    longer. A probe without a result counts as running for one more pause; then another may begin.
    """

    failures: int = 0
    until: float = 0.0

    @property
    def pause(self) -> float:
        """Return for how many seconds the model is not asked, or 0 while the circuit is closed."""
        if self.failures < _MOST_FAILURES:
            return 0.0
        return min(_FIRST_PAUSE * 2.0 ** min(self.failures - _MOST_FAILURES, 10), _LONGEST_PAUSE)

    def allows(self, now: float) -> bool:
        """Return whether a call may be tried."""
        return now >= self.until

    def begin(self, now: float) -> "CircuitBreaker":
        """Return the state while a call is tried. If it is a probe, no other may begin for one pause."""
        return CircuitBreaker(self.failures, now + self.pause)

    def fail(self, now: float) -> "CircuitBreaker":
        """Return the state after a failure."""
        return CircuitBreaker(self.failures + 1).begin(now)


_CLOSED = CircuitBreaker()


class CircuitBreakers:
    """A circuit breaker for each model of each upstream, and for kinds of tasks, which a model may fail at alone."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._breakers = LruCache[tuple[str, str], CircuitBreaker](_MOST_MODELS)

    def get(self, upstream: str, model: str) -> CircuitBreaker:
        """Return the breaker of a model."""
        return self._breakers.get((upstream, model)) or _CLOSED

    def allows(self, upstream: str, model: str) -> bool:
        """Return whether a call may be tried."""
        return self.get(upstream, model).allows(self._now())

    def record_start(self, upstream: str, model: str) -> None:
        """Record that a call is tried."""
        self._breakers.put((upstream, model), self.get(upstream, model).begin(self._now()))

    def record_success(self, upstream: str, model: str) -> None:
        """Record that a call succeeded, which closes the circuit."""
        self._breakers.pop((upstream, model))

    def record_failure(self, upstream: str, model: str) -> None:
        """Record that a call failed, or that its response was of no use."""
        self._breakers.put((upstream, model), self.get(upstream, model).fail(self._now()))

    def refuse(self, upstream: str, model: str, seconds: float) -> None:
        """Record that an upstream does not do this at all, so that it is not tried for so long."""
        self._breakers.put((upstream, model), CircuitBreaker(_MOST_FAILURES, self._now() + seconds))


@dataclass(slots=True)
class _CallHistory:
    """The number of consecutive cache misses, and the durations of the newest calls in seconds."""

    misses: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))


class CacheHitTracker:
    """Tracks whether repeated prefixes are read from the cache, and how long calls take.

    In memory only: after a start each model is assumed to read its cache.
    """

    def __init__(self) -> None:
        self._histories = LruCache[tuple[str, str], _CallHistory](_MOST_MODELS)

    def record_call(self, upstream: str, model: str, seconds: float, warm_usage: Usage | None = None) -> None:
        """Record the duration of a call. `warm_usage` is the usage of a call that repeats a cached prefix.

        After two consecutive misses the model stays cold. Unreported cache reads count as neither hit nor miss.
        """
        history = self._histories.get((upstream, model)) or _CallHistory()
        self._histories.put((upstream, model), history)
        history.seconds.append(seconds)
        if warm_usage is None or warm_usage.cached is None or not warm_usage.input or self.is_cold(upstream, model):
            return
        is_miss = warm_usage.cached < _LEAST_HIT_SHARE * warm_usage.input
        history.misses = history.misses + 1 if is_miss else 0

    def is_cold(self, upstream: str, model: str) -> bool:
        """Return whether a repeated prefix would cost its full price, so that a transcript is cheaper."""
        history = self._histories.get((upstream, model))
        return history is not None and history.misses >= _MOST_MISSES

    def compute_p95_seconds(self, upstream: str, model: str) -> float | None:
        """Return the seconds in which 95 % of the newest calls were answered, or None before the first."""
        history = self._histories.get((upstream, model))
        if history is None:
            return None
        ordered = sorted(history.seconds)
        return ordered[math.ceil(_PERCENTILE * len(ordered)) - 1]


class _ReportedLimits(msgspec.Struct, frozen=True, gc=False):
    """The headers in which a provider reported its limits, and when, in wall time and in monotonic seconds.

    They are parsed only when needed, which is rare.
    """

    headers: Headers
    now_ms: int
    at: float

    def find_shortage(self, tokens: int, now: float) -> str:
        """Return in a few words what is lacking for a call of `tokens`, or an empty string if nothing is."""
        age, allowance = now - self.at, read_rate_limits(self.headers, self.now_ms)
        for name, left, reset, need in (
            ("tokens", allowance.tokens, allowance.tokens_reset, _RESERVE * tokens),
            ("requests", allowance.requests, allowance.requests_reset, _RESERVE),
        ):
            is_over = age >= (_RESET_SECONDS if reset is None else reset)
            if left is not None and left < need and not is_over:
                return f"the provider has {left} {name} left for now, and {need} would have to be"
        return ""


class RateLimits:
    """The rate limits that providers reported, whose remainder is left to the clients.

    `owned` are the upstreams that are called with an API key of the settings, whose limits all tenants share.
    """

    def __init__(self, clock: Clock, owned: Collection[str] = ()) -> None:
        self._clock = clock
        self._owned = frozenset(owned)
        self._reported = LruCache[tuple[str, bytes, str], _ReportedLimits](_MOST_MODELS)
        self._pauses = LruCache[tuple[str, bytes], float](_MOST_MODELS)

    def record(self, event: LimitsTold) -> None:
        """Record the limits that a response reported. Subscribed to the bus."""
        tenant = b"" if event.upstream in self._owned else event.tenant
        reported = _ReportedLimits(event.headers, self._clock.now_ms(), self._clock.monotonic())
        self._reported.put((event.upstream, tenant, event.model), reported)
        if event.status == _TOO_MANY_REQUESTS:
            pause = read_rate_limits(reported.headers, reported.now_ms).retry_after
            until = reported.at + (_PAUSE_SECONDS if pause is None else pause)
            self._pauses.put((event.upstream, tenant), until)

    def find_objection(self, upstream: str, tenant: bytes, model: str, tokens: int) -> str:
        """Return why a call of `tokens` must not be made now, or an empty string if it may."""
        now, tenant = self._clock.monotonic(), b"" if upstream in self._owned else tenant
        if (left := (self._pauses.get((upstream, tenant)) or now) - now) > 0:
            return f"the provider said that there were too many requests; it is asked nothing for {left:.0f} s"
        reported = self._reported.get((upstream, tenant, model))
        return reported.find_shortage(tokens, now) if reported is not None else ""


class ModelHealth:
    """All that is known of the models that may be asked, and the decision whether one may be asked now."""

    def __init__(self, policy: CompactionPolicy, models: Models, bus: EngineBus, clock: Clock) -> None:
        # the upstreams that are called with an API key of the settings
        self.owned = frozenset(name for name, provider in models.providers.items() if provider.has_own_key)
        self.breakers = CircuitBreakers(clock)
        self.cache_hits = CacheHitTracker()
        self.limits = RateLimits(clock, self.owned)
        self.budget = SpendBudget(policy, models.prices, bus, clock)
        self._policy = policy
        bus.subscribe(LimitsTold, self.limits.record)
        bus.subscribe(ExchangeRecorded, self.budget.record_exchange)
        bus.subscribe(AnswerRead, self.budget.record_answer)

    def find_objection(
        self,
        session: SessionKey,
        credential: CallCredential,
        upstream: str,
        model: str,
        *,
        expected: Usage,
        is_manual: bool = False,
    ) -> str:
        """Return why a call with this expected usage must not be made, as readable text, or "" if it may.

        A manual call may exceed the session's share, but not the daily cap.
        """
        if upstream not in self.owned:
            if upstream != session.upstream:
                return f"no client's key goes to another upstream; set api_key of {upstream}"
            if is_subscription(credential.headers) and not self._policy.subscription_calls:
                return "the credential is of a person's plan (compaction.subscription_calls)"
        if not self.breakers.allows(upstream, model):
            return f"{model} failed lately and is not asked for a while"
        tokens = (expected.input or 0) + (expected.output or 0)
        if objection := self.limits.find_objection(upstream, session.tenant, model, tokens):
            return objection
        return self.budget.find_objection(session.id, self.budget.price(upstream, model, expected), is_manual=is_manual)
