"""The MCP server as clients use it, by the SDK's own client: over HTTP, and as a process on standard input and output.

Two agents, of one key each, have grown past a small ceiling; an agent without history asks.
"""

import asyncio
import contextlib
import json
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from proxy.server.mcp.tools import TOOLS
from tests.journeys.running import TOKEN, Running, run_proxy
from tests.journeys.test_managed import TOOLS as AGENTS_TOOLS
from tests.journeys.test_managed import Dummy
from tests.support.answers import serve_answers
from tests.support.managing import MODEL, make_history

KEYS = ("sk-agent-one", "sk-agent-two")
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A proxy that has recorded two agents' sessions, with epochs."""
    with (
        serve_answers(Dummy().answer) as url,
        run_proxy(tmp_path_factory.mktemp("data"), url, "--ceiling", "6000") as running,
    ):
        for key in KEYS:
            client = openai.OpenAI(base_url=running.base_url, api_key=key, max_retries=0, timeout=60)
            system, task, *steps = make_history(30, 1200)
            history = [system, {**task, "content": f"Mend the tests of {key}."}, *steps]
            for end in range(2, len(history) + 1, 2):
                messages: Any = history[:end]
                named = {"x-palimpsest-session": f"work of {key}"}
                client.chat.completions.create(model=MODEL, messages=messages, tools=AGENTS_TOOLS, extra_headers=named)
            client.close()
        yield running


