"""Leaving the provider's rate limits to the clients (BEHAVIOUR B30).

Rule: a call of our own is made only where what is left would take it twice, and not at all while the provider said to
wait. What nobody said is no limit; what was said is forgotten when more has come.
"""

from collections import OrderedDict
from collections.abc import Collection

import msgspec

from proxy.engine.compaction.bounded import keep_newest
from proxy.engine.ports import Clock
from proxy.model.events import LimitsTold
from proxy.model.exchange import Headers
from proxy.wire.headers import read_allowance

_TOO_MANY = 429
_PAUSE_SECONDS = 60.0
# Limits are mostly by the minute; what does not say when it is over is believed for one.
_RESET_SECONDS = 60.0
_TIMES = 2
_MOST = 1024


class _Told(msgspec.Struct, frozen=True, gc=False):
    """What was said of limits, and when: wall time, and monotonic seconds. Read when somebody asks: few ever do."""

    headers: Headers
    now_ms: int
    at: float

    def find_shortage(self, tokens: int, now: float) -> str:
        """What there is too little of for a call of so many tokens, in a few words."""
        age, said = now - self.at, read_allowance(self.headers, self.now_ms)
        for name, left, reset, need in (
            ("tokens", said.tokens, said.tokens_reset, _TIMES * tokens),
            ("requests", said.requests, said.requests_reset, _TIMES),
        ):
            is_over = age >= (_RESET_SECONDS if reset is None else reset)
            if left is not None and left < need and not is_over:
                return f"the provider has {left} {name} left for now, and {need} would have to be"
        return ""


class RateLimits:
    """What upstreams said of limits, by whose they are. `owned` are those that are asked with a key of the settings."""

    def __init__(self, clock: Clock, owned: Collection[str] = ()) -> None:
        self._clock = clock
        self._owned = frozenset(owned)
        self._told: OrderedDict[tuple[str, bytes, str], _Told] = OrderedDict()
        self._waiting: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def note(self, event: LimitsTold) -> None:
        """A subscriber of the bus."""
        tenant = self._find_owner(event.upstream, event.tenant)
        told = _Told(event.headers, self._clock.now_ms(), self._clock.monotonic())
        keep_newest(self._told, (event.upstream, tenant, event.model), told, _MOST)
        if event.status == _TOO_MANY:
            pause = read_allowance(told.headers, told.now_ms).retry_after
            until = told.at + (_PAUSE_SECONDS if pause is None else pause)
            keep_newest(self._waiting, (event.upstream, tenant), until, _MOST)

    def find_objection(self, upstream: str, tenant: bytes, model: str, tokens: int) -> str:
        """Why a model is not to be asked something of so many tokens now; empty where it may be."""
        now, tenant = self._clock.monotonic(), self._find_owner(upstream, tenant)
        if (left := self._waiting.get((upstream, tenant), now) - now) > 0:
            return f"the provider said that there were too many requests; it is asked nothing for {left:.0f} s"
        told = self._told.get((upstream, tenant, model))
        return told.find_shortage(tokens, now) if told is not None else ""

    def _find_owner(self, upstream: str, tenant: bytes) -> bytes:
        """Whose limits they are: who presents a key of the settings has them in common with all."""
        return b"" if upstream in self._owned else tenant
