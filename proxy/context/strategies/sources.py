"""Prompt sources: who prompted the agent last, and where.

A source is a message that counts as the user's own words. Its kind is what a request said of it by header, else what
the message's `name` says: `direct` where neither says anything, `broadcast` of the agent's owner, `broadcast:NAME` of a
peer, or `tick` (`tick:wait`), by which a client nudges an agent that nobody prompted.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.context.conversation import CountedMessage, list_groups

DIRECT, BROADCAST, TICK, WAITING_TICK = "direct", "broadcast", "tick", "tick:wait"

# In a name a hyphen stands for the colon, too, which some upstreams refuse.
_BROADCAST_NAME = re.compile(r"broadcast(?:[:-](?P<sender>.+))?", re.DOTALL)
_KIND = re.compile(r"direct|broadcast(?::[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,99})?|tick(?::wait)?")


class PromptSource(NamedTuple):
    """A prompt source: the place of its message, and its kind."""

    place: int
    kind: str

    @property
    def is_nudge(self) -> bool:
        """Whether it only nudges the agent."""
        return is_nudge(self.kind)


def is_nudge(kind: str) -> bool:
    """Return whether a source of this kind only nudges the agent."""
    return kind in (TICK, WAITING_TICK)


def is_source_kind(kind: str) -> bool:
    """Return whether a source may have this kind."""
    return _KIND.fullmatch(kind) is not None


def read_source_name(name: str) -> str:
    """Return the kind of a source by the name of its message."""
    found = _BROADCAST_NAME.fullmatch(name)
    if found is None:
        return DIRECT
    return f"{BROADCAST}:{found['sender']}" if found["sender"] else BROADCAST


def find_source(messages: Sequence[CountedMessage], noted: Mapping[int, str], scan: int) -> PromptSource | None:
    """Return the newest prompt source, whatever its kind, or None.

    `noted` are the kinds that requests told, by place. A nudge counts only among the newest `scan` messages.
    """
    first = len(messages) - scan
    for group in reversed(list_groups(messages)):
        for place in reversed(range(group.start, group.stop) if group.kind == "user" else ()):
            kind = noted.get(place) or read_source_name(messages[place].message.name)
            if place >= first or not is_nudge(kind):
                return PromptSource(place, kind)
    return None
