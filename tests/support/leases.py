"""Leases in memory, for one process."""

from proxy.engine.ports import Clock


class MemoryLeases:
    """Who holds what until when, in milliseconds of wall time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held: dict[str, tuple[str, int]] = {}

    async def acquire(self, key: str, owner: str, seconds: float) -> bool:
        """Have the lease for so long from now: True where nobody else has it, or its time is over."""
        return self._hold(key, owner, seconds, (None, owner))

    async def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Keep it for so long from now; False where its holder is another, or its time is over."""
        return self._hold(key, owner, seconds, (owner,))

    async def release(self, key: str, owner: str) -> None:
        """Give it up; nothing happens where the owner does not hold it."""
        if self._find_holder(key) == owner:
            del self.held[key]

    def _hold(self, key: str, owner: str, seconds: float, held_by: tuple[str | None, ...]) -> bool:
        if self._find_holder(key) not in held_by:
            return False
        self.held[key] = owner, self._clock.now_ms() + round(seconds * 1000)
        return True

    def _find_holder(self, key: str) -> str | None:
        now = self._clock.now_ms()
        self.held = {name: (owner, until) for name, (owner, until) in self.held.items() if until > now}
        return self.held.get(key, (None, 0))[0]
