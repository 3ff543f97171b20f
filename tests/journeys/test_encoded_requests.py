"""Clients that compress their requests (codex with a plan's login does), over sockets through a running proxy."""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import brotli
import httpx
import pytest
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.clients.script import Turn
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.support.answers import WRITERS

ADMIN = {"authorization": f"Bearer {TOKEN}"}
CLIENT = {"authorization": "Bearer sk-0123456789", "content-type": "application/json"}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CALLS, CAP = 22, 4 * 1024 * 1024
Encode = Callable[[bytes], bytes]
ENCODERS: dict[str, Encode] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "br": lambda content: brotli.compress(content, quality=4),
    "deflate": zlib.compress,
    "gzip, zstd": lambda content: zstandard.compress(gzip.compress(content)),
    "GZip": gzip.compress,
}
DECODERS: dict[str, Encode] = {
    "gzip": gzip.decompress,
    "zstd": lambda content: zstandard.ZstdDecompressor().decompressobj().decompress(content),
    "br": brotli.decompress,
    "deflate": zlib.decompress,
    "gzip, zstd": lambda content: gzip.decompress(zstandard.ZstdDecompressor().decompress(content)),
}


class Echo:
    """Answers every call in a few words, and keeps what came."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []

    async def answer(self, request: Request) -> Response:
        """The answer, in the format of the path."""
        self.seen.append((dict(request.headers), await request.body()))
        if request.url.path.endswith("/count_tokens"):
            return JSONResponse({"input_tokens": 7})
        (content,) = WRITERS[request.url.path](Turn("ok"), 1, {})
        return Response(content, media_type="application/json")


@pytest.fixture(scope="module")
def upstream() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def proxy(upstream: Echo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    paths = (CHAT, MESSAGES, RESPONSES, MESSAGES + "/count_tokens")
    routes = [Route(path, upstream.answer, methods=["POST"]) for path in paths]
    data = tmp_path_factory.mktemp("data")
    with (
        serve_application(Starlette(routes=routes)) as port,
        run_proxy(data, f"http://127.0.0.1:{port}/v1", "--ceiling", "8000", SERVER__MAX_BODY_BYTES=str(CAP)) as running,
    ):
        yield running


def send(proxy: Running, path: str, content: bytes, encoding: str = "", **headers: str) -> httpx.Response:
    """Send a body as it is, with this content-encoding."""
    named = {"content-encoding": encoding} if encoding else {}
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(proxy.origin + path, content=content, headers={**CLIENT, **named, **fields}, timeout=60)


def load(proxy: Running, response: httpx.Response, part: str) -> bytes:
    """A body of a call, from the log of the running server."""
    document = show(proxy, response)
    where = f"{proxy.origin}/-/api/sessions/{document['session']}/exchanges/{document['n']}/{part}"
    return httpx.get(where, headers=ADMIN, timeout=60).raise_for_status().content


def show(proxy: Running, response: httpx.Response) -> dict[str, Any]:
    """A call as the log has it, which is the last one of its session."""
    session = response.headers["x-palimpsest-session"]
    where = f"{proxy.origin}/-/api/sessions/{session}/exchanges"
    calls = httpx.get(where, headers=ADMIN, timeout=60).raise_for_status().json()["items"]
    (n,) = [each["n"] for each in calls if each["id"] == response.headers["x-palimpsest-exchange"]]
    document: dict[str, Any] = httpx.get(f"{where}/{n}", headers=ADMIN, timeout=60).raise_for_status().json()
    return document


def make_body(path: str, count: int, topic: str) -> bytes:
    """A conversation of so many turns, as its client spells it."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": f"Fix the bug in {topic}."}]
    for number in range(1, count):
        figures = random.Random(f"{topic} {number}")
        lines = [f"{topic}_{line}: node {figures.random()}" for line in range(60)]
        turns.append({"role": "assistant", "content": "ok"})
        turns.append({"role": "user", "content": f"Go on with {number}.\n{' '.join(lines)}"})
    key = "input" if path == RESPONSES else "messages"
    limit = {"max_tokens": 100} if path == MESSAGES else {}
    return json.dumps({"model": f"m-{topic}", key: turns, "note": "é", **limit}, indent=1).encode()


