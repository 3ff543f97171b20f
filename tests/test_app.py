"""The whole server as its own process: how it starts, and that it stops when told to, whatever is under way."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.assembly import find_address, find_link, open_log
from proxy.config import Settings, load_settings
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, answer, chunk, dial, request, stream_head

STARTING = 120.0
ENDING = 120.0  # where a test names a shorter time, it is less than calls would have by default, or as it has set
CHAT = "/v1/chat/completions"
ASK = request("POST", CHAT, "X-Session-Id: test", body=b'{"model":"m","messages":[]}')
EVENT = b"data: {}\n\n"

_SCRIPT = """
import json, sys
from proxy.app import serve
from proxy.config import load_settings
flags = json.loads(sys.argv[1])
sys.exit(serve(load_settings(None, flags)))
"""


@dataclass
class Process:
    """A running server."""

    process: asyncio.subprocess.Process
    port: int
    announced: str
    settings: Settings
    clients: list[Wire] = field(default_factory=list)

    async def connect(self) -> Wire:
        """A client's connection, closed with the server at the latest."""
        client = await dial(self.port)
        self.clients.append(client)
        return client

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def end(self, within: float = ENDING) -> tuple[int, str]:
        """Its exit code and what else it said, once it has ended by itself."""
        async with asyncio.timeout(within):
            _, said = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()

    async def completeness(self) -> list[str]:
        """How the calls of the test's session ended, as the log tells it."""
        reader = open_log(self.settings)
        try:
            sessions = await reader.list_sessions()
            rows = [row for session in sessions for row in await reader.list_exchanges(session.id)]
            return [each.completeness for row in rows for each in row.rounds]
        finally:
            await reader.close()


async def launch(flags: dict[str, object], stderr: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    """Start a server."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SCRIPT,
        json.dumps(flags),
        stderr=stderr,
        stdin=asyncio.subprocess.DEVNULL,
    )


@contextlib.asynccontextmanager
async def running(upstream: ScriptedUpstream, data: Path, **flags: object) -> AsyncIterator[Process]:
    """A server in front of the scripted upstream."""
    every: dict[str, object] = {
        "upstreams": [{"name": "scripted", "base_url": upstream.url}],
        "data": str(data),
        "server.port": 0,
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    process = await launch(every)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(STARTING):
            announced = (await process.stderr.readuntil(b"      page  ")).decode()
            announced += (await process.stderr.readline()).decode()
        port = re.search(r":(\d+)/-/", announced)
        assert port is not None, announced
        server = Process(process, int(port[1]), announced, load_settings(None, every))
        try:
            yield server
        finally:
            for client in server.clients:
                await client.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


async def open_stream(server: Process, upstream: ScriptedUpstream) -> tuple[Wire, Wire]:
    """A stream under way: the client's end and the upstream's."""
    client = await server.connect()
    client.send(ASK)
    wire, _ = await upstream.accept_request()
    wire.send(stream_head() + chunk(EVENT))
    await client.read_until(chunk(EVENT))
    return client, wire


async def wait_until_closed(port: int) -> None:
    """Return when nobody takes connections any more."""
    async with asyncio.timeout(ENDING):
        while True:
            try:
                wire = await dial(port)
            except (ConnectionRefusedError, ConnectionResetError):  # reset: it was waiting to be accepted
                return
            await wire.close()


async def test_a_server_says_where_it_is_serves_and_ends_with_everything_recorded(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(answer(b'{"id":"x"}', "Content-Type: application/json"))
    async with running(upstream, tmp_path) as server:
        async with await server.connect() as client:
            client.send(ASK)
            assert (await client.read_answer()).body == b'{"id":"x"}'
            link = find_link(server.settings)
            assert link.startswith(f"http://127.0.0.1:{server.port}/-/?token=")
            client.send(request("GET", link.removeprefix(f"http://127.0.0.1:{server.port}")))
            assert (await client.read_answer()).status == 303
            assert "ceiling  auto = 200,000 tokens\n" in server.announced
            assert "shortened  /chat/completions, from 77,600 tokens on (" in server.announced
            assert "recorded  /responses, /v1/messages: kept in the log, not shortened\n" in server.announced
            server.tell()
            assert (await server.end())[0] == 0
        assert await server.completeness() == ["complete"]
    assert ((tmp_path / "admin-token").stat().st_mode & 0o777) == 0o600


async def test_the_link_with_the_token_is_for_a_terminal_alone(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path) as server:
        assert "token=" not in server.announced
        assert "/-/ (`palimpsest open --print` writes the link with the token)\n" in server.announced
        async with await server.connect() as client:
            client.send(request("GET", "/-/live"))
            assert (await client.read_answer()).status == 200
        server.tell()
        code, said = await server.end()
    assert (code, find_address(server.settings)) == (0, "http://127.0.0.1:0")
    assert (tmp_path / "admin-token").read_text() not in said
    leader, follower = os.openpty()
    try:
        process = await launch({"data": str(tmp_path), "server.port": 0}, stderr=follower)
        os.close(follower)
        shown = b""
        async with asyncio.timeout(STARTING):
            while b"token=" not in shown:
                shown += await asyncio.to_thread(os.read, leader, 4096)
            process.kill()
            await process.wait()
    finally:
        os.close(leader)
    assert (tmp_path / "admin-token").read_bytes() in shown


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


async def test_a_draining_server_is_not_ready_at_once(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path) as server:
        _client, wire = await open_stream(server, upstream)
        asking = await server.connect()
        asking.send(request("GET", "/-/ready"))
        assert (await asking.read_answer()).status == 200
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


async def test_a_second_signal_ends_at_once(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    async with running(upstream, tmp_path, server__drain_seconds=60) as server:
        _client, _ = await open_stream(server, upstream)
        server.tell(signal.SIGINT)
        await wait_until_closed(server.port)
        server.tell(signal.SIGINT)
        assert (await server.end(within=50))[0] == 0
        assert await server.completeness() == ["aborted"]


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


async def test_a_port_in_use_is_told_with_the_way_out(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await launch({"data": str(tmp_path), "server.port": port})
        async with asyncio.timeout(STARTING):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}".encode() in said
    assert b"--port" in said
    assert b"Traceback" not in said


async def test_a_directory_that_cannot_be_used_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    process = await launch({"data": str(tmp_path / "file"), "server.port": 0})
    async with asyncio.timeout(STARTING):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"--data" in said
    assert b"Traceback" not in said
