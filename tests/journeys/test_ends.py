"""The end of an answer in which a model recalls, over sockets: whatever its client does there, nothing is lost.

A client takes the answer up to its last event. Then it sends its next request at once over another connection, or hangs
up first, or reads on to the end of the body.
"""

import asyncio
import http.client
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.engine.call.response_reader import read_received
from proxy.lab.upstream import serve_application
from proxy.wire import FORMATS
from tests.journeys.running import run_command, run_proxy
from tests.support.engine import STREAM
from tests.support.rounds import SPEAKERS, Call, Speaker, Text, Turn, number
from tests.support.scripted import LIMIT
from tests.support.wire_histories import PATHS, answer_call, ask, call, list_items, make_request

LAST = {"chat_completions": b"[DONE]", "anthropic_messages": b'"message_stop"', "responses": b'"response.completed"'}
_SEARCH = '{"action":"search","query":"line 7"}'
# What the model does, round by round; the last round calls a tool of the client's, too, or is a word.
FORMS: dict[str, Sequence[Turn]] = {
    "alone": number([Text("I look. "), Call(_SEARCH)], [Text("Found.")]),
    "beside": number([Text("I look. "), Call(_SEARCH), Call('{"path":"a"}', "read")]),
    "last": number([Call(_SEARCH)], [Text("And "), Call(_SEARCH), Call('{"path":"a"}', "read")]),
}
CLIENTS = ("next", "hang up", "read on")
RUNS, LATE = 1, 2  # of each
_PAGE = "\n".join(f"line {i} of a file that is long enough to be worth a reference" for i in range(60))


def count_own(body: Any) -> Counter[str]:
    """How often each call of the recall tool is named in what goes upstream: once as a call, once by its result."""
    text = json.dumps(list_items(body))
    ids = [part.id for turns in FORMS.values() for turn in turns for part in turn.calls if part.is_own]
    return Counter({id: text.count(f'"{id}"') for id in set(ids)})


class RecallingProvider:
    """Answers what the newest words of the user ask for: the next round of a form, or a word."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.sent: dict[str, list[Any]] = {}
        route = Route("/{rest:path}", self._answer, methods=["POST"])
        self.app = Starlette(routes=[route])

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        said = [item["content"] for item in list_items(body) if item.get("role") == "user"]
        words = next(text for text in reversed(said) if isinstance(text, str))
        seen = self.sent.setdefault(words, [])
        seen.append(body)
        turns = FORMS.get(words.partition(" ")[0], ())
        turn = turns[len(seen) - 1] if len(seen) <= len(turns) else number([Text("Well.")])[0]

        async def send() -> AsyncIterator[bytes]:
            for event in self.speaker.list_events(turn):
                yield event

        return StreamingResponse(send(), media_type="text/event-stream")


class Client:
    """One agent that keeps its history, over connections of its own."""

    def __init__(self, port: int, wire: str, session: str) -> None:
        self.port, self.wire, self.session = port, wire, session
        self.items: list[Any] = []
        self.open: list[Any] = []

    def close(self) -> None:
        """Close what was left open."""
        for connection, response in self.open:
            response.close()
            connection.close()

    def send(self, what: str) -> None:
        """Send the history, and take the answer up to its last event; `what` is done then."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"content-type": "application/json", "authorization": "Bearer sk-client-key-0001"}
        headers |= {"x-palimpsest-session": self.session, "x-palimpsest-ceiling": "6000"}
        connection.request("POST", PATHS[self.wire], make_request(self.wire, self.items, is_stream=True), headers)
        response, received = connection.getresponse(), b""
        assert response.status == 200
        while LAST[self.wire] not in received or not received.endswith(b"\n\n"):
            piece = response.read1(65536)
            assert piece, f"the answer ends without its last event: {received[-300:]!r}"
            received += piece
        if what == "read on":
            assert response.read() == b""
        self.open.append((connection, response))
        if what != "next":
            self.close()
        assert b"context_recall" not in received
        form = FORMATS[self.wire]
        _, plain = read_received(form, STREAM, received, 1 << 20)
        echoes = [json.loads(raw) for raw in form.list_echoes(plain)]
        self.items += echoes
        self.items += [answer_call(self.wire, id, "a file") for id in _list_calls(echoes)]


