"""A message as far as its neighbours are concerned: who speaks, what it calls, what it answers.

Rule: what the assistant says in one go and the results directly behind it are one run, on every wire; a run is judged
as a whole (`wire/validity`) and is the least that may be taken out of a history (`context/conversation`).
"""

from collections.abc import Sequence

import msgspec


class Shape(msgspec.Struct, frozen=True, gc=False):
    """One message, or one item of a wire that counts calls and reasoning as items.

    `role` is system, user, assistant or tool (whatever holds a result is a tool's), or what the client sent instead.
    `reasoning` is a digest of what must stay attached to the calls beside it, empty where there is none; `is_signed`:
    its provider has signed some of that. `markers` are the retentions of its cache markers in order. `flaws` are what
    is wrong with the message by itself.
    """

    role: str
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    reasoning: bytes = b""
    markers: tuple[str, ...] = ()
    says_json: bool = False
    flaws: tuple[str, ...] = ()
    is_signed: bool = False


def joins(before: Shape, shape: Shape) -> bool:
    """Whether a message goes on with the run of the one before it."""
    return shape.role == "tool" or (shape.role == "assistant" and before.role == "assistant")


def find_runs(shapes: Sequence[Shape]) -> list[int]:
    """Where the runs begin."""
    return [i for i, shape in enumerate(shapes) if not i or not joins(shapes[i - 1], shape)]
