"""Retention: erases sessions for their age, and the longest idle ones as the log nears the size that it may have.

Both only where the settings say so: a log that is full is otherwise not written any more, and keeps what it has. It
looks now and then, and works in small steps behind traffic. A session that was called within the last hour is never
erased, and neither is one with a call under way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from proxy.engine.erasing.service import SessionErasing
from proxy.engine.policy import StoreSettings
from proxy.engine.ports import Clock
from proxy.model.erasing import Cause
from proxy.model.errors import ProxyError

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_PAUSE_SECONDS = 600.0
_FIRST_SECONDS = 60.0
_AT_ONCE = 50
# The log is cut to the second share of its size once it has the first one: the file itself is not made smaller.
_FULL, _ENOUGH = 0.9, 0.8

_log = logging.getLogger("palimpsest.erasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Erases what the policy does not keep."""

    policy: StoreSettings
    erasing: SessionErasing
    clock: Clock
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def run(self) -> None:
        """Go on with what was begun, then look now and then, until cancelled."""
        with suppress(ProxyError):  # the log cannot be written; it is tried again with the next erasure
            await self.erasing.eraser.remove_rest()
            await self.erasing.eraser.overwrite()
        await self.sleep(_FIRST_SECONDS)
        while True:
            try:
                await self.erasing.eraser.overwrite()
                await self.enforce()
            except ProxyError as error:
                _log.error("what is older than the settings allow is not erased now, but is tried again: %s", error)
            if not self.policy.is_erasing:
                return
            await self.sleep(_PAUSE_SECONDS)

    async def enforce(self) -> None:
        """Erase what is too old, then what is too much. Raises Conflict and StoreUnavailable."""
        now, eraser = self.clock.now_ms(), self.erasing.eraser
        if self.policy.retention_days:
            while await self._erase_oldest(now - self.policy.retention_days * _DAY_MS, "age"):
                pass
        most = self.policy.erased_above
        if most and await eraser.measure_used() > _FULL * most:
            while await eraser.measure_used() > _ENOUGH * most and await self._erase_oldest(now - _HOUR_MS, "size", 1):
                pass
        await eraser.overwrite()

    async def _erase_oldest(self, before_ms: int, cause: Cause, most: int = _AT_ONCE) -> bool:
        """Erase some sessions that were not called since. Return whether there may be more."""
        before_ms = min(before_ms, self.clock.now_ms() - _HOUR_MS)
        found = await self.erasing.eraser.list_idle(before_ms, most)
        erased, size = await self.erasing.erase_slowly([each.session for each in found], cause)
        if not erased:
            return False
        why = "their age" if cause == "age" else "the size of the log"
        _log.info("%d sessions were erased for %s: %d bytes (%s)", len(erased), why, size, ", ".join(erased))
        return len(erased) == len(found)
