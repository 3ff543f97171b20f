"""Sessions whose provider compacts conversations itself, end to end: the real engine, its log, a server on a socket.

The server refuses whatever the provider's API refuses. Nothing reaches the client of what is refused because of us.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.assembly import build_engine
from proxy.config import load_settings
from proxy.engine.ports import Client
from proxy.model.exchange import ClientRequest, Usage
from proxy.model.messages import LEDGER_HEAD
from tests.support.compacting import record_usage
from tests.support.compacting_sessions import CompactingMessages, CompactingResponses
from tests.support.scripted import LIMIT, ScriptedUpstream, Wire, answer

REASONS = {200: "OK", 400: "Bad Request"}


class _Engine:
    """The real engine, as a session of tests uses it."""

    def __init__(self, engine: Any) -> None:
        self.real, self.bus, self.context = engine, engine.bus, None

    def begin(self, request: ClientRequest, wire: str, client: Client) -> "asyncio.Task[None]":
        return asyncio.create_task(self.real.exchanges.carry(request, wire, client))

    async def settle(self) -> None:
        assert await self.real.tasks.finish(LIMIT)


class JourneyTalk:
    """A session's engine, which can be stopped and started with other settings; `provider` answers on a socket."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.given: dict[str, Any] = {}
        self.session = ""
        self.engine: Any = None
        self.log: Any = None

    async def start(self) -> None:
        engine = await build_engine(load_settings(None, self.given))
        self.engine, self.log = _Engine(engine), engine.archive

    def spend(self) -> None:
        """Have the session's own calls cost so much that compactions are cheap beside them."""
        budget = self.engine.real.context.memory.manual.worker.summarizer.health.budget
        record_usage(budget, self.session, Usage(50_000_000, 0))

    async def reopen(self) -> None:
        await self.engine.real.close()
        await self.start()

    async def serve(self, wire: Wire) -> None:
        """Answer as the provider does."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                request = await wire.read_request()
                if not request.body:  # it lists no models
                    wire.send(answer(b"{}", "Content-Type: application/json", status="404 Not Found"))
                    continue
                headers = tuple((name.lower(), value) for name, value in request.headers)
                response = await self.provider.send("POST", request.target, headers, request.body)
                status = f"{response.status} {REASONS[response.status]}"
                fields = [f"{name.decode()}: {value.decode()}" for name, value in response.headers]
                wire.send(answer(b"".join(response.pieces), *fields, status=status))


class _Journey:
    """What a session over sockets has in common on both wires."""

    def make_talk(self, ceiling: int, provider: Any, **_: Any) -> Any:
        return JourneyTalk(self.upstream)  # type: ignore[attr-defined]

    def _listen(self) -> None:
        """Listen to nothing: the engine does not run yet."""


class MessagesJourney(_Journey, CompactingMessages):
    """On Anthropic's wire."""


class ResponsesJourney(_Journey, CompactingResponses):
    """On the Responses wire."""


@contextlib.asynccontextmanager
async def run_session(kind: Any, data: Path) -> AsyncIterator[Any]:
    async with ScriptedUpstream() as server:
        session = kind(8_000, size=1_500, often=0)
        server.script = session.talk.serve
        upstream = {"name": "main", "base_url": server.url, "cache": "prefix", "compaction": True}
        session.talk.given = {"data": str(data), "upstreams": [upstream], "compaction.spend_fraction": 1.0}
        session.talk.given["budget.ceiling_tokens"] = 8_000
        await session.talk.start()
        await session.call()
        session.talk.spend()
        try:
            yield session
        finally:
            session.talk.engine.real.tasks.cancel()
            await session.talk.engine.real.close()


def list_blocks(session: Any, since: int = 0) -> list[Any]:
    return [session.find_block(request) for request in session.sent_requests[since:]]


@pytest.mark.parametrize("kind", [MessagesJourney, ResponsesJourney])
async def test_a_long_session_with_restart_refusal_and_hand_over(kind: Any, tmp_path: Path) -> None:
    async with run_session(kind, tmp_path) as session:
        await session.run(50)
        sent = len(session.sent_bodies)
        for _ in range(4):  # in the middle: the same bytes go on, unless an epoch opens just then
            before, epochs = session.sent_bodies[-1], await session.talk.log.list_epochs(session.talk.session)
            await session.restart()
            await session.call()
            if len(await session.talk.log.list_epochs(session.talk.session)) == len(epochs):
                break
        assert session.sent_bodies[-1][:4000] == before[:4000]
        assert list_blocks(session)[-1] in session.upstream.compacted and session.upstream.refusals == []
        session.talk.spend()
        await session.run(50)
        assert session.upstream.refusals == [] and session.counts["healed"] == 0
        assert None not in list_blocks(session, sent) and len(session.asked) >= 3
        kinds = [each.kind for each in await session.talk.log.list_exchanges(session.talk.session, limit=500)]
        assert kinds.count("auxiliary") == len(session.asked)
        summaries = await session.list_summaries()
        assert len(summaries) == len(session.upstream.compacted) and all(each.block for each in summaries)
        told = json.dumps(session.sent_requests[-1])
        assert LEDGER_HEAD in told and "ref:" in told
        session.upstream.compacted.clear()  # another organisation has the key by now
        sent = len(session.sent_bodies)
        assert (await session.call()).status == 200
        await session.run(20)
        assert len(session.upstream.refusals) == 1 and session.counts["refused"] == 0
        assert set(map(bool, list_blocks(session, sent + 1))) == {False}
        assert (await session.talk.log.verify()).faults == ()


@pytest.mark.parametrize("kind", [MessagesJourney, ResponsesJourney])
async def test_an_upstream_without_it_goes_on_with_the_ledger_alone(kind: Any, tmp_path: Path) -> None:
    async with run_session(kind, tmp_path) as session:
        await session.run_until(3)
        session.upstream.has_compaction = False
        session.talk.given["upstreams"][0]["compaction"] = False
        sent = len(session.sent_bodies)
        await session.restart()
        await session.run(30)
        assert (session.upstream.refusals, session.counts["healed"]) == ([], 0)
        session.talk.spend()
        await session.run(10)
        assert set(map(bool, list_blocks(session, sent))) == {False}
        assert LEDGER_HEAD in json.dumps(session.sent_requests[sent])
        assert (await session.talk.log.verify()).faults == ()
