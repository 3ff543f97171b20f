"""With what a branch's upstream may be asked: as its newest accepted request asked it (BEHAVIOUR B2).

A session may hold several conversations, which began alike: what one of them bears in its header is not another's.

Rule: in memory only, and gone after half an hour without a request; never in a log or a record, nor in what an object
says of itself.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from proxy.engine.compaction.bounded import keep_newest
from proxy.engine.ports import Clock, Upstream
from proxy.model.exchange import Headers

_IDLE_SECONDS = 1800.0
_MOST_BRANCHES = 4096

Later = Callable[[float, Callable[[], None]], object]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes, Headers]).decode


@dataclass(frozen=True, slots=True)
class CallCredential:
    """Where the newest request of a branch went, and with which header."""

    upstream: Upstream
    target: bytes = field(repr=False)
    headers: Headers = field(repr=False)


@dataclass(frozen=True, slots=True)
class _PackedCredential:
    """A key as it is kept: what the request itself has is one piece, of 0.5 KB where its objects have 2.

    These were made in the midst of all that a call needs for a moment; kept, they would keep its place in memory.
    """

    upstream: Upstream
    packed: bytes = field(repr=False)
    until: float


class Keys:
    """The newest key of each branch, by its session and its tip. `later` is as a loop's `call_later`."""

    def __init__(self, clock: Clock, later: Later) -> None:
        self._clock = clock
        self._later = later
        self._known: OrderedDict[tuple[str, bytes], _PackedCredential] = OrderedDict()
        self._is_sweeping = False

    def __len__(self) -> int:
        return len(self._known)

    def note(self, session: str, tip: bytes, key: CallCredential) -> None:
        """A request that ends at this node was accepted."""
        kept = _PackedCredential(
            key.upstream, _pack((key.target, key.headers)), self._clock.monotonic() + _IDLE_SECONDS
        )
        keep_newest(self._known, (session, tip), kept, _MOST_BRANCHES)
        self._sweep_later()

    def find(self, session: str, tip: bytes) -> CallCredential | None:
        """The key of the branch that ends at this node; None where that was too long ago."""
        kept = self._known.get((session, tip))
        if kept is None or self._clock.monotonic() >= kept.until:
            return None
        return CallCredential(kept.upstream, *_unpack(kept.packed))

    def _sweep_later(self) -> None:
        if self._known and not self._is_sweeping:
            self._is_sweeping = True
            oldest = next(iter(self._known.values()))
            self._later(max(0.0, oldest.until - self._clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        """Forget what has been idle for too long; the oldest stands first."""
        now, self._is_sweeping = self._clock.monotonic(), False
        while self._known and next(iter(self._known.values())).until <= now:
            self._known.popitem(last=False)
        self._sweep_later()