def _list_calls(echoes: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for each in echoes:
        found += [called["id"] for called in each.get("tool_calls") or ()]
        found += [each["call_id"]] if each.get("type") == "function_call" else []
        blocks = each.get("content") if isinstance(each.get("content"), list) else []
        found += [block["id"] for block in blocks if block.get("type") == "tool_use"]
    return found


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
def test_nothing_of_an_answer_is_lost_whatever_its_client_does_at_its_end(tmp_path: Path, speaker: Speaker) -> None:
    wire, provider = speaker.form.name, RecallingProvider(speaker)
    kept: dict[str, tuple[int, int]] = {}
    with serve_application(provider.app) as port, run_proxy(tmp_path, f"http://127.0.0.1:{port}/v1") as proxy:
        for form, turns in FORMS.items():
            for what in CLIENTS:
                for run in range(RUNS):
                    client = Client(proxy.port, wire, f"{form}-{what}-{run}".replace(" ", "-"))
                    client.items = [ask(wire, f"Fix it, {form} {what} {run}.")]
                    for step in range(12):
                        client.items += [call(wire, f"c{step}", f"f{step}.py"), answer_call(wire, f"c{step}", _PAGE)]
                    client.items.append(ask(wire, f"begin {form} {what} {run}"))
                    client.send("read on")
                    client.items.append(ask(wire, f"{form} {what} {run}"))
                    client.send(what)
                    client.items.append(ask(wire, f"go on {form} {what} {run}"))
                    client.send("read on")
                    client.close()
                    (later,) = provider.sent[f"go on {form} {what} {run}"]
                    own = [part.id for turn in turns for part in turn.calls if part.is_own]
                    found = count_own(later)
                    had, of = kept.get(f"{form}, {what}", (0, 0))
                    kept[f"{form}, {what}"] = had + sum(found[id] == 2 for id in own), of + len(own)
    lost = [line for line in proxy.output if "lost" in line or "ERROR" in line]
    verified = run_command("verify", "--data", str(tmp_path))
    assert {name: counts for name, counts in kept.items() if counts[0] < counts[1]} == {}
    assert lost == [] and verified.returncode == 0, (lost, verified.stdout)


class LateProvider:
    """Ends each body a moment after the last event, while a busy disk keeps the log from committing the response.

    Another transaction in the log's file stands for that. The time that passes only makes the case: nothing fails if
    the machine is slower.
    """

    def __init__(self, speaker: Speaker, log: Path) -> None:
        self.speaker = speaker
        self.begun = threading.Event()  # the client has the beginning of the answer, so that its question is committed
        self._log = log
        self.app = Starlette(routes=[Route("/{rest:path}", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        return StreamingResponse(self._send(), media_type="text/event-stream")

    async def _send(self) -> AsyncIterator[bytes]:
        *events, last = self.speaker.list_events(number([Text("Well.")])[0])
        for event in events:
            yield event
        assert await asyncio.to_thread(self.begun.wait, LIMIT)
        busy = sqlite3.connect(self._log, isolation_level=None, timeout=LIMIT, check_same_thread=False)
        busy.execute("BEGIN IMMEDIATE")
        threading.Timer(0.5, busy.close).start()
        yield last
        await asyncio.sleep(0.2)


def read_to_the_end(wire: str, port: int, begun: threading.Event) -> str:
    """Read a stream with the SDK of its wire. Return the types of the first and last thing in it."""
    base, kinds = f"http://127.0.0.1:{port}", []
    stream: Any
    if wire == "anthropic_messages":
        with anthropic.Anthropic(base_url=base, api_key="k", max_retries=0, timeout=60) as claude:
            asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            with claude.messages.stream(**asked) as stream:
                for event in stream:
                    begun.set()
                    kinds.append(event.type)
        return str(kinds[-1])
    with openai.OpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0, timeout=60) as sdk:
        asked = {"model": "m", "stream": True}
        if wire == "responses":
            stream = sdk.responses.create(**asked, input="hi")
        else:
            stream = sdk.chat.completions.create(**asked, messages=[{"role": "user", "content": "hi"}])
        with stream:
            for event in stream:
                begun.set()
                kinds.append(event.type if wire == "responses" else event.object)
    return str(kinds[-1])


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
def test_sdks_read_a_stream_to_its_end_that_comes_while_the_log_is_written(tmp_path: Path, speaker: Speaker) -> None:
    provider, wire = LateProvider(speaker, tmp_path / "log.db"), speaker.form.name
    ends = {
        "chat_completions": "chat.completion.chunk",
        "anthropic_messages": "message_stop",
        "responses": "response.completed",
    }
    settings = {"STORE__DURABILITY": "full", "STORE__COMMIT_WAIT_MS": "20000"}
    with (
        serve_application(provider.app) as port,
        run_proxy(tmp_path, f"http://127.0.0.1:{port}/v1", **settings) as proxy,
    ):
        for _ in range(LATE):
            provider.begun.clear()
            assert read_to_the_end(wire, proxy.port, provider.begun) == ends[wire]
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0
