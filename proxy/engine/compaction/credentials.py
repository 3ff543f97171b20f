"""The credentials for background calls to a session's upstream: those of its newest accepted request.

They are kept in memory only, for half an hour, and are never in a log, a record, or the `repr` of an object.
"""

from dataclasses import dataclass, field

import msgspec

from proxy.engine.background.jobs import CallLater
from proxy.engine.ports import Clock, Upstream
from proxy.model.exchange import Headers, SessionKey
from proxy.model.lru import LruCache

_IDLE_SECONDS = 1800.0
_MOST_BRANCHES = 4096

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes, Headers]).decode


@dataclass(frozen=True, slots=True)
class CallCredential:
    """The upstream, target and headers of the newest request of a branch."""

    upstream: Upstream
    target: bytes = field(repr=False)
    headers: Headers = field(repr=False)


@dataclass(frozen=True, slots=True)
class _PackedCredential:
    """A credential with target and headers packed in one bytes object: 0.5 KB instead of 2 KB.

    The original objects lie between short-lived objects of a call. Keeping them would fragment memory.
    """

    upstream: Upstream
    packed: bytes = field(repr=False)
    until: float


class CredentialCache:
    """The newest credential of each branch, by its session and its tip.

    A session may have several conversations with the same beginning, and the headers of one must not serve another.
    What is done for a session as a whole has the newest of them.
    """

    def __init__(self, clock: Clock, call_later: CallLater) -> None:
        self._clock = clock
        self._call_later = call_later
        self._packed = LruCache[tuple[str, bytes], _PackedCredential](_MOST_BRANCHES)
        self._newest = LruCache[str, tuple[SessionKey, bytes]](_MOST_BRANCHES)
        self._is_sweep_due = False

    def __len__(self) -> int:
        return len(self._packed)

    def store(self, session: str, tip: bytes, credential: CallCredential, key: SessionKey | None = None) -> None:
        """Keep the credential of an accepted request that ends at this node. `key` is that of the session."""
        until = self._clock.monotonic() + _IDLE_SECONDS
        packed = _PackedCredential(credential.upstream, _pack((credential.target, credential.headers)), until)
        self._packed.put((session, tip), packed)
        if key is not None:
            self._newest.put(session, (key, tip))
        if not self._is_sweep_due:
            self._sweep_later()

    def find(self, session: str, tip: bytes) -> CallCredential | None:
        """Return the credential of the branch that ends at this node, or None if it has expired."""
        packed = self._packed.peek((session, tip))
        if packed is None or self._clock.monotonic() >= packed.until:
            return None
        return CallCredential(packed.upstream, *_unpack(packed.packed))

    def find_newest(self, session: str) -> tuple[SessionKey, CallCredential] | None:
        """Return the key of a session and its newest credential, or None if that has expired."""
        known = self._newest.peek(session)
        found = self.find(session, known[1]) if known is not None else None
        return (known[0], found) if known is not None and found is not None else None

    def list_sessions(self) -> list[SessionKey]:
        """Return the sessions that had a credential, the newest first."""
        return [key for key, _ in self._newest.values()][::-1]

    def forget(self, session: str) -> None:
        """Forget the credentials of a session, which is to be erased: nothing is asked for it until it calls again."""
        self._newest.pop(session)
        for key in [key for key in self._packed if key[0] == session]:
            self._packed.pop(key)

    def clear(self) -> None:
        """Forget all of them, at the end of the engine."""
        self._newest.clear()
        self._packed.clear()

    def _sweep_later(self) -> None:
        self._is_sweep_due = True
        oldest = next(self._packed.values())
        self._call_later(max(0.0, oldest.until - self._clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        """Forget the expired credentials. The oldest is first."""
        now, self._is_sweep_due = self._clock.monotonic(), False
        while self._packed and next(self._packed.values()).until <= now:
            self._packed.pop_oldest()
        if self._packed:
            self._sweep_later()
