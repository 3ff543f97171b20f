"""Where a fault of ours ends, whatever it is: a call must not fail of what is done beside it.

Rule: whoever asks has something else to go on with, and tells people of the fault; nobody above sees it.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Note = Callable[[Exception], None]


async def attempt(work: Awaitable[T], note: Note) -> T | None:
    """What comes of the work; None where it failed, which is noted."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the boundary
        note(error)
        return None


def attempt_now(work: Callable[[], T], note: Note) -> T | None:
    """The same for work that waits for nothing."""
    try:
        attempt(_do(work), note).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # typeshed: the value of any StopIteration
    raise AssertionError("it waits for nothing")


async def _do(work: Callable[[], T]) -> T:
    return work()
