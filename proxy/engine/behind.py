"""Doing something behind the first step of other work. Rule: nothing else of the event loop runs in between.

What is asked of an upstream is written in that step; what is done behind it costs no call any time.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Behind(Generic[T]):
    """An awaitable: `work`, with `then` called once it waits for the first time, or has ended without; not if it fails.

    `then` does not raise.
    """

    __slots__ = ("_then", "_work")

    def __init__(self, work: Awaitable[T], then: Callable[[], object]) -> None:
        self._work = work
        self._then = then

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        try:
            waited = next(steps)
        except StopIteration as end:
            self._then()
            return end.value  # type: ignore[no-any-return]  # typeshed: the value of any StopIteration
        self._then()
        return (yield from _go_on(steps, waited))


def _go_on(steps: Generator[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """The rest of some work that waits for something, which is handed up as it would have handed it up itself."""
    try:
        yield waited
    except BaseException as error:  # whoever runs the task cancels the work by this
        try:
            waited = steps.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as above
        return (yield from _go_on(steps, waited))
    return (yield from steps)
