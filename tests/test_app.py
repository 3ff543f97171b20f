"""The whole server as its own process: how it starts, what it prints, and what it logs."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy import __version__
from proxy.running import find_address, find_link
from tests.support.http_proxy import HttpProxy
from tests.support.scripted import LAST_CHUNK, ScriptedUpstream, Wire, answer, chunk, dial, request
from tests.support.server_process import (
    ASK,
    CHAT,
    LEAN,
    SCRIPT,
    STARTING,
    launch,
    open_stream,
    running,
)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream."""
    async with ScriptedUpstream() as server:
        yield server


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
            assert (
                "ceiling  auto = 128,000 tokens, or fewer where a model's long-context prices begin earlier\n"
                in server.announced
            )
            marks = "from 49,664 tokens on where it pays, from 124,160 on always ("
            assert f"shortened  /chat/completions, /responses, /v1/messages, {marks}" in server.announced
            assert "recorded  " not in server.announced
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
    async with running(upstream, tmp_path, LEAN + SCRIPT) as server:
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


async def test_a_server_behind_a_proxy_streams_and_records_as_any_other(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    async with HttpProxy(password="hidden") as proxy:
        route = [{"name": "scripted", "base_url": upstream.url, "proxy": proxy.url}]
        async with running(upstream, tmp_path, upstreams=route) as server:
            assert (
                f"upstream  scripted: {upstream.url} (through the proxy 127.0.0.1:{proxy.port})\n" in server.announced
            )
            client, wire = await open_stream(server, upstream)
            end = chunk(b"data: [DONE]\n\n")
            wire.send(end)
            await client.read_until(end)
            wire.send(LAST_CHUNK)
            await client.read_until(LAST_CHUNK)
            client.send(ASK)
            await wire.read_request()
            await wire.close()
            assert (await client.read_answer()).status == 502
            server.tell()
            code, said = await server.end()
    assert (code, "hidden" in server.announced + said) == (0, False)
    assert await server.completeness() == ["complete", "failed"]
    assert [head.target for head in proxy.heads] == [f"{upstream.url}/chat/completions".encode()]


async def test_a_server_says_where_shortening_begins_for_a_window_that_is_set(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    route = [{"name": "small", "base_url": upstream.url, "window": 32_000}]
    for mode, told in (
        ("manage", ", shortened from 11,640 tokens on where it pays, from 19,400 on always\n"),
        ("observe", "\n"),
    ):
        async with running(upstream, tmp_path, upstreams=route, mode=mode) as server:
            assert f"upstream  small: {upstream.url}{told}" in server.announced
            server.tell()
            assert (await server.end())[0] == 0


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
    token = (tmp_path / "admin-token").read_bytes()
    assert token in await read_terminal(tmp_path, is_whole=True)
    assert token not in await read_terminal(tmp_path, is_whole=False)


async def read_terminal(data: Path, *, is_whole: bool) -> bytes:
    """What a server writes to a terminal at its start: both streams, or standard error alone."""
    leader, follower = os.openpty()
    stdout = follower if is_whole else asyncio.subprocess.DEVNULL
    try:
        process = await launch({"data": str(data), "server.port": 0}, stderr=follower, stdout=stdout)
        os.close(follower)
        shown = b""
        async with asyncio.timeout(STARTING):
            while b"/-/" not in shown or not shown.endswith(b"\n"):
                shown += await asyncio.to_thread(os.read, leader, 4096)
            process.kill()
            await process.wait()
    finally:
        os.close(leader)
    return shown


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
    assert "a call failed, status 0: the upstream closed the connection before it responded session=" in failed
    assert "a request was refused: this is not a valid HTTP/1.1 request: Invalid method" in refused
    assert refused.endswith(" client=127.0.0.1")
    assert "(repeated 2 times in " in repeated


async def test_a_log_of_json_is_json_from_its_first_line_and_tells_requests(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(answer(b'{"id":"x"}', "Content-Type: application/json"))
    async with running(upstream, tmp_path, log__format="json", log__access=True) as server:
        async with await server.connect() as client:
            client.send(ASK)
            assert (await client.read_answer()).status == 200
            client.send(request("GET", "/-/api/sessions?key=secret"))
            assert (await client.read_answer()).status == 401
        server.tell()
        code, said = await server.end()
    lines = [json.loads(line) for line in (server.announced + said).splitlines()]
    assert (code, "secret" in said) == (0, False)
    assert lines[0]["attributes"] == {"service.version": __version__}
    told = {line["attributes"]["url.path"]: line["attributes"] for line in lines if line["body"] == "request served"}
    assert told["/-/api/sessions"]["http.response.status_code"] == 401
    call = told["/v1/chat/completions"]
    assert call["http.response.status_code"] == 200
    assert call["gen_ai.conversation.id"]
    assert call["palimpsest.completeness"] == "complete"
    assert 0 < call["palimpsest.duration_seconds"] < 60


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
