"""The project's own upstream client in the comparison.

The rule: only this file of the benchmark imports the proxy; what changes in the forwarder's port changes here.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from benchmarks.upstream_adapters import PATH, Reply
from proxy.upstream.client import DirectClient
from proxy.upstream.policy import UpstreamPolicy


class ForwarderClient:
    """`proxy.upstream.client.DirectClient`, used as the exchange uses it."""

    name = "palimpsest's forwarder"

    def __init__(self) -> None:
        self._forwarder: DirectClient | None = None

    async def open(self, origin: str) -> None:
        self._forwarder = DirectClient(UpstreamPolicy(name="mock", base_url=f"{origin}/v1"), _spawn)

    async def call(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        assert self._forwarder is not None
        fields = tuple((name.encode(), value.encode()) for name, value in headers.items())
        response = await self._forwarder.send("POST", PATH.encode(), fields, body)
        size = 0
        try:
            while content := await response.read():
                size += len(content)
            return Reply(response.status, size)
        finally:
            response.close()

    async def close(self) -> None:
        if self._forwarder is not None:
            self._forwarder.close()


def _spawn(job: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(job)
