"""Doing something behind the first step of other work. Rule: nothing else of the event loop runs in between.

What is asked of an upstream is written in that step; what is done behind it costs no call any time.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Behind(Generator[Any, Any, T]):
    """An awaitable: `work`, with `then` called once it waits for the first time, or has ended without; not if it fails.

    `then` does not raise.
    """

    __slots__ = ("_steps", "_then")

    def __init__(self, work: Awaitable[T], then: Callable[[], object]) -> None:
        self._steps = work.__await__()
        self._then: Callable[[], object] | None = then

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        """Part of the generator protocol, which awaiting is done by."""
        then, self._then = self._then, None
        if then is None:
            return self._steps.send(value)
        try:
            waited = self._steps.send(None)
        except StopIteration:
            then()
            raise
        then()
        return waited

    def throw(self, *error: Any) -> Any:
        """Part of the generator protocol: whoever runs the task cancels the work by this."""
        return self._steps.throw(*error)
