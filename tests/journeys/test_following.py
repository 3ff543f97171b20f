"""`palimpsest tail` beside a real server: live, with the numbers of the log, across a restart, and ended by Ctrl-C."""

import json
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import TOKEN, Running, run_command, run_proxy

STARTING, LIVE = 60.0, 40.0  # seconds; what is expected is a second, on a machine that does nothing else
MESSAGES = [{"role": "user", "content": "tell me a story"}]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


class Tail:
    """A `palimpsest tail` of its own."""

    def __init__(self, data: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "proxy", "tail", "--data", str(data), "--admin-token", TOKEN, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[str] = queue.Queue()
        for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            assert stream is not None
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    def _read(self, stream: IO[str], lines: "queue.Queue[str]") -> None:
        with stream:
            for line in stream:
                lines.put(line)

    def read(self, seconds: float = LIVE) -> dict[str, Any]:
        """The next event."""
        found: dict[str, Any] = json.loads(self.lines.get(timeout=seconds))
        return found

    def end(self) -> int:
        """Press Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STARTING)


def ask(proxy: Running, path: str, body: Any = None) -> Any:
    content = json.dumps(body).encode() if body is not None else None
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", "x-palimpsest-session": "story"}
    with urllib.request.urlopen(urllib.request.Request(proxy.origin + path, content, headers), timeout=30) as response:
        return json.load(response)


def wait_for_reader(proxy: Running, tail: Tail) -> dict[str, Any]:
    """Call until the first call is followed: nothing else tells that the command has connected."""
    deadline = time.monotonic() + STARTING
    while time.monotonic() < deadline:
        ask(proxy, "/v1/chat/completions", {"model": "m", "messages": MESSAGES})
        try:
            return tail.read(0.5)
        except queue.Empty:
            continue
    raise AssertionError("the command follows nothing")


def test_calls_are_followed_across_a_restart_with_the_numbers_of_the_log(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url) as proxy:
        tail = Tail(tmp_path, "--json")
        try:
            row = wait_for_reader(proxy, tail)
            while row["type"] != "CALL_COMPLETED":
                row = tail.read()
            (session,) = ask(proxy, "/-/api/sessions")["items"]
            (call,) = ask(proxy, f"/-/api/sessions/{session['id']}/exchanges?after={row['n'] - 1}&limit=1")["items"]
            usage = call["rounds"][0]["usage"]
            assert (row["session"], row["exchange"], row["status"]) == (session["id"], call["id"], 200)
            assert (row["input"], row["output"]) == (usage["input"], usage["output"])
            began = time.monotonic()
            assert proxy.stop() == 0
            assert time.monotonic() - began < LIVE, "an open stream does not hold up a stop, which has 30 seconds"
            while row["type"] != "STREAM_ENDED":
                row = tail.read()
            assert tail.errors.get(timeout=STARTING).startswith("the server is gone; waiting until it is back")
            with run_proxy(tmp_path, provider.base_url) as again:
                assert tail.read(STARTING)["type"] == "RESET"
                ask(again, "/v1/chat/completions", {"model": "m", "messages": MESSAGES})
                row = tail.read()
                assert (row["type"], row["session"]) == ("CALL_COMPLETED", session["id"])
                assert tail.end() == 0
        finally:
            tail.process.kill()
            tail.process.wait(STARTING)


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    ended = run_command("tail", "--data", str(tmp_path), "--admin-token", TOKEN, "--port", "9")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"no server answers" in ended.stderr and b"start it by `palimpsest serve --data " in ended.stderr
