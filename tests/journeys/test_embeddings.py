"""Search by similarity: a provider that makes vectors, the proxy restarted in between, and one that makes none."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.test_managed import call, load
from tests.support.embedding import make_response

TOLD = "We have bought a dog for the children."
KEY = {"authorization": "Bearer sk-agent-0123456789", "x-session-id": "talk"}
ADMIN = {"authorization": f"Bearer {TOKEN}"}
# With prices it is no local server, which would be asked 5 s after a call.
CONFIG = """
pricing:
  m: {input: 3, output: 15}
  e: {input: 0.02}
"""


class Embedding:
    """A provider whose model says little, and whose other model makes vectors unless it has none."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.texts: list[list[str]] = []
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._answer, methods=["POST"]),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
            ]
        )

    async def _answer(self, request: Request) -> Response:
        await request.body()
        message = {"role": "assistant", "content": "I see."}
        usage = {"prompt_tokens": 4000, "completion_tokens": 3, "total_tokens": 4003}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        assert body["model"] == "e"
        assert request.headers["authorization"] == KEY["authorization"]
        self.texts.append(body["input"])
        if self.status != 200:
            return JSONResponse({"error": {"message": "no such path"}}, self.status)
        return Response(make_response(body["input"]), media_type="application/json")


def ask(proxy: Running, *texts: str) -> None:
    """One call of a client whose history has these texts."""
    messages: list[Any] = []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "I see."}]
    body = {"model": "m", "messages": messages[:-1]}
    answer = httpx.post(f"{proxy.base_url}/chat/completions", json=body, headers=KEY, timeout=60)
    assert answer.status_code == 200, answer.text


def search(proxy: Running, text: str) -> list[str]:
    return [hit["snippet"] for hit in load(proxy, f"/search?{urlencode({'q': text})}")["hits"]]


def wait_for(is_so: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def count_vectors(proxy: Running) -> int:
    return int(load(proxy, "/index")["vectors"])


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_the_same_in_other_words_is_found_before_and_after_a_restart(tmp_path: Path, config: str) -> None:
    provider, talk = Embedding(), [f"Line {i} is about subject {i * 13} and nothing else." for i in range(20)]
    on = {"RECALL__EMBEDDING_MODEL": "e"}
    with serve_application(provider.app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with run_proxy(tmp_path / "data", url, "--config", config, **on) as proxy:
            ask(proxy, *talk, TOLD)
            wait_for(lambda: count_vectors(proxy) == 42)
            assert {*provider.texts[0]} == {*talk, TOLD, "I see."}
            wait_for(lambda: search(proxy, "puppy purchased")[:1] == [TOLD])  # a late vector is there the next time
            assert provider.texts[1:] == [["puppy purchased"]]
            metrics = httpx.get(f"http://127.0.0.1:{proxy.port}/-/metrics", headers=ADMIN).text
            assert "palimpsest_embedded_texts_total 43.0" in metrics
            assert "palimpsest_index_vectors 42.0" in metrics
            assert 'palimpsest_embedding_calls_total{upstream="127.0.0.1",verdict="answered"} 2.0' in metrics
        with run_proxy(tmp_path / "data", url, "--config", config, **on) as proxy:
            wait_for(lambda: count_vectors(proxy) == 42)
            assert search(proxy, "puppy purchased") == []  # nobody's credential is there to ask with
            ask(proxy, *talk, TOLD, "The boat is in the harbour.")
            wait_for(lambda: count_vectors(proxy) == 44)
            assert provider.texts[2:] == [["The boat is in the harbour.", "I see."]]
            wait_for(lambda: search(proxy, "which vessel")[:1] == ["The boat is in the harbour."])
        with run_proxy(tmp_path / "data", url, "--config", config) as proxy:
            ask(proxy, *talk, TOLD, "The boat is in the harbour.", "Goodbye.")
            wait_for(lambda: "Goodbye." in search(proxy, "goodbye"))
            assert search(proxy, "which vessel") == []
            time.sleep(3)
            assert len(provider.texts) == 4
    assert run_command("verify", "--data", str(tmp_path / "data")).returncode == 0


def test_a_provider_without_embeddings_is_asked_once(tmp_path: Path, config: str) -> None:
    provider = Embedding(404)
    with serve_application(provider.app) as port:
        on = {"RECALL__EMBEDDING_MODEL": "e"}
        with run_proxy(tmp_path / "data", f"http://127.0.0.1:{port}/v1", "--config", config, **on) as proxy:
            ask(proxy, "one", "two")
            wait_for(lambda: bool(provider.texts))
            ask(proxy, "one", "two", "three")
            wait_for(lambda: "three" in search(proxy, "three"))
            time.sleep(3)
            status, _ = call(proxy, "/index", "GET")
            assert status == 200
        assert "".join(proxy.output).count("/v1/embeddings was refused") == 1
        assert len(provider.texts) == 1
