"""The official openai Python SDK, direct and through the proxy: the same results, and the provider is sent the same."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.journeys.provider import WORDS, Provider, Seen, run_provider
from tests.journeys.running import Running, run_command, run_proxy

KEY = "sk-journey-0123456789abcdef"
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief. é"}, {"role": "user", "content": "Tell me."}]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("read", "list")
]


class Book(BaseModel):
    name: str
    pages: int


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with run_proxy(tmp_path_factory.mktemp("data"), provider.base_url) as running:
        yield running


@contextlib.contextmanager
def make_client(base_url: str, session: str = "") -> Iterator[openai.OpenAI]:
    headers = {"x-palimpsest-session": session} if session else {}
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=60, default_headers=headers) as client:
        yield client


def say(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES).model_dump()


def stream(client: openai.OpenAI) -> Any:
    with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as chunks:
        return [chunk.model_dump() for chunk in chunks]


def stream_with_usage(client: openai.OpenAI) -> Any:
    chunks = client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    return [chunk.model_dump() for chunk in chunks]


def stream_tools(client: openai.OpenAI) -> Any:
    with client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as chunks:
        return [event.type for event in chunks], chunks.get_final_completion().model_dump()


def parse_structure(client: openai.OpenAI) -> Any:
    return client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Book).choices[0].message.parsed


def respond(client: openai.OpenAI) -> Any:
    return client.responses.create(model="m", input="Tell me.").model_dump()


def stream_response(client: openai.OpenAI) -> Any:
    return [event.model_dump() for event in client.responses.create(model="m", input="Tell me.", stream=True)]


def embed(client: openai.OpenAI) -> Any:
    return client.embeddings.create(model="e", input="x").model_dump()


def list_models(client: openai.OpenAI) -> Any:
    return client.models.list().model_dump()


def upload(client: openai.OpenAI) -> Any:
    return client.files.create(file=("a.jsonl", b"x" * 300_000), purpose="batch").bytes > 300_000


CALLS = (
    say, stream, stream_with_usage, stream_tools, parse_structure, respond, stream_response, embed, list_models, upload,
)  # fmt: skip


def shape(seen: Seen) -> Any:
    """A request without what differs between any two: its Host, connection, way and multipart boundary."""
    differing = ("host", "connection", "content-type", "x-palimpsest-hop")
    headers = [(name, value) for name, value in seen.headers if name not in differing]
    body = b"" if b"multipart" in dict(seen.headers).get("content-type", "").encode() else seen.body
    return seen.method, seen.target, sorted(headers), body


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_gives_what_it_gives_direct(
    call: Callable[[openai.OpenAI], Any], provider: Provider, proxy: Running
) -> None:
    with make_client(provider.base_url) as client:
        direct = call(client)
    sent_direct = shape(provider.seen[-1])
    with make_client(proxy.base_url) as client:
        through = call(client)
    assert through == direct
    assert shape(provider.seen[-1]) == sent_direct


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 529])
def test_an_error_reaches_the_program_as_it_was(status: int, provider: Provider, proxy: Running) -> None:
    caught = []
    for base_url in (provider.base_url, proxy.base_url):
        with make_client(base_url) as client, pytest.raises(openai.APIStatusError) as raised:
            client.chat.completions.create(model=f"status-{status}", messages=MESSAGES)
        error = raised.value
        caught.append(
            (type(error), error.status_code, error.code, error.message, error.response.headers["retry-after"])
        )
    assert caught[0] == caught[1]
    assert caught[0][1] == status


def test_leaving_a_stream_stops_the_provider(provider: Provider, proxy: Running) -> None:
    provider.left.clear()
    with make_client(proxy.base_url) as client:
        chunks = client.chat.completions.create(model="endless", messages=MESSAGES, stream=True)
        assert next(chunks).choices[0].delta.content == "tick "
        chunks.close()
    assert provider.left.wait(60), "the provider still streams though the client left"


async def test_many_asynchronous_streams_do_not_mix(proxy: Running) -> None:
    async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0) as client:

        async def read() -> str:
            chunks = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        assert await asyncio.gather(*(read() for _ in range(32))) == ["".join(WORDS)] * 32


def test_everything_said_is_in_the_log_and_no_credential_is(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url) as proxy, make_client(proxy.base_url, "journey") as client:
        stream(client)
        stream_tools(client)
        sent = [json.loads(seen.body) for seen in provider.seen[-2:]]
        bodies = [seen.body for seen in provider.seen[-2:]]
        (session,) = json.loads(run_command("sessions", "--json", "--data", str(tmp_path)).stdout)
        for n, body in enumerate(bodies, 1):
            shown = run_command("show", session["id"], str(n), "--raw", "request", "--data", str(tmp_path))
            assert shown.stdout == body
    assert session["family"] == "journey"
    assert session["calls"] == 2
    exported = json.loads(run_command("export", session["id"], "--openai", "--data", str(tmp_path)).stdout)
    assert exported[:-1] == sent[-1]["messages"]
    assert [call["function"]["name"] for call in exported[-1]["tool_calls"]] == ["read", "list"]
    verified = run_command("verify", "--data", str(tmp_path))
    assert verified.returncode == 0, verified.stdout
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "log.db" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in "".join(proxy.output)


def test_a_key_of_the_settings_goes_upstream_only(provider: Provider, tmp_path: Path) -> None:
    own = "sk-of-the-settings-0123456789"
    upstreams = json.dumps([{"name": "main", "base_url": provider.base_url, "api_key": own}])
    with run_proxy(tmp_path, "", UPSTREAMS=upstreams) as proxy, make_client(proxy.base_url) as client:
        say(client)
        embed(client)
    for seen in provider.seen[-2:]:
        assert dict(seen.headers)["authorization"] == f"Bearer {own}"
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in files if own.encode() in content or KEY.encode() in content]
    assert own not in "".join(proxy.output)
