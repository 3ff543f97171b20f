"""What happens on SIGTERM and SIGINT: the server stops when told to, whatever is under way."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, chunk, request
from tests.support.server_process import (
    ASK,
    EVENT,
    STARTING,
    open_stream,
    running,
    wait_for_connection,
    wait_until_closed,
)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


async def test_a_stream_is_finished_while_nobody_else_is_let_in(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path) as server:
        client, wire = await open_stream(server, upstream)
        server.tell()
        await wait_until_closed(server.port)
        wire.send(chunk(EVENT) + LAST_CHUNK)
        assert await client.read_until(LAST_CHUNK) == chunk(EVENT) + LAST_CHUNK
        assert await client.read_to_end() == b""
        assert (await server.end())[0] == 0
        assert await server.completeness() == ["complete"]


async def wait_until_ready(asking: Wire) -> list[str]:
    """Ask until the server is ready; what it said it was before."""
    said: list[str] = []
    async with asyncio.timeout(STARTING):
        while True:
            asking.send(request("GET", "/-/ready"))
            got = await asking.read_answer()
            if got.status == 200:
                return said
            said.append(json.loads(got.body)["status"])
            await asyncio.sleep(0.02)


async def test_a_draining_server_is_not_ready_at_once(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path) as server:
        _client, wire = await open_stream(server, upstream)
        asking = await server.connect()
        assert set(await wait_until_ready(asking)) <= {"starting"}
        server.tell()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asking.send(request("GET", "/-/ready"))
                got = await asking.read_answer()
                if got.status != 200:
                    assert b'"draining"' in got.body
        wire.send(LAST_CHUNK)
        assert (await server.end())[0] == 0


async def test_a_stream_that_never_ends_cannot_prevent_the_end(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=1) as server:
        client, wire = await open_stream(server, upstream)
        server.tell()
        code, said = await server.end(within=25)
        assert (code, "Traceback" in said) == (0, False), said
        assert await client.read_to_end() == b""
        assert await wire.read_to_end() == b""
        assert await server.completeness() == ["aborted"]


async def test_a_call_still_waiting_at_the_end_gets_no_text_of_somebody_elses(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Either the connection breaks or the answer is one of our errors; never a 500 that looks like the upstream's."""
    async with running(upstream, tmp_path, server__drain_seconds=1) as server:
        client = await server.connect()
        client.send(ASK)
        await upstream.accept_request()
        server.tell()
        code, _ = await server.end(within=25)
        got = await client.read_to_end()
        assert code == 0
        assert got == b"" or b"x-palimpsest-error: true" in got


async def test_an_upload_that_never_ends_cannot_prevent_the_end(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=1) as server:
        client = await server.connect()
        client.send(ASK[:-1])
        await wait_for_connection(server)
        server.tell()
        got = await client.read_answer(method="POST")
        assert (got.status, b"shutting_down" in got.body) == (503, True)
        assert await server.end() == (0, "")


async def test_a_client_that_takes_nothing_cannot_prevent_the_end(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=1) as server:
        client, wire = await open_stream(server, upstream)
        client.stop_reading()
        wire.send(chunk(bytes(16 * 1024 * 1024)) + LAST_CHUNK)
        server.tell()
        code, said = await server.end()
        assert (code, "timeout graceful shutdown exceeded" in said) == (0, False), said


async def test_a_second_signal_ends_at_once(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=60) as server:
        _client, _ = await open_stream(server, upstream)
        server.tell(signal.SIGINT)
        await wait_until_closed(server.port)
        server.tell(signal.SIGINT)
        assert (await server.end(within=50))[0] == 0
        assert await server.completeness() == ["aborted"]


async def test_a_signal_right_after_the_address_was_announced_ends_in_order(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    async with running(upstream, tmp_path) as server:
        server.tell()
        code, said = await server.end()
        assert (code, "Traceback" in said) == (0, False), said
    assert (await asyncio.to_thread(os.listdir, tmp_path)).count("log.db-wal") == 0, "the log was not closed"


async def test_an_idle_connection_does_not_delay_the_end(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=60) as server, await server.connect() as client:
        client.send(request("GET", "/-/live"))
        assert (await client.read_answer()).status == 200
        server.tell()
        assert (await server.end())[0] == 0


async def test_a_refused_upload_does_not_delay_the_end(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=60) as server:
        async with await server.connect() as client:
            client.send(request("POST", "/v1/%2e%2e/files", body=bytes(1000))[:-1])
            assert (await client.read_answer()).status == 400
        server.tell()
        assert (await server.end())[0] == 0
