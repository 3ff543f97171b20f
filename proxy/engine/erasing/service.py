"""Erasing a session while the server runs, or without one: in the log, in files beside it, and in memory.

A session with a call under way is not erased. A later call of an erased session goes on under its id: what the client
sends then is recorded again, with the new call, and nothing from before is used for it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from proxy.engine.ports import LogReader
from proxy.engine.recorded.lookup import find_session
from proxy.engine.runtime import EngineBus
from proxy.model.erasing import Cause, ErasableSession, SessionErasure
from proxy.model.errors import Conflict
from proxy.model.events import SessionsErased

_log = logging.getLogger("palimpsest.erasing")


class Eraser(Protocol):
    """What erases in the log. A session is given by its whole id."""

    async def measure(self, session: str) -> SessionErasure:
        """Return what erasing a session would do. Raises NotFound, and Erased if nothing is left of it."""
        ...

    async def erase(self, session: str, cause: Cause = "person") -> SessionErasure:
        """Erase a session at once. Raises what `measure` does, Conflict if it is called meanwhile, StoreUnavailable."""
        ...

    async def remove_rest(self) -> Mapping[str, str]:
        """Remove the files of memory of erased sessions. Return where those of which session could not be removed."""
        ...

    async def erase_slowly(self, sessions: Sequence[str], cause: Cause) -> int:
        """Erase sessions behind traffic, and return the bytes. Raises Conflict and StoreUnavailable."""
        ...

    async def overwrite(self) -> bool:
        """Overwrite what is left of erased content in the files of the log. Return whether none is left."""
        ...

    async def list_idle(self, before_ms: int, limit: int) -> Sequence[ErasableSession]:
        """Return sessions that have content and were not called since, the longest idle one first."""
        ...

    async def measure_used(self) -> int:
        """Return the bytes of the log's file that are in use."""
        ...

    def close(self) -> None:
        """Release the file of the log, once that is closed."""
        ...


async def settle_nothing(session: str) -> str:
    """Return that nothing goes on in a session, where no server runs."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionErasing:
    """Erases sessions.

    `settle` waits for what the server still does for a session, such as reading its last answer, and returns what goes
    on in it that forbids to erase it, or an empty text. `forget` drops what memory has of sessions; `list_left` returns
    files that may have content of any session. Sessions and bytes are published to `bus`.
    """

    log: LogReader
    eraser: Eraser
    settle: Callable[[str], Awaitable[str]] = settle_nothing
    forget: Callable[[Sequence[str]], Awaitable[None]] | None = None
    list_left: Callable[[], Sequence[str]] = tuple
    bus: EngineBus | None = None

    async def measure(self, prefix: str) -> SessionErasure:
        """Return what erasing a session would do. Raises NotFound, Erased."""
        return await self.eraser.measure(await find_session(self.log, prefix))

    async def erase(self, prefix: str) -> SessionErasure:
        """Erase a session. Raises NotFound, Erased, StoreUnavailable, and Conflict if it is in use."""
        session = await find_session(self.log, prefix)
        if reason := await self.settle(session):
            raise Conflict(f"session {session} is in use: {reason}; try again once that has ended")
        erased = await self.eraser.erase(session)
        left = await self._clean((session,))
        _log.warning(
            "a session was erased: %d calls, %d contents, %d bytes",
            erased.calls,
            erased.contents,
            erased.bytes,
            extra={"session": session},
        )
        self._publish((session,), erased.bytes, "person")
        return replace(erased, left_files=tuple(self.list_left()), left_memory=left.get(session))

    async def erase_slowly(self, sessions: Sequence[str], cause: Cause) -> tuple[Sequence[str], int]:
        """Erase those of the sessions that are not in use, behind traffic. Return them, and the bytes."""
        idle = [session for session in sessions if not await self.settle(session)]
        if not idle:
            return (), 0
        try:
            size = await self.eraser.erase_slowly(idle, cause)
        finally:
            await self._clean(idle)
        self._publish(idle, size, cause)
        return idle, size

    def _publish(self, sessions: Sequence[str], size: int, cause: Cause) -> None:
        if self.bus is not None:
            self.bus.publish(SessionsErased(len(sessions), size, cause, tuple(sessions)))

    async def _clean(self, sessions: Sequence[str]) -> Mapping[str, str]:
        """Have memory forget sessions, then remove their files. Return where those of which session are left."""
        if self.forget is not None:
            await self.forget(sessions)
        return await self.eraser.remove_rest()