@pytest.mark.parametrize(
    ("path", "encoding"),
    [
        (RESPONSES, "zstd"),
        (CHAT, "gzip"),
        (MESSAGES, "br"),
        (CHAT, "deflate"),
        (MESSAGES, "gzip, zstd"),
        (CHAT, "zstd"),
    ],
)
def test_a_compressed_conversation_is_one_session_and_is_managed(
    proxy: Running, upstream: Echo, path: str, encoding: str, tmp_path: Path
) -> None:
    topic = f"{path.rsplit('/')[-1]}-{encoding.replace(', ', '-')}"
    sessions, modes, first = set(), set(), b""
    for count in range(1, CALLS):
        content = make_body(path, count, topic)
        encoded = ENCODERS[encoding](content)
        response = send(proxy, path, encoded, encoding)
        assert response.status_code == 200
        first, (headers, sent) = first or encoded, upstream.seen[-1]
        sessions.add(response.headers["x-palimpsest-session"])
        modes.add(response.headers.get("x-palimpsest-mode"))
        if "x-palimpsest-epoch" not in response.headers:  # below the threshold nothing is changed
            assert (sent, headers["content-encoding"]) == (encoded, encoding)
        else:
            assert "content-encoding" not in headers
            assert len(sent) < len(content)
    assert (load(proxy, response, "held"), load(proxy, response, "sent")) == (encoded, sent)
    assert (len(sessions), modes) == (1, {None})
    assert "x-palimpsest-epoch" in response.headers
    assert len(upstream.seen[-1][1]) < 0.8 * len(content)
    named = ("--data", str(proxy.data))
    session, n = sessions.pop(), str(CALLS - 1)
    shown = run_command("show", session, n, "--raw", "held", *named)
    assert shown.stdout == encoded, shown.stderr
    assert run_command("show", session, n, "--raw", "request", *named).stdout == content
    for part in ("held", "sent"):
        assert run_command("show", session, "1", "--raw", part, *named).stdout == first
    diff = run_command("diff", session, n, *named)
    assert (diff.returncode, run_command("verify", *named).returncode) == (0, 0), diff.stderr
    assert run_command("export", session, "-o", str(tmp_path), *named).returncode == 0
    assert (tmp_path / f"{CALLS - 1:04}-held").read_bytes() == encoded


@pytest.mark.parametrize(
    ("content", "encoding", "reason"),
    [
        (b"anything", "snappy", "it is not in content-encoding 'snappy'"),
        (gzip.compress(make_body(CHAT, 3, "cut"))[:-40], "gzip", "it is no whole JSON object"),
        (gzip.compress(make_body(CHAT, 3, "other")), "zstd", "it is not in content-encoding 'zstd'"),
        (gzip.compress(b"no JSON"), "gzip", "it is no whole JSON object"),
        (make_body(CHAT, 3, "wide").decode().encode("utf-16"), "", "it has a byte order mark, or is not in UTF-8"),
    ],
    ids=["unknown", "cut", "other", "text", "utf-16"],
)
def test_what_cannot_be_read_goes_on_as_it_came_and_is_told(
    proxy: Running, upstream: Echo, content: bytes, encoding: str, reason: str
) -> None:
    response = send(proxy, CHAT, content, encoding)
    headers, sent = upstream.seen[-1]
    assert (response.status_code, sent, headers.get("content-encoding", "")) == (200, content, encoding)
    said = f"its body could not be read: {reason}"
    assert response.headers["x-palimpsest-mode"].startswith(f"observe; stood-down:{said}")
    assert (load(proxy, response, "sent"), load(proxy, response, "held")) == (content, content)
    document = show(proxy, response)
    assert document["rounds"][0]["plan"]["reason"].startswith(said)
    shown = run_command("show", document["session"], "1", "--data", str(proxy.data)).stdout.decode()
    assert said in " ".join(shown.split())
    found = httpx.get(f"{proxy.origin}/-/api/doctor", headers=ADMIN, timeout=60).json()["findings"]
    (finding,) = [each for each in found if each["name"] == "bodies"]
    assert (finding["state"], finding["facts"]["unread"] > 0) == ("warning", True)
    assert "its body could not be read" in finding["sentence"]


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_bomb_is_refused(proxy: Running, upstream: Echo, encoding: str) -> None:
    before = len(upstream.seen)
    response = send(proxy, CHAT, ENCODERS[encoding](b" " * (CAP + 1)), encoding)
    assert (response.status_code, len(upstream.seen)) == (413, before)
    assert "max_body_bytes" in response.json()["error"]["message"]


