"""Doom loops: a model makes the same call of a tool again and again, and nothing comes of it.

Two calls are the same if they have the same tool and the same arguments, however these are spelt. They count as long
as no other call and no words of the user stand between them, so that a user who asks for the same again makes no loop.
Whether the outputs are the same, too, tells a loop from a model that waits for something.
"""

import json
from collections.abc import Iterable, Sequence

import msgspec

from proxy.model import Value
from proxy.model.messages import Message, ToolCall

MOST_COUNTED = 100
"""Calls up to which a loop is counted: each answer of it reads again what was before."""


class RepeatedCall(Value):
    """A call that was made `count` times in a row. The outputs that are known of it are the same, or not."""

    tool: str
    count: int
    has_same_output: bool


def find_repeated_call(newest_first: Iterable[Message], least: int) -> RepeatedCall | None:
    """Return the call that the newest messages repeat at least so many times, or None.

    Messages are read only as far back as that takes.
    """
    run = _find_run(newest_first)
    if len(run.ids) < least:
        return None
    return RepeatedCall(run.tool, len(run.ids), has_same_output=len(run.known) > 1 and len(set(run.known)) == 1)


class Repetition(Value):
    """A call that an answer ends with, `count` times in a row with those of the answers before it.

    The next request of the same run has at most `reach` messages more.
    """

    key: tuple[str, str]
    count: int
    reach: int


def follow_run(answer: Sequence[Message], before: Repetition | None) -> Repetition | None:
    """Return the repetition that an answer ends with, given that of the answer before it; None if it makes no call.

    Only the calls are compared, so that no request has to be read: whether the user has spoken in between is judged by
    `find_repeated_call`.
    """
    calls = [call for message in answer for call in message.calls]
    if not calls:
        return None
    key = name_call(calls[-1])
    count = _count_same(calls, key)
    if before is not None and before.key == key and count == len(calls):
        count += before.count
    return Repetition(key, count, len(answer) + len(calls))


def write_note(newest_first: Iterable[Message], least: int) -> str:
    """Return what a model is told of the loop that the newest messages end with, all of it answered; empty if none.

    It is told at `least` calls, and again whenever their number has doubled, so that it depends only on the messages up
    to the newest: what has been told stays where it was.
    """
    run = _find_run(newest_first)
    count, is_same = len(run.ids), len(set(run.known)) == 1
    if count != len(run.known) or not is_same or count >= MOST_COUNTED:
        return ""
    due = least
    while 2 * due <= count:
        due *= 2
    if not count - run.newest < due <= count or count < 2:
        return ""
    return (
        f"[This call was made {count} times in a row, with the same arguments and the same output each time. "
        "Repeating it will not change that: go on in another way, or say what you need.]"
    )


class _Repetition(msgspec.Struct, gc=False):
    """The same calls in a row: their ids, `newest` of them in the newest answer, and the outputs that are known."""

    tool: str
    ids: list[str]
    newest: int
    known: list[str]


def _find_run(newest_first: Iterable[Message]) -> _Repetition:
    key: tuple[str, str] | None = None
    outputs: dict[str, str] = {}  # by the id of the call
    ids: list[str] = []
    newest = 0
    for message in newest_first:
        if message.results:
            texts = message.outputs or (message.text,) * len(message.results)
            outputs |= dict(zip(message.results, texts, strict=False))
            newest = newest or len(ids)
        if message.role not in ("assistant", "tool") and (message.text or message.media) and not message.results:
            break
        key = key or (name_call(message.calls[-1]) if message.calls else None)
        same = _count_same(message.calls, key)
        made = message.calls
        ids += [call.id for call in tuple(reversed(made))[:same]]
        if same < len(made) or len(ids) >= MOST_COUNTED:
            break
    known = [outputs[id] for id in ids if id in outputs]
    return _Repetition(key[0] if key is not None else "", ids, newest or len(ids), known)


def _count_same(calls: Sequence[ToolCall], key: tuple[str, str] | None) -> int:
    """Return how many of the last calls are this one."""
    return next((i for i, call in enumerate(reversed(calls)) if name_call(call) != key), len(calls))


def name_call(call: ToolCall) -> tuple[str, str]:
    """Return the tool of a call, and its arguments in one spelling."""
    return call.name, _normalize(call)


def _normalize(call: ToolCall) -> str:
    """Return the arguments of a call in one spelling."""
    try:
        return json.dumps(json.loads(call.arguments or "{}"), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return call.arguments
