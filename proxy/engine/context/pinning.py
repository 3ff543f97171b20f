"""Pins: what the next epochs must leave as it is.

Rule (BEHAVIOUR B13): pins beyond their share are refused and whoever asked is told; none is dropped silently.
"""

from proxy.engine.context.lookout import Lookout
from proxy.engine.context.subject import Subject
from proxy.engine.ports import Clock
from proxy.model.epoch import Pin
from proxy.model.exchange import Headers
from proxy.wire.headers import find

_SHARE = 0.1
_HEADER = b"x-palimpsest-pin"


def find_objection(tokens: int, usable: int) -> str:
    """Why pins of so many tokens together are too much; empty where they are not."""
    most = int(_SHARE * usable)
    if tokens <= most:
        return ""
    return (
        f"pins may have {most} tokens together in a conversation, {_SHARE:g} of its budget; these would have {tokens}"
    )


def is_pinning(subject: Subject) -> bool:
    """Whether a request asks that its newest message stay."""
    return find(subject.headers, _HEADER).strip().lower() == b"true"


def refuse_pin(subject: Subject, reason: str) -> Headers:
    """What the client is told of a pin that is not taken; nothing where it asked for none."""
    if not is_pinning(subject):
        return ()
    return ((b"x-palimpsest-notice", f"not pinned: {reason}".encode("ascii", "replace")),)


class Pinning:
    """Takes pins that come with requests."""

    def __init__(self, lookout: Lookout, clock: Clock) -> None:
        self._lookout = lookout
        self._clock = clock

    async def take(self, subject: Subject, ceiling: int | None) -> tuple[Pin | None, Headers]:
        """The pin of a request's newest message, which holds at once; or what the client is told of the refusal."""
        if not is_pinning(subject):
            return None, ()
        if not subject.nodes:
            return None, refuse_pin(subject, "there is no message")
        self._lookout.memory.forget_lost()
        context = await self._lookout.memory.contexts.open(subject, subject.until - self._clock.monotonic())
        newest, places = len(subject.nodes) - 1, context.list_pinned(subject.nodes)
        if newest in places:
            return None, ()
        path = await self._lookout.memory.paths.follow(subject)
        tokens = sum(path.count(place, place + 1) for place in (*places, newest))
        usable = self._lookout.find_budget(subject, ceiling).usable
        ratio = self._lookout.find_ratio(subject)
        if problem := find_objection(ratio.apply(tokens), ratio.apply(usable)):
            return None, refuse_pin(subject, problem)
        pin = Pin(subject.session.id, subject.nodes[newest], is_on=True, at_ms=self._clock.now_ms())
        context.pin(pin)
        return pin, ()
