"""The whole server on the log that is kept of each earlier version: its session is told, and goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.store.sqlite.verify import verify_log
from tests.store.sqlite.old_forms import FORMS, write_old_log
from tests.support.managing import spell
from tests.support.scripted import ScriptedUpstream
from tests.support.whole_server import CHAT, serving_whole

SAID = {"role": "user", "content": "Now mend it."}
KEY = {"authorization": "Bearer sk-test"}
PARTS = ("", "/context", "/epochs", "/summaries", "/pins", "/cache", "/memory", "/timeline", "/messages", "/tools")


async def read(client: httpx.AsyncClient, path: str, **query: str) -> Any:
    """A document of the API."""
    answer = await client.get(f"/-/api{path}", params=query)
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()


async def find_kept(client: httpx.AsyncClient) -> Mapping[str, Any]:
    """The session with most calls."""
    listed = (await read(client, "/sessions"))["items"]
    return max(listed, key=lambda each: each["calls"])


@pytest.mark.parametrize("form", FORMS)
async def test_a_session_of_an_earlier_version_is_told_and_goes_on(
    form: str, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    path = write_old_log(tmp_path / "log.db", form)
    # The name under which those servers had their only upstream.
    upstreams = [{"name": "127.0.0.1", "base_url": upstream.url}]
    async with serving_whole(tmp_path, upstream, upstreams=upstreams, **{"budget.ceiling_tokens": 6000}) as server:
        kept = await find_kept(server.client)
        for part in PARTS if form >= "m002_lineage" else ("", "/timeline", "/cache"):
            await read(server.client, f"/sessions/{kept['id']}{part}")
        history = await read(server.client, f"/sessions/{kept['id']}/export", form="openai")
        answer = await server.client.post(CHAT, content=spell([*history, SAID]), headers=KEY)
        assert answer.status_code == 200, answer.text
        session = answer.headers["x-palimpsest-session"]
        assert (session == kept["id"]) is (form >= "m002_lineage")
        assert json.loads(upstream.requests[-1].body)["messages"][-1] == SAID
        newest = await find_kept(server.client)
        assert newest["calls"] == max(kept["calls"] + (session == kept["id"]), 1)
    assert verify_log(path).faults == ()
