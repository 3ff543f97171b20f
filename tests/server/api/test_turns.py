"""The API of turns that were made elsewhere: what it records, what it repeats, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import ScriptedUpstream
from tests.support.whole_server import CHAT, WholeServer, serving_whole

SESSIONS = "/-/api/sessions"
CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"."}'}}
LISTED: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py b.py"},
    {"role": "assistant", "content": "There are two files."},
]


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
async def server(tmp_path: Path, upstream: ScriptedUpstream) -> AsyncIterator[WholeServer]:
    async with serving_whole(tmp_path, upstream, **{"budget.ceiling_tokens": 4000}) as served:
        yield served


async def post(server: WholeServer, path: str, body: Any, key: str = "") -> tuple[int, Any]:
    """Status and document of a response."""
    headers = {"idempotency-key": key} if key else {}
    got = await server.client.post(f"{SESSIONS}{path}", content=json.dumps(body).encode(), headers=headers)
    return got.status_code, got.json()


async def get(server: WholeServer, path: str) -> Any:
    """The document at a path."""
    got = await server.client.get(f"{SESSIONS}{path}")
    assert got.status_code == 200, got.text
    return got.json()


async def begin(server: WholeServer, **wanted: str) -> str:
    """Begin a session, and return its id."""
    status, told = await post(server, "", {"model": "gpt-5", **wanted})
    assert status == 201, told
    return str(told["id"])


async def test_a_session_is_begun_once_and_may_work_for_another(server: WholeServer) -> None:
    status, told = await post(server, "", {"model": "gpt-5", "name": "first"})
    assert (status, told) == (
        201,
        {"id": told["id"], "name": "first", "model": "gpt-5", "upstream": "scripted", "parent": ""},
    )
    status, refused = await post(server, "", {"model": "gpt-5", "name": "first"})
    assert status == 409 and told["id"] in refused["error"]["message"]
    _, child = await post(server, "", {"model": "gpt-5", "parent": told["id"][:8]})
    assert child["parent"] == told["id"] and child["name"].startswith("session-")
    assert [each["id"] for each in (await get(server, f"/{told['id']}"))["children"]] == [child["id"]]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400), ({"model": ""}, 400), ({"model": "m", "name": "é"}, 400), ({"model": "m", "name": "x" * 201}, 400),
        ({"model": "m", "upstream": "none"}, 400), ({"model": "m", "parent": "nobody"}, 404),
        ({"model": "m", "x": 1}, 400),
    ],
)  # fmt: skip
async def test_a_session_that_cannot_be_is_refused(server: WholeServer, body: Any, status: int) -> None:
    assert (await post(server, "", body))[0] == status


async def test_turns_are_recorded_and_are_the_context_of_the_next(
    server: WholeServer, upstream: ScriptedUpstream
) -> None:
    session = await begin(server, name="first", system_prompt="Be brief.")
    tokens = {"input": 100, "output": 5, "cache_read": 20}
    status, first = await post(server, f"/{session}/record", {"user": "hello", "assistant": "hi", "tokens": tokens})
    assert (status, first["tokens"]["input"], first["tokens"]["total"]) == (201, 100, 125)
    status, second = await post(server, "/first/record", {"user": "list", "assistant": LISTED})
    assert status == 201 and second["tokens"]["input"] > 20 and not second["compaction_triggered"]
    context = await get(server, f"/{session}/context")
    said = [
        {"role": "system", "content": "Be brief."},
        *({"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}),
        *({"role": "user", "content": "list"}, *LISTED),
    ]
    assert context["messages"] == said and context["token_estimate"] > 30
    messages = (await get(server, f"/{session}/messages"))["items"]
    assert {first["user_message_id"], first["assistant_message_id"]} <= {each["id"] for each in messages}
    assert second["assistant_message_id"] == messages[-1]["id"]
    assert upstream.requests == []
    other = await get(server, f"/{session}/context?wire=anthropic_messages")
    assert other["system"] == "Be brief."
    assert [each["role"] for each in other["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


async def test_a_turn_is_recorded_once_for_each_key(server: WholeServer) -> None:
    session = await begin(server)
    told = {"user": "hello", "assistant": "hi"}
    both = await asyncio.gather(*(post(server, f"/{session}/record", told, "k1") for _ in range(2)))
    assert sorted(status for status, _ in both) in ([200, 201], [201, 409])
    first = next(result for status, result in both if status == 201)
    await post(server, f"/{session}/record", {"user": "more", "assistant": "yes"}, "k2")
    status, again = await post(server, f"/{session}/record", told, "k1")
    assert (status, again["user_message_id"], again["assistant_message_id"]) == (
        200, first["user_message_id"], first["assistant_message_id"],
    )  # fmt: skip
    assert len((await get(server, f"/{session}/context"))["messages"]) == 4
    assert (await post(server, f"/{session}/record", {"user": "hello", "assistant": "no"}, "k1"))[0] == 400


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"user": "", "assistant": "hi"}, "begins with a message"),
        ({"user": "a", "assistant": ""}, "ends with an answer"),
        ({"user": "a", "assistant": LISTED[:2]}, "ends with an answer"),
        ({"user": "a", "assistant": {"role": "assistant", "content": ""}}, "says something"),
        ({"user": "a", "assistant": [{"role": "clown", "content": "x"}, LISTED[2]]}, "roles"),
        ({"user": "a", "assistant": [LISTED[0], LISTED[2]]}, "'c1'"),
        ({"user": [LISTED[1]], "assistant": "hi"}, "'c1'"),
        ({"user": "a"}, "assistant"),
        ({"user": "a", "assistant": "b", "tokens": {"input": "many"}}, "tokens"),
    ],
)
async def test_a_turn_that_does_not_fit_is_refused_and_leaves_no_trace(
    server: WholeServer, turn: Any, words: str
) -> None:
    session = await begin(server)
    await post(server, f"/{session}/record", {"user": "hello", "assistant": "hi"})
    status, told = await post(server, f"/{session}/record", turn)
    assert status == 400 and words in told["error"]["message"], told
    assert len((await get(server, f"/{session}/context"))["messages"]) == 2


async def test_an_answer_that_calls_tools_is_followed_by_their_results(server: WholeServer) -> None:
    session = await begin(server)
    status, _ = await post(server, f"/{session}/record", {"user": "list", "assistant": LISTED[0]})
    assert status == 201
    assert (await post(server, f"/{session}/record", {"user": "and?", "assistant": "hi"}))[0] == 400
    status, _ = await post(server, f"/{session}/record", {"user": LISTED[1], "assistant": LISTED[2]["content"]})
    assert status == 201
    assert (await get(server, f"/{session}/context"))["messages"][1:] == LISTED


async def test_unknown_and_erased_sessions_record_nothing(server: WholeServer) -> None:
    told = {"user": "hello", "assistant": "hi"}
    assert (await post(server, "/nobody/record", told))[0] == 404
    session = await begin(server)
    await post(server, f"/{session}/record", told)
    assert (await server.client.delete(f"{SESSIONS}/{session}")).status_code == 200
    assert (await post(server, f"/{session}/record", told))[0] == 410


async def test_nothing_was_spent_and_nothing_saved_by_what_was_made_elsewhere(server: WholeServer) -> None:
    session = await begin(server, name="told")
    tokens = {"input": 1000, "output": 50}
    for word in ("a", "b"):
        await post(server, f"/{session}/record", {"user": word, "assistant": word, "tokens": tokens})
    got = await server.client.post(
        CHAT,
        content=json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "called"}]}).encode(),
        headers={"authorization": "Bearer k", "x-palimpsest-session": "called"},
    )
    assert got.status_code == 200
    calls = (await get(server, f"/{session}/exchanges"))["items"]
    assert [each["kind"] for each in calls] == ["recorded"] * 3
    assert [each["rounds"][0]["usage"] and each["rounds"][0]["usage"]["input"] for each in calls] == [None, 1000, 1000]
    listed = {each["name"]: each for each in (await get(server, ""))["items"]}
    assert (listed["told"]["spent"]["tokens"], listed["told"]["saved"]) == (0, None)
    assert listed["called"]["spent"]["tokens"] > 0
