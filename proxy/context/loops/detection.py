"""Doom loops: a model makes the same call of a tool again and again, and nothing comes of it.

Two calls are the same if they have the same tool and the same arguments, however these are spelt. They count as long
as no other call and no words of the user stand between them, so that a user who asks for the same again makes no loop.
Whether the outputs are the same, too, tells a loop from a model that waits for something.
"""

import json
from collections.abc import Iterable

import msgspec

from proxy.model.messages import Message, ToolCall

MOST_COUNTED = 100
"""Calls up to which a loop is counted: each answer of it reads again what was before."""


class RepeatedCall(msgspec.Struct, frozen=True, gc=False):
    """A call that was made `count` times in a row. The outputs that are known of it are the same, or not."""

    tool: str
    count: int
    has_same_output: bool


def find_repeated_call(newest_first: Iterable[Message], least: int) -> RepeatedCall | None:
    """Return the call that the newest messages repeat at least so many times, or None.

    Messages are read only as far back as that takes.
    """
    key: tuple[str, str] | None = None
    outputs: dict[str, str] = {}  # by the id of the call
    ids: list[str] = []
    for message in newest_first:
        if message.results:
            texts = message.outputs or (message.text,) * len(message.results)
            outputs |= dict(zip(message.results, texts, strict=False))
        if message.role not in ("assistant", "tool") and (message.text or message.media) and not message.results:
            break
        made = [(call.name, _normalize(call)) for call in reversed(message.calls)]
        key = key or (made[0] if made else None)
        same = next((i for i, each in enumerate(made) if each != key), len(made))
        ids += [call.id for call in tuple(reversed(message.calls))[:same]]
        if same < len(made) or len(ids) >= MOST_COUNTED:
            break
    if key is None or len(ids) < least:
        return None
    known = [outputs[id] for id in ids if id in outputs]
    return RepeatedCall(key[0], len(ids), has_same_output=len(known) > 1 and len(set(known)) == 1)


def _normalize(call: ToolCall) -> str:
    """Return the arguments of a call in one spelling."""
    try:
        return json.dumps(json.loads(call.arguments or "{}"), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return call.arguments