@contextlib.asynccontextmanager
async def connect(proxy: Running, token: str, mode: Any = "auto") -> AsyncIterator[Client]:
    """A client of the server over HTTP."""
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        transport = streamable_http_client(f"{proxy.origin}/-/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def call(client: Client, name: str, **arguments: Any) -> str:
    """The text of a result that is no error."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def find(client: Client, query: str, **narrowed: Any) -> str:
    """What is found, once the index has it: it follows the log."""
    async with asyncio.timeout(60):
        while True:
            found = await call(client, "search", query=query, **narrowed)
            if not found.startswith("Nothing was found") and "cannot be searched yet" not in found:
                return found
            await asyncio.sleep(0.2)


async def list_ids(client: Client) -> list[str]:
    listed = await call(client, "list_sessions")
    return [line.split(" ")[0] for line in listed.splitlines()]


async def find_references(proxy: Running, session: str) -> list[str]:
    """The references of a session's newest epoch."""
    headers = {"authorization": f"Bearer {TOKEN}"}

    def load() -> Any:
        asked = urllib.request.Request(f"{proxy.origin}/-/api/sessions/{session}/epochs", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read())["items"]

    return [each["id"] for each in (await asyncio.to_thread(load))[-1]["references"]]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_administrator_reads_the_sessions_of_all_agents(
    proxy: Running, mode: Literal["auto", "legacy"]
) -> None:
    async with connect(proxy, TOKEN, mode) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [tool.name for tool in TOOLS]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        sessions = await list_ids(client)
        assert len(sessions) == 2
        for session, key in zip(sessions, reversed(KEYS), strict=True):
            assert f"Mend the tests of {key}." in await call(client, "read_file", session=session, path="step 1")
            shown = await call(client, "read_file", session=session[:8], path="module_3.py")
            assert re.match(rf"session {session}, as of call \d+: src/module_3.py as of step 5 of ", shown)
            assert "def function_3(value_3)" in shown
            early = await call(client, "read_file", session=session, path="step 2", call=2)
            assert early.startswith(f"session {session}, as of call 2: step 2 of 2\n")
            handed = await call(client, "handoff", session=session)
            assert f"# Handoff of session {session}" in handed
            [reference, *_] = await find_references(proxy, session)
            described = await call(client, "describe", ref=f"ref:{reference}")
            assert described.startswith(f"ref:{reference} · ") and "recorded" in described
            assert "as of step" in (await call(client, "expand", ref=reference)).splitlines()[0]


async def test_what_all_agents_saw_is_found_and_of_a_credential_its_own(proxy: Running) -> None:
    async with connect(proxy, TOKEN) as admin:
        second, first = await list_ids(admin)
        found = await find(admin, "function_17")
        assert f"of session {first[:12]}" in found and f"of session {second[:12]}" in found
        narrowed = await find(admin, "function_17", session=second, kinds=["output"])
        assert f"of session {second[:12]}" in narrowed and first[:12] not in narrowed
        reference = re.findall(r"ref:([a-z2-7]{10})", narrowed)[0]
        read = await call(admin, "expand", ref=reference)
        assert "def function_17(value_17)" in read and " · output of bash · session " in read
    async with connect(proxy, KEYS[0]) as client:
        found = await find(client, "function_17")
        assert first[:12] in found and second[:12] not in found
        result = await client.call_tool("expand", {"ref": reference})
        assert result.is_error


async def test_a_client_s_credential_reads_what_was_recorded_with_it(proxy: Running) -> None:
    async with connect(proxy, TOKEN) as admin:
        second, first = await list_ids(admin)
        [foreign, *_] = await find_references(proxy, second)
        [own, *_] = await find_references(proxy, first)
    async with connect(proxy, KEYS[0]) as client:
        assert await list_ids(client) == [first]
        assert "as of step" in await call(client, "expand", ref=own)
        for name, arguments, said in (
            ("expand", {"ref": foreign}, f"There is no ref:{foreign}."),
            ("describe", {"ref": foreign}, f"There is no ref:{foreign}."),
            ("read_file", {"session": second, "path": "step 1"}, "no session of yours begins with"),
            ("handoff", {"session": second}, "no session of yours begins with"),
            ("search", {"query": "x", "session": second}, "no session of yours begins with"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error and isinstance(result.content[0], TextContent)
            assert result.content[0].text.startswith(said)
    async with connect(proxy, "sk-nobody") as client:
        assert len((await client.list_tools()).tools) == len(TOOLS)
        result = await client.call_tool("list_sessions", {})
        assert result.is_error and isinstance(result.content[0], TextContent)
        assert "one that an upstream has accepted in the last half hour" in result.content[0].text


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({}, 401, "send the admin token as"),
        ({"host": "evil.example"}, 403, "is not allowed"),
        ({"origin": "https://evil.example", "authorization": f"Bearer {TOKEN}"}, 403, "other origins"),
        ({"sec-fetch-site": "cross-site", "authorization": f"Bearer {TOKEN}"}, 403, "other sites"),
    ],
)
def test_others_are_refused(proxy: Running, fields: dict[str, str], status: int, said: str) -> None:
    told = post(proxy, fields)
    assert told[0] == status and said in told[1]


def post(proxy: Running, fields: dict[str, str], method: str = "POST", content: bytes | None = None) -> tuple[int, str]:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **fields}
    body = (content or json.dumps(INITIALIZE).encode()) if method == "POST" else None
    asked = urllib.request.Request(f"{proxy.origin}/-/mcp", body, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("content", "fields", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', {}, 200),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":[]}}', {}, 200),
        (b"x" * 300_000, {}, 413),
        (b"{}", {"content-type": "text/plain"}, 400),
        (b"{}", {"accept": "text/html"}, 406),
        (b"\xff\xfe", {}, 400),
    ],
)
def test_what_is_no_request_is_answered_and_harms_nothing(
    proxy: Running, content: bytes, fields: dict[str, str], status: int
) -> None:
    told = post(proxy, {"authorization": f"Bearer {TOKEN}", **fields}, content=content)
    assert told[0] == status and 0 < len(told[1]) < 4000
    assert status != 200 or '"error"' in told[1]
    assert post(proxy, {"authorization": f"Bearer {TOKEN}"})[0] == 200


def test_there_is_no_stream_to_listen_to_and_no_session_to_end(proxy: Running) -> None:
    for method in ("GET", "DELETE", "PUT"):
        assert post(proxy, {"authorization": f"Bearer {TOKEN}"}, method)[0] == 405
    assert post(proxy, {"authorization": f"Bearer {TOKEN}"})[0] == 200


def test_many_ask_at_once(proxy: Running) -> None:
    results: list[tuple[int, str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(post(proxy, {"authorization": f"Bearer {TOKEN}"})))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [status for status, _ in results] == [200] * 8


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_process_serves_it_on_standard_input_and_output(
    proxy: Running, mode: Literal["auto", "legacy"]
) -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "proxy", "mcp", "--data", str(proxy.data)], cwd=Path(__file__).parents[2]
    )
    async with Client(parameters, mode=mode) as client:
        sessions = await list_ids(client)
        assert len(sessions) == 2
        assert "def function_3(" in await call(client, "read_file", session=sessions[0], path="src/module_3.py")
        result = await client.call_tool("expand", {"ref": "nothing"})
        assert result.is_error
