"""Programs with sessions, each in a process of its own: killed, ended without closing, and beside a running proxy."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.assembly import open_log
from proxy.config import load_settings
from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import start_proxy

HEAD = """
import asyncio, os, sys
from proxy import Session, Settings
config = Settings(upstreams=[{"base_url": sys.argv[1]}])
"""
BEGIN = """
def read(path: str) -> str:
    print("reading", flush=True)
    __import__("time").sleep(600)

async def main():
    session = await Session.create(model="m", config=config, db_path=sys.argv[2], system_prompt="Be brief.")
    await session.send("first")
    await session.send("second", on_part=lambda part: None)
    print(session.id, flush=True)
    if sys.argv[3] == "tools":
        await session.run_tools("third", [read], on_part=lambda part: None)
    elif sys.argv[3] == "wait":
        await asyncio.sleep(600)
asyncio.run(main())
"""
GO_ON = """
def read(path: str) -> str:
    return "text of " + path

async def main():
    async with await Session.load(sys.argv[3], config, sys.argv[2]) as session:
        told = await session.messages()
        result = await session.run_tools(None, [read], max_turns=1) if sys.argv[4] else await session.send("fourth")
        print(len(told), session.model, session.token_usage.total, result.finish_reason)
asyncio.run(main())
"""


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HEAD + program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.communicate()[1]
    return line


def list_sent(provider: Provider) -> list[str]:
    body = [each.body for each in provider.seen if each.body][-1]
    return [str(each.get("content")) for each in json.loads(body)["messages"]]


@pytest.mark.parametrize("where", ["wait", "tools", "end"])
async def test_a_session_goes_on_after_its_program_was_killed(tmp_path: Path, where: str) -> None:
    data = str(tmp_path / "data")
    with run_provider() as provider:
        with start(BEGIN, provider.base_url, data, where) as first:
            session = read_line(first)
            if where == "tools":
                read_line(first)  # a tool runs
            if where == "end":
                assert first.wait(60) == 0  # though it has not closed the session
            else:
                first.send_signal(signal.SIGKILL)
        is_waiting = where == "tools"
        with start(GO_ON, provider.base_url, data, session, "yes" if is_waiting else "") as second:
            told = read_line(second)
            assert second.wait(60) == 0
        # two answers are in the history, or three, of which the last has called tools
        assert told.split()[:2] == ["6" if is_waiting else "4", "m"]
        said = list_sent(provider)
        assert said[:2] == ["Be brief.", "first"]
        assert said[3] == "second"
        if is_waiting:
            assert said[5] == "third"
            assert said[7:] == ["text of a.py", "Error: there is no tool 'list'; there are: read"]
        else:
            assert said[5:] == ["fourth"]
    log = open_log(load_settings(None, {"data": data}))
    assert (await log.verify()).faults == ()
    await log.close()


def test_a_log_that_a_proxy_holds_is_named_with_the_ways_out(tmp_path: Path) -> None:
    with run_provider() as provider:
        proxy = start_proxy(tmp_path, provider.base_url)
        try:
            with start(BEGIN, provider.base_url, str(tmp_path), "end") as program:
                assert program.wait(60) == 1
                said = program.communicate()[1]
        finally:
            assert proxy.stop() == 0
    assert (
        f"LogHeldError: {tmp_path.resolve()}/log.db is being written by another process (id {proxy.process.pid})"
        in said
    )
    assert f"base_url http://127.0.0.1:{proxy.port}/v1), or give another db_path" in said
