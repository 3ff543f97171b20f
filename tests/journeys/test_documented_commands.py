"""Every command in README.md and docs/ is run as a reader would run it: against a mock provider, in a new directory.

A block of shell commands is executed, unless NOT_RUN holds it with a reason. A block ```text output``` must be what the
block before it writes, but for numbers, ids and times.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.picture import TokenCount, Upstream, draw, measure, run_proxy, run_session
from benchmarks.processes import find_free_port, get_status
from tests.support.pages import PAGES, ROOT, Block, list_runnable

PORT = "8484"
CALLS = 24
SECONDS = 60.0


@dataclass(frozen=True)
class World:
    """A proxy in front of a mock provider, with a long session in its log."""

    home: Path
    port: int
    names: dict[str, str]
    environment: dict[str, str]

    def run(self, text: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run shell commands as a reader would, with real names in place of those in capitals."""
        for name, value in self.names.items():
            text = re.sub(rf"\b{name}\b", value, text)
        return subprocess.run(
            ["sh", "-eu", "-c", text.replace(PORT, changes.pop("port", str(self.port)))],
            cwd=self.home,
            env=self.environment | changes,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


@contextmanager
def run_world(home: Path, calls: int) -> Iterator[World]:
    """A proxy in front of a mock provider, with a session of so many calls in its log."""
    (home / "bin").mkdir()
    shim = home / "bin" / "palimpsest"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec {sys.executable} -m proxy "$@"\n')
    shim.chmod(0o755)
    with Upstream(TokenCount()) as upstream:
        environment = {
            "PATH": f"{shim.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "OPENAI_API_KEY": "sk-mock",
            "PALIMPSEST_UPSTREAMS": f'[{{"name": "openai", "base_url": "http://127.0.0.1:{upstream.port}/v1"}}]',
        }
        with run_proxy(upstream.port, home / ".palimpsest", "--ceiling", "16000") as port:
            run_session(port, calls, TokenCount())
            empty = World(home, port, {}, environment)
            yield World(home, port, find_names(empty), environment) if calls else empty


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with run_world(tmp_path_factory.mktemp("home"), CALLS) as world:
        yield world


def find_names(world: World) -> dict[str, str]:
    """What stands in the place of the names in capitals."""
    session = re.findall(r'"id":"(\w+)"', world.run("palimpsest sessions --json").stdout)[0]
    shown = world.run(f"palimpsest show {session} --json").stdout
    references: list[str] = []
    deadline = time.monotonic() + SECONDS
    while not references and time.monotonic() < deadline:
        references = re.findall(r"ref:([a-z0-9]{10})", world.run(f"palimpsest diff {session} {CALLS}").stdout)
    assert references, "the session was not shortened"
    tip = re.findall(r'"tip":"(\w+)"', shown)[0]
    return {"SESSION": session, "REF": references[0], "BRANCH": tip, "FILE": "a-file", "DIR": "a-directory"}


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md" and list_runnable(page)])
def test_the_commands_of_a_page_work(page: str, world: World) -> None:
    for block in list_runnable(page):
        check_block(block, world)


def test_the_commands_of_the_readme_work_on_an_empty_log(tmp_path: Path) -> None:
    with run_world(tmp_path, 0) as world:
        for block in list_runnable("README.md"):
            check_block(block, world)


def check_block(block: Block, world: World) -> None:
    if "curl" in block.text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = block.text.replace("\\\n", " ").splitlines()
    output = ""
    for line in lines:
        if line.startswith("palimpsest serve"):
            check_server(line, world)
            continue
        done = world.run(line)
        assert done.returncode == 0, f"{block.page}: {line}\n{done.stdout}{done.stderr}"
        output += done.stdout
    if block.output:
        assert mask(output) == mask(block.output)


def check_server(line: str, world: World) -> None:
    """Start a server as a line says, on a free port and an empty data directory, and end it when it is live."""
    port = find_free_port()
    where = f"--port {port} --data {world.home / f'data-{port}'}"
    process = subprocess.Popen(
        ["sh", "-c", f"exec {line.partition('  #')[0]} {where}"],
        env=world.environment,
        cwd=world.home,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + SECONDS
        while get_status(port, "/-/live") != 200:
            assert process.poll() is None and time.monotonic() < deadline, f"{line}: the server did not start"
            time.sleep(0.02)
    finally:
        process.terminate()
        process.wait(SECONDS)


def mask(text: str) -> list[list[str]]:
    """The words of each line; a word with a digit is only a number or an id, and of equal lines one is enough."""
    lines = [["#" if re.search(r"\d", word) else word for word in line.split()] for line in text.splitlines()]
    return [line for i, line in enumerate(lines) if line not in lines[:i]]


def test_the_picture_shows_a_run() -> None:
    """A short session with a low ceiling: the same requests, until there is an epoch; from then on less is sent."""
    figures = measure(CALLS, "--ceiling", "16000")
    first = next(i for i, (a, b) in enumerate(zip(figures["without"], figures["with"], strict=True)) if a != b)
    assert all(b < a for a, b in list(zip(figures["without"], figures["with"], strict=True))[first:])
    assert draw(figures).count("<polyline") == 2
