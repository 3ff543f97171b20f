"""The parts of an answer for `async for`, while the call that brings them goes on."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from proxy.engine.turns.answers import OnPart
from proxy.model.parts import MessagePart

Send = Callable[..., Coroutine[Any, Any, object]]
"""Makes a call; `on_part` is its function for parts."""


async def stream_parts(send: Send) -> AsyncGenerator[MessagePart]:
    """Make a call, and yield the parts of its answer as they come. Raise what the call raises, behind its last part.

    The call does not wait for who reads its parts. It is cancelled when the iterator is closed before its end.
    """
    parts = asyncio.Queue[MessagePart | None]()
    take: OnPart = parts.put_nowait
    call = asyncio.get_running_loop().create_task(send(on_part=take))
    call.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        while (part := await parts.get()) is not None:
            yield part
        await call
    finally:
        if not call.done():
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
        elif not call.cancelled():
            call.exception()  # who has left the loop is told nothing more