def test_a_long_body_is_decoded_up_to_the_limit_and_one_below_it_goes_on(proxy: Running, upstream: Echo) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * (CAP - 200)}]}
    encoded = zstandard.compress(json.dumps(body).encode())
    assert send(proxy, CHAT, encoded, "zstd", x_palimpsest_mode="observe").status_code == 200
    assert upstream.seen[-1][1] == encoded


def test_a_count_of_tokens_is_of_what_would_be_sent(proxy: Running, upstream: Echo) -> None:
    content = make_body(MESSAGES, 2, "counted")
    encoded = gzip.compress(content)
    assert send(proxy, MESSAGES + "/count_tokens", encoded, "gzip").json()["input_tokens"] == 7
    assert upstream.seen[-1][1] == encoded
    for count in range(2, CALLS):
        send(proxy, MESSAGES, gzip.compress(make_body(MESSAGES, count, "counted")), "gzip")
    managed = upstream.seen[-1][1]
    send(proxy, MESSAGES + "/count_tokens", gzip.compress(make_body(MESSAGES, CALLS - 1, "counted")), "gzip")
    headers, counted = upstream.seen[-1]
    assert "content-encoding" not in headers
    assert json.loads(counted)["messages"] == json.loads(managed)["messages"]


def test_a_history_that_is_held_here_takes_compressed_messages(proxy: Running, upstream: Echo) -> None:
    first = send(proxy, CHAT, gzip.compress(b'{"model":"m","messages":[{"role":"user","content":"one"}]}'), "gzip")
    assert first.status_code == 200  # the upstream has accepted this credential
    sent = [gzip.compress(b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % word) for word in (b"a", b"b")]
    named = {"x_palimpsest_session": "held"}
    send(proxy, CHAT, sent[0], "gzip", x_palimpsest_history="new", **named).raise_for_status()
    response = send(proxy, CHAT, sent[1], "gzip", x_palimpsest_history="server", **named).raise_for_status()
    headers, whole = upstream.seen[-1]
    assert "content-encoding" not in headers
    assert [each["content"] for each in json.loads(whole)["messages"]] == ["a", "ok", "b"]
    assert load(proxy, response, "held") == sent[1]
    assert load(proxy, response, "sent") == whole


def test_erasing_a_session_erases_its_bytes_as_they_came(proxy: Running) -> None:
    encoded = gzip.compress(make_body(CHAT, 2, "erased"))
    session = send(proxy, CHAT, encoded, "gzip").headers["x-palimpsest-session"]
    where = f"{proxy.origin}/-/api/sessions/{session}"
    assert httpx.get(f"{where}/exchanges/1/held", headers=ADMIN, timeout=60).content == encoded
    assert httpx.delete(where, headers=ADMIN, timeout=60).status_code == 200
    assert httpx.get(f"{where}/exchanges/1/held", headers=ADMIN, timeout=60).status_code == 410
    assert run_command("verify", "--data", str(proxy.data)).returncode == 0
