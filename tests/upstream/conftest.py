"""The way out is tested on both loops: uvloop, which production runs on, and asyncio's own."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from proxy.engine.runtime import TaskRunner
from proxy.model.errors import UpstreamUnreachable
from proxy.upstream.client import DirectClient
from proxy.upstream.http_connection import HttpConnection
from proxy.upstream.policy import UpstreamPolicy
from tests.support.loops import MovableLoop, MovableUvloop
from tests.support.scripted import LIMIT, ScriptedUpstream, Wire

OPENSSL = shutil.which("openssl")
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test here runs twice."""
    return {"uvloop": MovableUvloop, "asyncio": MovableLoop}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself; its key is beside it as `key.pem`."""
    if OPENSSL is None:
        pytest.skip("needs openssl to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = f"{OPENSSL} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return path


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRunner]:
    """Uploads run here; none may be left."""
    runner = TaskRunner()
    yield runner
    assert await runner.finish(LIMIT)


@pytest.fixture
async def client(upstream: ScriptedUpstream, tasks: TaskRunner) -> AsyncIterator[DirectClient]:
    """A client to the scripted upstream."""
    made = DirectClient(UpstreamPolicy("scripted", base_url=upstream.url, idle_timeout=LIMIT), tasks.spawn)
    yield made
    made.close()


@dataclass(eq=False)
class Timer:
    """A call that is due at a time."""

    when: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Watch:
    """What a connection asks of its loop. Time passes when the test says so, however busy the machine is."""

    def __init__(self) -> None:
        self.create_future = asyncio.get_running_loop().create_future
        self._now = 0.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self._now + delay, call))
        return self._timers[-1]

    def count_timers(self) -> int:
        """How many calls are still due."""
        return sum(not timer.is_cancelled for timer in self._timers)

    def wait(self, seconds: float) -> None:
        """Let time pass, and call what falls due in it."""
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.when <= end and not timer.is_cancelled]:
            first = min(due, key=lambda timer: timer.when)
            self._timers.remove(first)
            self._now = first.when
            first.call()
        self._now = end


class Pair:
    """A connection and the upstream's end of it."""

    def __init__(self, connection: HttpConnection, wire: Wire, watch: Watch) -> None:
        self.connection = connection
        self.wire = wire
        self.watch = watch

    async def begin(self, method: str = "GET", idle_timeout: float = LIMIT) -> None:
        """Send a request and have the upstream read it."""
        self.connection.begin(method, REQUEST, b"", idle_timeout)
        await self.wire.read_head()

    async def head(self) -> int:
        """The status, once it is there."""
        async with asyncio.timeout(LIMIT):
            await self.connection.wait_for_head()
        return self.connection.status

    async def rest(self) -> bytes:
        """The body up to a clean end."""
        content = b""
        async with asyncio.timeout(LIMIT):
            while piece := await self.connection.read():
                content += piece
        assert self.connection.is_ended
        return content

    async def rest_and_break(self) -> tuple[bytes, str]:
        """The body up to where it breaks, and what the error says."""
        content = b""
        with pytest.raises(UpstreamUnreachable) as caught:
            async with asyncio.timeout(LIMIT):
                while piece := await self.connection.read():
                    content += piece
        assert not self.connection.finish()
        return content, str(caught.value)


@pytest.fixture
async def pair(upstream: ScriptedUpstream) -> AsyncIterator[Pair]:
    """A connection that was just made."""
    loop, watch = asyncio.get_running_loop(), Watch()
    made = HttpConnection(cast(asyncio.AbstractEventLoop, watch))
    _, connection = await loop.create_connection(lambda: made, "127.0.0.1", upstream.port)
    yield Pair(connection, await upstream.accept(), watch)
    connection.finish()
    connection.close()
