"""Answers whose upstream announces their lengths, with each stage that may change them, over real sockets.

What is changed may be longer than announced; whatever is not changed keeps its length.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.journeys.running import Running, run_command, run_proxy

HEADERS = {"x-api-key": "sk-ant-0123456789abcdef", "anthropic-version": "2023-06-01"}
SAID = "Said."
MESSAGE: dict[str, Any] = {
    **{"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None},
    **{"content": [{"type": "text", "text": SAID}], "stop_reason": "end_turn"},
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": SAID}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
STREAM = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS).encode()
CLEARING: dict[str, Any] = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
CHANGED = b"applied_edits"


async def answer(request: Request) -> Response:
    """Answer at once with all of a body, whose length is announced."""
    asked = json.loads(await request.body())
    if request.url.path.endswith("count_tokens"):
        return Response(b'{"input_tokens":7}', media_type="application/json")
    if asked.get("stream"):
        return Response(STREAM, media_type="text/event-stream")
    return Response(json.dumps(MESSAGE), media_type="application/json")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("lengths")
    with serve_application(Starlette(routes=[Route("/v1/{path:path}", answer, methods=["POST"])])) as port:
        settings = folder / "settings.yaml"
        upstream = {"name": "u", "base_url": f"http://127.0.0.1:{port}/v1", "context_editing": "proxy"}
        settings.write_text(json.dumps({"upstreams": [upstream]}), "utf-8")
        with run_proxy(folder / "log", "", "--config", str(settings)) as running:
            yield running


def ask(proxy: Running, path: str = "messages", **members: Any) -> httpx.Response:
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Tell me."}], **members}
    return httpx.post(f"{proxy.origin}/v1/{path}", json=body, headers=HEADERS)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_says_what_was_cleared_arrives_whole(proxy: Running, *, stream: bool) -> None:
    got = ask(proxy, stream=stream, **CLEARING)
    assert (got.status_code, SAID in got.text, CHANGED in got.content) == (200, True, True)
    assert got.headers.get("content-length", str(len(got.content))) == str(len(got.content))
    if stream:
        assert "content-length" not in got.headers
        assert got.content.endswith(b'data: {"type": "message_stop"}\n\n')


def test_a_count_that_says_what_it_was_before_arrives_whole(proxy: Running) -> None:
    got = ask(proxy, "messages/count_tokens", **CLEARING)
    assert (got.status_code, got.json()["input_tokens"]) == (200, 7)
    assert got.headers["content-length"] == str(len(got.content))


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_nobody_changes_keeps_its_length(proxy: Running, *, stream: bool) -> None:
    got = ask(proxy, stream=stream)
    assert got.headers["content-length"] == str(len(got.content))
    assert got.content == (STREAM if stream else json.dumps(MESSAGE).encode())


def test_the_log_has_every_call_as_answered(proxy: Running) -> None:
    ask(proxy, stream=True, **CLEARING)
    for session in json.loads(run_command("sessions", "--json", "--data", str(proxy.data)).stdout):
        assert session["errors"] == 0
