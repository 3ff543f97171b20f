"""The real engine over a real log, whose upstream is a server on a socket: it answers clients, and us as the test says.

Rule: what a test leaves running ends with its block; nothing here sleeps.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from proxy.assembly import Engine, build_engine
from proxy.config import load_settings
from proxy.engine.compaction.worker import SummaryWorker
from proxy.model.epoch import Summary
from proxy.model.exchange import ClientRequest, Headers
from tests.support.compacting import give_report, is_own, say
from tests.support.engine import RecordingClient, wait_out
from tests.support.managed import spell_as_client
from tests.support.managing import MODEL, Message
from tests.support.scripted import LIMIT, ScriptedUpstream, Wire, answer

NAMED: Headers = ((b"x-palimpsest-session", b"agent"), (b"authorization", b"Bearer sk-agent-0123456789"))
CEILING = 5000
JSON = "Content-Type: application/json"

Play = Callable[[bytes], bytes | None]
"""The bytes that follow a question of ours, head and all; None for none, ever."""


def give(content: bytes) -> bytes:
    """A whole answer."""
    return answer(content, JSON)


def report(body: bytes) -> bytes:
    """A model that does as it is asked."""
    return give(give_report(body))


def break_down(body: bytes) -> bytes:
    """A model that is broken."""
    return answer(b'{"error":{"message":"broken"}}', JSON, status="500 Oops")


class Provider:
    """A server; `sent` are clients' bodies as they came to it, `asked` ours."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.sent: list[bytes] = []
        self.asked: list[bytes] = []
        self.was_asked = asyncio.Event()

    async def serve(self, wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                request = await wire.read_request()
                if request.target != b"/v1/chat/completions":
                    wire.send(answer(b"{}", JSON, status="404 Not Found"))
                elif is_own(request.body):
                    self.asked.append(request.body)
                    self.was_asked.set()
                    wire.send(self.play(request.body) or b"")
                else:
                    self.sent.append(request.body)
                    wire.send(give(say("Looking.", sent=len(request.body) // 4)))


class Agent:
    """A client with one session."""

    def __init__(self, engine: Engine, provider: Provider, ceiling: int) -> None:
        self._ceiling = b"%d" % ceiling
        self.engine = engine
        self.provider = provider
        self.labels: dict[bytes, bytes] = {}

    async def call(self, messages: Sequence[Message], **members: Any) -> list[Message]:
        """A call to its end, nothing else awaited; the messages that went upstream."""
        client = RecordingClient()
        body = spell_as_client({"model": MODEL, **members, "messages": messages})
        return await self.send(body, client)

    async def send(self, body: bytes, client: RecordingClient) -> list[Message]:
        """The same of bytes."""
        headers = (*NAMED, (b"x-palimpsest-ceiling", self._ceiling))
        request = ClientRequest("POST", b"/v1/chat/completions", headers, body)
        await wait_out(asyncio.create_task(self.engine.exchanges.carry(request, "chat_completions", client)))
        assert (client.status, client.is_whole) == (200, True), client.error
        self.labels = dict(client.labels)
        sent: list[Message] = json.loads(self.provider.sent[-1])["messages"]
        return sent

    async def ask(self, messages: Sequence[Message], **members: Any) -> list[Message]:
        """A call, and all that comes of it."""
        sent = await self.call(messages, **members)
        assert await self.engine.tasks.finish(LIMIT)
        return sent

    async def list_summaries(self) -> Sequence[Summary]:
        return await self.engine.archive.list_summaries(self.session)

    async def list_epochs(self) -> Sequence[Any]:
        return await self.engine.archive.list_epochs(self.session)

    @property
    def session(self) -> str:
        return self.labels[b"x-palimpsest-session"].decode()

    @property
    def worker(self) -> SummaryWorker:
        return self.engine.context.memory.manual.worker


@contextlib.asynccontextmanager
async def working(
    data: Path, play: Play = report, *, ceiling: int = CEILING, is_making: bool = True, **settings: Any
) -> AsyncIterator[Agent]:
    """An agent whose calls go through the engine; its summaries may cost what they cost."""
    async with ScriptedUpstream() as server:
        provider = Provider(play)
        server.script = provider.serve
        # no engine of one's own, which is not asked while anybody waits
        upstreams = [{"name": "main", "base_url": server.url, "cache": "prefix"}]
        given = {"data": str(data), "upstreams": upstreams, "compaction.spend_fraction": 1.0, **settings}
        given["compaction.auto"] = is_making
        engine = await build_engine(load_settings(None, given))
        try:
            yield Agent(engine, provider, ceiling)
        finally:
            engine.tasks.cancel()
            await engine.close()
