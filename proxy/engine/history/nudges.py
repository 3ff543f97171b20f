"""Nudges: what stands last in the call of a client that ticks though nobody has prompted the agent.

The state is in memory only: after a restart a session is nudged anew.
"""

from collections.abc import Collection, Sequence

import msgspec

from proxy.context.conversation import CountedMessage
from proxy.context.strategies.sources import WAITING_TICK, find_source, is_nudge
from proxy.engine.history.path import HeldPath, TailMessage
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.ports import Clock
from proxy.engine.runtime import EngineBus
from proxy.model.errors import BadRequest, SessionIdle, TooSoon
from proxy.model.events import AgentNudgedEvent, SessionIdleEvent
from proxy.model.exchange import SessionKey
from proxy.model.lru import LruCache
from proxy.wire.format import Format
from proxy.wire.json_values import encode_text

_MOST_SESSIONS = 4096


class _Attempts(msgspec.Struct, gc=False):
    """The nudges of a session that nothing has answered yet, and when the last one was sent, in milliseconds."""

    count: int = 0
    last_ms: int = 0


class Nudge(msgspec.Struct, frozen=True, gc=False):
    """The raw message that stands last, empty for none, and which of the texts it is, from 1; 0 does not count."""

    raw: bytes = b""
    attempt: int = 0


NO_NUDGE = Nudge()


class Nudger:
    """Decides whether a call without messages is nudged, and with which words."""

    def __init__(
        self, policy: NudgePolicy, clock: Clock, bus: EngineBus, *, scan: int, alternating: Collection[str] = ()
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._bus = bus
        self._scan = scan
        self._alternating = alternating
        self._sessions = LruCache[str, _Attempts](_MOST_SESSIONS)

    def nudge(self, session: SessionKey, form: Format, path: HeldPath, source: str) -> Nudge:
        """Return what stands last in a call without messages. Raises BadRequest, TooSoon and SessionIdle."""
        policy = self._policy
        if not is_nudge(source):
            raise BadRequest("the request has no messages; x-palimpsest-source: tick asks for a nudge")
        if not policy.enabled:
            raise BadRequest("the request has no messages, and nudges are off (nudge.enabled)")
        if session.upstream in self._alternating:
            raise BadRequest("the upstream takes no two answers in a row (strict_alternation), so there are no nudges")
        if has_source(form, path, self._scan):
            # There a history that ends with an answer asks for more of that answer.
            return Nudge(_write(form, policy.texts[0])) if form.goes_on else NO_NUDGE
        attempts = self._sessions.get(session.id) or _Attempts()
        if attempts.count >= len(policy.texts):
            raise SessionIdle(
                f"the session is idle: {attempts.count} nudges had no answer; it goes on with a message from somebody"
            )
        least = policy.wait_seconds if source == WAITING_TICK else policy.idle_seconds
        left = least - (self._clock.now_ms() - max(attempts.last_ms, path.ended_ms)) / 1000
        if left > 0:
            raise TooSoon(f"the last call ended less than {least:g} seconds ago", min(left, least))
        return Nudge(_write(form, policy.texts[attempts.count]), attempts.count + 1)

    def note_sent(self, session: str, exchange: str, nudge: Nudge) -> None:
        """Count a nudge that is sent."""
        if nudge.attempt:
            self._sessions.put(session, _Attempts(nudge.attempt, self._clock.now_ms()))
            self._bus.publish(AgentNudgedEvent(session=session, exchange=exchange, attempt=nudge.attempt))

    def note_end(self, session: str, exchange: str, nudge: Nudge, *, is_answered: bool) -> None:
        """Note the end of a call: an answer ends all counting."""
        if is_answered:
            self.reset(session)
        elif nudge.attempt == len(self._policy.texts):
            self._bus.publish(SessionIdleEvent(session=session, exchange=exchange, attempts=nudge.attempt))

    def reset(self, session: str) -> None:
        """Begin to count anew, since somebody has prompted the agent, or it has answered."""
        self._sessions.pop(session)


def has_source(form: Format, path: HeldPath, scan: int) -> bool:
    """Return whether one of the newest `scan` messages of a path prompts the agent."""
    tail = (*path.tail, *map(TailMessage, path.answer))[-scan:]
    noted = {place: each.kind for place, each in enumerate(tail) if each.kind}
    return find_source(_count([each.raw for each in tail], form), noted, 0) is not None


def _count(raws: Sequence[bytes], form: Format) -> list[CountedMessage]:
    decoded = map(form.decode_message, raws)
    return [CountedMessage(each.message, each.structure, 0) for each in decoded]


def _write(form: Format, text: str) -> bytes:
    return form.write_message("user", encode_text(text))
