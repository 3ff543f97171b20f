"""The whole server as its own process: how it starts, and that it stops when told to, whatever is under way."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.app import RepeatCountingStream
from proxy.assembly import find_address, find_link, open_log
from proxy.config import Settings, load_settings
from proxy.shutdown import compute_cut_seconds
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


# Has the server find no package of an extra, and no encoder.
_LEAN = """
import importlib.util, sys
find = importlib.util.find_spec
missing = ("litellm", "splintr", "tiktoken", "tree_sitter", "tree_sitter_language_pack")
sys.modules |= dict.fromkeys(missing)
importlib.util.find_spec = lambda name, *others: None if name in missing else find(name, *others)
"""


async def launch(
    flags: dict[str, object], stderr: int = asyncio.subprocess.PIPE, script: str = _SCRIPT
) -> asyncio.subprocess.Process:
    """Start a server."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        json.dumps(flags),
        stderr=stderr,
        stdin=asyncio.subprocess.DEVNULL,
    )


@contextlib.asynccontextmanager
async def running(
    upstream: ScriptedUpstream, data: Path, script: str = _SCRIPT, **flags: object
) -> AsyncIterator[Process]:
    """A server in front of the scripted upstream."""
    every: dict[str, object] = {
        "upstreams": [{"name": "scripted", "base_url": upstream.url}],
        "data": str(data),
        "server.port": 0,
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    process = await launch(every, script=script)
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


async def wait_for_connection(server: Process) -> None:
    """Return when what was sent so far has come to the server: it takes connections one after another."""
    async with await dial(server.port) as other:
        other.send(request("GET", "/-/live"))
        assert (await other.read_answer()).status == 200


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
            assert "outlines  " not in server.announced
            assert "tokens  " not in server.announced
            server.tell()
            assert (await server.end())[0] == 0
        assert await server.completeness() == ["complete"]
    assert ((tmp_path / "admin-token").stat().st_mode & 0o777) == 0o600


async def test_a_server_without_optional_packages_says_what_is_done_otherwise_and_serves(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(answer(b'{"id":"x"}', "Content-Type: application/json"))
    async with running(upstream, tmp_path, _LEAN + _SCRIPT) as server:
        assert (
            "  outlines  of Python, JSON and the like; those of other source code need the extra " in server.announced
        )
        assert "    tokens  estimated, for this machine has no splintr\n" in server.announced
        async with await server.connect() as client:
            client.send(ASK)
            assert (await client.read_answer()).body == b'{"id":"x"}'
        server.tell()
        assert (await server.end())[0] == 0
    assert await server.completeness() == ["complete"]


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


@pytest.mark.parametrize(
    ("calls", "drain", "seconds"),
    [(0, 30.0, 0.25), (100, 30.0, 0.4), (9000, 30.0, 13.75), (9000, 15.0, 10.0), (9, 0, 0)],
)
def test_the_more_calls_are_left_the_earlier_they_are_ended(calls: int, drain: float, seconds: float) -> None:
    assert compute_cut_seconds(calls, drain) == pytest.approx(seconds)


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


# --- log lines -------------------------------------------------------------------------------------------------------


class Lines:
    """What is written of what is logged, on a clock of the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self._stream = io.StringIO()
        self.handler = RepeatCountingStream(self._stream, lambda: self.now)

    def log(self, text: str, *values: object, after: float = 0.0, error: Exception | None = None) -> None:
        """Log a line when some time has passed."""
        self.now += after
        kind = (type(error), error, None) if error is not None else None
        self.handler.handle(logging.LogRecord("palimpsest", logging.WARNING, "app.py", 1, text, values, kind))

    def read(self) -> list[str]:
        """The lines."""
        return self._stream.getvalue().splitlines()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """A log of its own."""
    made = Lines()
    yield made
    made.handler.close()


def test_equal_lines_are_counted_and_not_repeated(lines: Lines) -> None:
    for _ in range(14):
        lines.log("no room: %s", "disk full", after=0.5)
    assert lines.read() == ["no room: disk full"]
    lines.log("another", after=52.0)
    assert lines.read() == ["no room: disk full", "another"]
    lines.log("another", after=2.0)
    assert lines.read()[2:] == ["no room: disk full (repeated 13 times in 6 s)"]
    lines.log("no room: %s", "disk full")
    assert lines.read()[3:] == ["no room: disk full"]


def test_a_line_that_came_once_is_not_told_again(lines: Lines) -> None:
    lines.log("once")
    lines.log("later", after=61.0)
    lines.handler.close()
    assert lines.read() == ["once", "later"]


def test_lines_that_differ_are_all_written(lines: Lines) -> None:
    lines.log("no room: %s", "disk full")
    lines.log("no room: %s", "quota")
    lines.log("failed", error=ValueError("a"))
    lines.log("failed", error=ValueError("b"))
    assert lines.read() == [
        "no room: disk full",
        "no room: quota",
        "failed",
        "ValueError: a",
        "failed",
        "ValueError: b",
    ]


def test_what_was_counted_is_told_at_the_end(lines: Lines) -> None:
    lines.log("failed", error=ValueError("a"))
    lines.log("failed", after=3.0, error=ValueError("a"))
    lines.handler.close()
    assert lines.read() == ["failed", "ValueError: a", "failed (repeated 1 times in 3 s)"]


def test_what_was_counted_is_told_though_nothing_else_is_logged(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Callable[[], None]] = []

    class Timer:
        """A timer that the test lets go off."""

        daemon = False

        def __init__(self, seconds: float, call: Callable[[], None]) -> None:
            assert seconds == 60.0
            self._call = call

        def start(self) -> None:
            started.append(self._call)

        def cancel(self) -> None:
            started.clear()

    monkeypatch.setattr("threading.Timer", Timer)
    for _ in range(3):
        lines.log("again", after=1.0)
    (go_off,) = started
    go_off()
    assert lines.read() == ["again", "again (repeated 2 times in 2 s)"]
    lines.log("again")
    lines.log("again")
    assert len(started) == 2
    lines.handler.close()
    assert not started


async def test_why_a_call_failed_and_why_a_request_was_refused_is_said(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    async with running(upstream, tmp_path) as server:
        client = await server.connect()
        client.send(ASK)
        wire, _ = await upstream.accept_request()
        await wire.close()
        assert (await client.read_answer(method="POST")).status == 502
        for _ in range(3):
            async with await server.connect() as other:
                other.send(b"GARBAGE\r\n\r\n")
                assert (await other.read_answer()).status == 400
        server.tell()
        code, said = await server.end()
    assert code == 0
    failed, refused, repeated = said.splitlines()
    assert failed.endswith("failed, status 0: the upstream closed the connection before it answered")
    assert "a request from 127.0.0.1 was refused: this is not a valid HTTP/1.1 request: Invalid method" in refused
    assert "(repeated 2 times in " in repeated


async def refuse_to_start(flags: dict[str, object]) -> bytes:
    """What a server says that does not start."""
    process = await launch(flags)
    async with asyncio.timeout(STARTING):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in said
    assert b"/-/?token=" not in said
    return said


async def test_a_key_is_not_offered_to_the_network_without_a_word(tmp_path: Path) -> None:
    keyed = [{"name": "a", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-own"}]
    said = await refuse_to_start(
        {"data": str(tmp_path), "server.port": 0, "server.host": "0.0.0.0", "upstreams": keyed}
    )
    assert b"server.require_tenant: true" in said
    assert b"server.open_to_network: true" in said
    assert b"sk-own" not in said


async def test_an_upstream_that_is_the_server_itself_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    itself = [{"name": "a", "base_url": "http://127.0.0.2:1/v1"}, {"name": "b", "base_url": f"http://localhost:{port}"}]
    said = await refuse_to_start({"data": str(tmp_path), "server.port": port, "upstreams": itself})
    assert b"upstreams[1].base_url" in said
    assert b"--port" in said


async def test_a_server_that_comes_back_to_itself_records_a_call_once(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    async with running(upstream, tmp_path) as server:

        async def lead_back(wire: Wire) -> None:
            asked = await wire.read_request()
            async with await dial(server.port) as onward:
                hops = asked.find(b"x-palimpsest-hop").decode()
                onward.send(request("POST", CHAT, f"X-Palimpsest-Hop: {hops}", body=asked.body))
                back = await onward.read_answer()
            wire.send(answer(back.body, status=back.line.decode().partition(" ")[2]))

        upstream.script = lead_back
        client = await server.connect()
        client.send(ASK)
        got = await client.read_answer()
        assert (got.status, json.loads(got.body)["error"]["code"]) == (508, "loop_detected")
        server.tell()
        assert (await server.end())[0] == 0
    assert await server.completeness() == ["complete"]
