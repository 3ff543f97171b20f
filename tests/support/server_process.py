"""The whole server as a process of its own, in front of the scripted upstream."""

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.assembly import open_log
from proxy.config import Settings, load_settings
from tests.support.scripted import ScriptedUpstream, Wire, chunk, dial, request, stream_head

STARTING = 120.0
ENDING = 120.0  # where a test names a shorter time, it is less than calls would have by default, or as it has set
CHAT = "/v1/chat/completions"
ASK = request("POST", CHAT, "X-Session-Id: test", body=b'{"model":"m","messages":[]}')
EVENT = b"data: {}\n\n"

SCRIPT = """
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
LEAN = """
import importlib.util, sys
find = importlib.util.find_spec
missing = ("litellm", "splintr", "tiktoken", "tree_sitter", "tree_sitter_language_pack")
sys.modules |= dict.fromkeys(missing)
importlib.util.find_spec = lambda name, *others: None if name in missing else find(name, *others)
"""


async def launch(
    flags: dict[str, object],
    stderr: int = asyncio.subprocess.PIPE,
    script: str = SCRIPT,
    stdout: int | None = None,
) -> asyncio.subprocess.Process:
    """Start a server."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        json.dumps(flags),
        stderr=stderr,
        stdout=stdout,
        stdin=asyncio.subprocess.DEVNULL,
    )


@contextlib.asynccontextmanager
async def running(
    upstream: ScriptedUpstream, data: Path, script: str = SCRIPT, **flags: object
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
            announced = ""
            while "/-/" not in announced:  # the last line of the banner, or the only line of JSON
                announced += (await process.stderr.readline()).decode() or pytest.fail(announced)
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
