"""Writes to transports, seen and delayed."""

import asyncio
from typing import cast

from proxy.engine.runtime import WriteBatcher


class Page:
    """A transport that keeps what is written to it, with the writes to others of the same `book` in their order."""

    def __init__(self, book: list[tuple[str, bytes]], name: str = "") -> None:
        self._book = book
        self._name = name
        self.is_closed = False

    def write(self, content: bytes) -> None:
        self._book.append((self._name, content))

    def is_closing(self) -> bool:
        return self.is_closed


def as_transport(page: Page) -> asyncio.WriteTransport:
    """What the type checker takes for a transport."""
    return cast(asyncio.WriteTransport, page)


class BusyWrites(WriteBatcher):
    """Writes of many calls; another has always written just before, so that each waits for the end of the turn."""

    def __init__(self) -> None:
        super().__init__(range(100), lambda: 0.0)

    def put(self, transport: asyncio.WriteTransport, content: bytes) -> int:
        super().put(as_transport(Page([])), b"")
        return super().put(transport, content)
