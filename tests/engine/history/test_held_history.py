import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.engine.history.held import LOG_SECONDS
from proxy.engine.recorded.lookup import load_part
from proxy.model.errors import (
    BadRequest,
    Conflict,
    Erased,
    NotFound,
    StoreUnavailable,
    TooLarge,
    Unproven,
    UpstreamUnreachable,
)
from proxy.model.exchange import ClientRequest, ReceivedCall
from proxy.model.log import ArchiveHealth
from tests.store.samples import make_outcome
from tests.support.engine import JSON, RecordingClient, ScriptedResponse, wait_out
from tests.support.holding import WIRES, HeldClient, Wire, answer, result, user
from tests.support.loops import put_forward

Open = Callable[..., Awaitable[HeldClient]]


@pytest.fixture
async def open_client() -> AsyncIterator[Open]:
    opened: list[HeldClient] = []

    async def make(wire: Wire = "chat_completions", **options: Any) -> HeldClient:
        opened.append(HeldClient(wire, **options))
        return opened[-1]

    yield make
    for each in opened:
        await each.close()


FULL = ArchiveHealth("full", 1, 1, 0, 0)


def expect(client: RecordingClient, kind: type[Exception], *words: str) -> None:
    """The call was refused, in these words, and nothing was sent."""
    assert isinstance(client.error, kind), client.error
    assert [word for word in words if word not in str(client.error)] == []


@pytest.mark.parametrize("wire", WIRES)
async def test_each_call_brings_what_is_new_and_the_upstream_gets_all(open_client: Open, wire: Wire) -> None:
    held = await open_client(wire)
    held.upstream.reply(answer(wire, "hello"))
    assert (await held.call([user("a")], history="new", temperature=0)).status == 200
    assert held.words == ["a"]
    held.upstream.reply(answer(wire, "", "call_1"))
    await held.call([user("b")], temperature=1)
    assert held.words == ["a", "hello", "b"]
    assert held.upstream.sent["temperature"] == 1
    await held.call([result(wire, "call_1", "files")])
    assert held.words == ["a", "hello", "b", "call_1", "files"]


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_log_has_what_the_client_sent_and_what_was_sent(
    open_client: Open, wire: Wire, is_stopped: bool
) -> None:
    held = await open_client(wire)
    await held.call([user("a")], history="new", n=1)
    if is_stopped:
        await held.reopen()
    await held.call([user("b")], n=2)
    session = await held.find_session()
    first, second = await held.log.list_exchanges(session)
    own = json.loads(await held.log.load_held(second.id))
    assert own == {"model": "m", held.form.items_key: [user("b")], "n": 2}
    assert json.loads(await load_part(held.log, second, "held")) == own
    assert (
        await held.log.load_request(second.id) == await held.log.load_sent(second.id, 0) == held.upstream.calls[1].body
    )
    assert [(row.exchange, row.history) for row in await held.log.list_held(session)] == [
        (second.id, "server"), (first.id, "new"),
    ]  # fmt: skip
    assert (second.base, second.depth, second.relation) == (2, 3, "append")
    assert held.words == ["a", "word 1", "b"]


@pytest.mark.parametrize("wire", WIRES)
async def test_after_a_restart_the_path_is_that_of_the_log(open_client: Open, wire: Wire) -> None:
    held = await open_client(wire)
    await held.call([user("a")], history="new")
    held.upstream.reply(answer(wire, "look", "call_1", "call_2"))
    await held.call([user("b")])
    await held.reopen()
    expect(await held.call([user("c")]), BadRequest, "'call_1', 'call_2'")
    await held.call([result(wire, "call_1", "x"), result(wire, "call_2", "y")])
    assert held.words[:3] == ["a", "word 1", "b"]
    assert held.words[-2:] == ["x", "y"]
    session = await held.find_session()
    assert [row.relation for row in await held.log.list_exchanges(session)] == ["root", "append", "append"]


async def test_a_call_that_fails_leaves_no_trace_and_the_next_replaces_it(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    for refusal in (answer("chat_completions"), {"error": {"message": "busy"}}):
        held.upstream.reply(refusal, 500)
        assert (await held.call([user("lost")])).status == 500
    held.upstream.queue.append(UpstreamUnreachable("no way"))
    expect(await held.call([user("lost")]), UpstreamUnreachable)
    held.upstream.stream(b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n', ending="cut")
    assert (await held.call([user("lost")], stream=True)).is_aborted
    held.upstream.stream(b'data: {"error":{"message":"overloaded"}}\n\ndata: [DONE]\n\n')
    await held.call([user("lost")], stream=True)
    await held.call([user("b")])
    assert held.words == ["a", "word 1", "b"]
    await held.reopen()
    await held.call([user("c")])
    assert held.words == ["a", "word 1", "b", "word 2", "c"]


async def test_a_first_call_that_fails_begins_nothing(open_client: Open) -> None:
    held = await open_client()
    held.upstream.reply({"error": {"message": "busy"}}, 500)
    await held.call([user("a")], history="new")
    expect(await held.call([user("a")]), NotFound, "'tick'", "new begins it")
    await held.reopen()
    expect(await held.call([user("a")]), NotFound, "'tick'")
    assert (await held.call([user("again")], history="new")).status == 200
    assert held.words == ["again"]


async def test_a_stream_is_an_answer_too(open_client: Open) -> None:
    held = await open_client()
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}%b}]}\n\n'
    held.upstream.stream(chunk % (b"one ", b""), chunk % (b"two", b',"finish_reason":"stop"'), b"data: [DONE]\n\n")
    client = await held.call([user("a")], history="new", stream=True)
    assert client.body.endswith(b"[DONE]\n\n")
    await held.call([user("b")])
    assert held.words == ["a", "one two", "b"]
    await held.reopen()
    await held.call([user("c")])
    assert held.words == ["a", "one two", "b", "word 1", "c"]


async def test_an_answer_without_a_word_adds_nothing_and_keeps_what_was_asked(open_client: Open) -> None:
    held = await open_client()
    held.upstream.reply(answer("chat_completions", " "))
    await held.call([user("a")], history="new")
    await held.call([user("b")])
    assert held.words == ["a", "b"]


async def test_a_name_is_taken_once(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    expect(await held.call([user("b")], history="new"), Conflict, "'tick'", "server goes on")
    await held.call([user("b")], history="new", session="other")
    assert (held.words, len(held.upstream.calls)) == (["b"], 2)


async def test_histories_of_other_tenants_are_not_there(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    other = (b"authorization", b"Bearer sk-2")
    expect(await held.call([user("b")], other), NotFound, "for this credential")
    assert (await held.call([user("b")], other, history="new")).status == 200
    assert held.words == ["b"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([result("chat_completions", "call_9")], ["'call_9'"]),
        ([user("a"), result("chat_completions", "call_9")], ["'call_9'"]),
        ([], ["begins with a message"]),
        ([{"role": "system", "content": "s"}], ["begins with a message"]),
        ("text", ["cannot be read"]),
        ([answer("chat_completions", "", "c")["choices"][0]["message"]], ["'c'"]),
    ],
)
async def test_what_cannot_begin_a_history_is_refused(open_client: Open, messages: Any, words: list[str]) -> None:
    held = await open_client()
    expect(await held.call(messages, history="new"), BadRequest, *words)
    assert held.upstream.calls == []


async def test_results_come_first_and_only_for_calls_that_wait(open_client: Open) -> None:
    held = await open_client()
    calls = [f"c{number}" for number in range(10)]
    held.upstream.reply(answer("chat_completions", "", *calls))
    await held.call([user("a")], history="new")
    results = [result("chat_completions", call) for call in calls]
    expect(await held.call([user("b")]), BadRequest, "'c7' and 2 more")
    expect(await held.call([*results[:9], user("b")]), BadRequest, "'c9'")
    expect(await held.call(results[1:]), BadRequest, "'c0'")
    expect(await held.call([*results, results[0]]), BadRequest, "'c0'")
    expect(await held.call([]), BadRequest, "'c0'")
    assert (await held.call([*results, user("b")])).status == 200


@pytest.mark.parametrize("member", ["previous_response_id", "conversation"])
async def test_a_provider_cannot_hold_the_history_too(open_client: Open, member: str) -> None:
    held = await open_client("responses")
    expect(await held.call([user("a")], history="new", **{member: "r"}), BadRequest, member)
    unset: dict[str, Any] = {member: None}
    assert (await held.call("a", history="new", **unset)).status == 200
    assert held.words == ["a"]


async def test_a_request_for_a_compaction_or_in_another_format_has_no_history(open_client: Open) -> None:
    held = await open_client("responses")
    expect(await held.call([{"type": "compaction_trigger"}], history="new"), BadRequest, "compaction")
    await held.call([user("a")], history="new")
    held.wire = "chat_completions"
    held.form = type(held)("chat_completions").form
    expect(await held.call([user("b")]), BadRequest, "in the format responses")


@pytest.mark.parametrize("name", ["", "x"])
async def test_without_a_session_or_a_known_word_there_is_no_history(open_client: Open, name: str) -> None:
    held = await open_client()
    history = "new" if not name else "mine"
    expect(await held.call([user("a")], history=history, session=name), BadRequest, "x-palimpsest-")
    assert held.upstream.calls == []


async def test_a_body_that_is_no_object_or_too_large_to_be_kept_is_refused(open_client: Open) -> None:
    held = await open_client()
    expect(await held.call([user("a" * (9 << 20))], history="new"), TooLarge, "store.record_cap_bytes")
    held.form = type("Odd", (), {"items_key": "messages"})  # type: ignore[assignment]
    expect(await held.call([user("a")], history="server"), NotFound)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_system_message_replaces_the_stored_one_from_there_on(open_client: Open, wire: Wire) -> None:
    held = await open_client(wire)
    key = held.form.instructions_key

    async def ask(system: str, text: str, history: str = "server") -> tuple[str, list[str]]:
        told = [] if key or not system else [{"role": "system", "content": system}]
        await held.call([*told, user(text)], history=history, **({key: system} if key and system else {}))
        words = held.words
        return (held.upstream.sent[key], words) if key else (words[0], words[1:])

    assert await ask("one", "a", "new") == ("one", ["a"])
    assert await ask("", "b") == ("one", ["a", "word 1", "b"])
    assert await ask("two", "c") == ("two", ["a", "word 1", "b", "word 2", "c"])
    await held.reopen()
    assert await ask("", "d") == ("two", ["a", "word 1", "b", "word 2", "c", "word 3", "d"])
    assert await ask("two", "e") == ("two", ["a", "word 1", "b", "word 2", "c", "word 3", "d", "word 4", "e"])


async def test_a_key_appends_nothing_twice(open_client: Open) -> None:
    held = await open_client()
    key = (b"idempotency-key", b"k1")
    await held.call([user("a")], history="new")
    for number in range(3):
        assert (await held.call([user("b")], key)).body.count(f"word {number + 2}".encode()) == 1
        assert held.words == ["a", "word 1", "b"]
        if number == 1:
            await held.reopen()
    expect(await held.call([user("other")], key), BadRequest, "other messages")
    await held.call([user("c")])
    assert held.words == ["a", "word 1", "b", "word 4", "c"]
    expect(await held.call([user("b")], key), Conflict, "gone on")
    await held.reopen()
    expect(await held.call([user("b")], key), Conflict, "gone on")


async def test_a_first_call_is_sent_again_under_its_key(open_client: Open) -> None:
    held = await open_client()
    key = (b"idempotency-key", b"k1")
    for number in (1, 2):
        assert f"word {number}".encode() in (await held.call([user("a")], key, history="new")).body
        assert held.words == ["a"]
    expect(await held.call([user("a")], (b"idempotency-key", b"k2"), history="new"), Conflict, "already")


def make_token(subject: str, number: int) -> tuple[bytes, bytes]:
    """The credential of a person, one of several."""
    parts = [{"alg": "none"}, {"iss": "me", "sub": subject, "aud": "it", "n": number}]
    coded = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts]
    return b"authorization", b"Bearer %b.%b.c2ln" % tuple(coded)


async def test_a_credential_that_only_claims_its_tenant_has_to_be_accepted_first(open_client: Open) -> None:
    held = await open_client()
    first, second = make_token("ann", 1), make_token("ann", 2)
    assert (await held.call([user("a")], first, history="new")).status == 200
    assert (await held.call([user("b")], first)).status == 200
    for history in ("server", "new"):
        expect(await held.call([user("c")], second, history=history), Unproven, "not accepted")
    assert (await held.call([user("hello")], second, history="", session="other")).status == 200
    assert (await held.call([user("c")], second)).status == 200
    assert held.words == ["a", "word 1", "b", "word 2", "c"]


async def test_a_long_history_is_read_again_as_a_whole(open_client: Open) -> None:
    held = await open_client()
    many = [user("a"), *[{"role": "assistant", "content": "x"}] * 10_001]
    await held.call(many, history="new")
    await held.call(many)
    await held.reopen()
    assert (await held.call([user("b")])).status == 200
    assert len(held.items) == 20_007


async def test_after_a_loss_the_log_gets_all_again(open_client: Open) -> None:
    held = await open_client()
    tools = [{"type": "function", "function": {"name": "f" * 600, "parameters": {}}}]
    await held.call([user("a")], history="new", tools=tools)
    await held.call([user("b")], tools=tools)
    await held.log.append(make_outcome("nobody"))
    await held.log.list_sessions()  # behind which it is known that this was lost
    held.lost = 1
    await held.call([user("c")], tools=tools)
    assert [len(record.body.blobs) for record in held.log.of(ReceivedCall)] == [1, 0, 1]
    assert held.words == ["a", "word 1", "b", "word 2", "c"]


async def test_a_key_of_a_call_that_failed_is_free(open_client: Open) -> None:
    held = await open_client()
    key = (b"idempotency-key", b"k1")
    await held.call([user("a")], history="new")
    held.upstream.reply({"error": {"message": "busy"}}, 500)
    await held.call([user("b")], key)
    await held.reopen()
    await held.call([user("b")], key)
    assert held.words == ["a", "word 1", "b"]


async def test_one_call_at_a_time(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
    stream = held.upstream.stream(begun, ending="open")
    first, client = held.begin([user("b")], stream=True)
    await client.wait_for_body(1)
    expect(await held.call([user("c")]), Conflict, "under way")
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    stream.feed(end)
    await client.wait_for_body(len(begun) + len(end))
    waiting, later = held.begin([user("c")])  # it has its answer, though its stream is still open
    stream.feed(ending="eof")
    await first
    await waiting
    assert later.status == 200
    assert held.words == ["a", "word 1", "b", "hi", "c"]


async def test_markers_of_earlier_calls_do_not_pile_up(open_client: Open) -> None:
    held = await open_client("anthropic_messages")
    marker = {"cache_control": {"type": "ephemeral"}}
    for number in range(6):
        part = {"type": "text", "text": f"t{number}", **marker}
        await held.call([{"role": "user", "content": [part]}], history="server" if number else "new", max_tokens=5)
    body = held.upstream.calls[-1].body
    assert isinstance(body, bytes)
    assert body.count(b"cache_control") == 1
    assert body.index(b"cache_control") > body.index(b"t5")


async def test_reasoning_that_nobody_could_read_is_left_out(open_client: Open) -> None:
    held = await open_client("responses")
    reply = answer("responses", "hi")
    reply["output"].insert(0, {"type": "reasoning", "id": "rs_1", "summary": []})
    for store, kinds in ((True, ["message", "reasoning", "message", "message"]), (False, ["message"] * 3)):
        name = f"s{store}"
        held.upstream.reply(reply)
        await held.call([user("a")], history="new", session=name, store=store)
        await held.call([user("b")], session=name, store=store)
        assert [each.get("type", "message") for each in held.items] == kinds
        assert ("id" in held.items[-2]) is store


async def test_a_log_that_cannot_take_what_is_new_refuses(open_client: Open) -> None:
    held = await open_client()
    held.engine.archive.health = FULL
    expect(await held.call([user("a")], history="new"), StoreUnavailable, "full")
    assert held.upstream.calls == []


async def test_records_of_a_held_call_come_with_its_opening(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], (b"idempotency-key", b"k"), history="new")
    (record,) = held.log.of(ReceivedCall)
    assert isinstance(record, ReceivedCall)
    assert (record.exchange, record.history, record.key) == ("x1", "new", "k")


TOOLS = {
    "chat_completions": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
    "responses": [{"type": "function", "name": "ls", "parameters": {"type": "object"}}],
    "anthropic_messages": [{"name": "ls", "input_schema": {"type": "object"}}],
}


def recall(wire: Wire) -> Any:
    """A response in which a model says a word and calls our tool."""
    reply = json.dumps(answer(wire, "let me see", "call_r")).replace('"ls"', '"context_recall"')
    return json.loads(reply)


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_in_which_the_model_recalled_goes_on_as_the_client_has_it(
    open_client: Open, wire: Wire, is_stopped: bool
) -> None:
    async def run(*_: object) -> str:
        return "a page of what was"

    held = await open_client(wire, ceiling=1500, run=run)
    tools, brought = TOOLS[wire], [user("do it")]
    for step in range(60):
        held.upstream.reply(answer(wire, f"step {step}", f"call_{step}"))
        await held.call(brought, history="server" if step else "new", tools=tools)
        brought = [result(wire, f"call_{step}")]
    await held.call(brought, tools=tools)
    assert "context_recall" in json.dumps(held.upstream.sent["tools"])
    held.upstream.reply(recall(wire))
    held.upstream.reply(answer(wire, "it was so"))
    client = await held.call([user("what was it?")], tools=tools)
    assert (b"it was so" in client.body, b"context_recall" in client.body) == (True, False)
    if is_stopped:
        await held.reopen()
    await held.call([user("thanks")], tools=tools)
    said = " | ".join(held.words[-6:])
    assert said.index("let me see") < said.index("a page of what was") < said.index("it was so") < said.index("thanks")
    session = await held.find_session()
    rows = await held.log.list_exchanges(session)
    assert {row.relation for row in rows} == {"root", "append"}
    stored = json.loads(await held.log.load_request(rows[-1].id))[held.form.items_key]
    assert "context_recall" not in json.dumps(stored)
    assert rows[-1].depth == len(stored)


async def test_no_held_call_is_a_side_call(open_client: Open) -> None:
    held = await open_client()
    await held.call([{"role": "system", "content": "s"}, user("a")], history="new", tools=TOOLS["chat_completions"])
    await held.call([{"role": "system", "content": "title?"}, user("b")], max_tokens=5)
    await held.reopen()
    await held.call([user("c")])
    assert held.words == ["title?", "a", "word 1", "b", "word 2", "c"]
    rows = await held.log.list_exchanges(await held.find_session())
    assert [row.is_side for row in rows] == [False] * 3


@pytest.mark.parametrize(
    ("error", "kind"), [(Erased("it was erased", "s"), Erased), (StoreUnavailable("no disk"), StoreUnavailable)]
)
async def test_what_was_erased_or_cannot_be_read_goes_nowhere(
    open_client: Open, error: Exception, kind: type[Exception]
) -> None:
    async def fail(_: str) -> bytes:
        raise error

    held = await open_client()
    await held.call([user("a")], history="new")
    await held.reopen()
    held.log.load_request = fail
    expect(await held.call([user("b")]), kind, str(error))
    expect(await held.call([user("b")], history="new"), Conflict if kind is Erased else kind, str(error))
    assert len(held.upstream.calls) == 1


async def test_a_log_that_says_nothing_in_time_is_not_waited_for(open_client: Open) -> None:
    asked = asyncio.Event()

    async def hang(_: str) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    held = await open_client()
    await held.call([user("a")], history="new")
    await held.reopen()
    held.log.load_request = hang
    task, client = held.begin([user("b")])
    await asked.wait()
    await put_forward(LOG_SECONDS)
    await wait_out(task)
    expect(client, StoreUnavailable, "in time")


@pytest.mark.parametrize("coding", ["", "gzip", "rot13"])
async def test_long_and_compressed_answers_are_read(open_client: Open, coding: str) -> None:
    held = await open_client()
    content = json.dumps(answer("chat_completions", "long " * 20_000)).encode()
    headers = (*JSON, (b"content-encoding", coding.encode())) if coding else JSON
    body = gzip.compress(content) if coding == "gzip" else content
    held.upstream.queue.append(ScriptedResponse(body, headers=headers, ending="whole"))
    await held.call([user("a")], history="new")
    again = await held.call([user("b")])
    if coding == "rot13":
        expect(again, NotFound, "no complete answer")
    else:
        assert [word[:9] for word in held.words] == ["a", "long long", "b"]


async def test_a_body_that_cannot_be_read_has_no_history(open_client: Open) -> None:
    held = await open_client()
    client = RecordingClient()
    headers = ((b"x-palimpsest-session", b"s"), (b"x-palimpsest-history", b"new"))
    request = ClientRequest("POST", b"/v1/chat/completions", headers, gzip.compress(b"{}"))
    await wait_out(held.engine.begin(request, held.wire, client))
    expect(client, BadRequest, "can be read: a JSON object")


async def test_other_paths_have_no_history(open_client: Open) -> None:
    held = await open_client()
    headers = ((b"x-palimpsest-session", b"s"), (b"x-palimpsest-history", b"server"))
    request = ClientRequest("POST", b"/v1/messages/count_tokens", headers, b"{}")
    await wait_out(held.engine.begin_count(request, held.wire, first := RecordingClient()))
    await wait_out(held.engine.begin_stream(request, None, second := RecordingClient()))
    for client in (first, second):
        expect(client, BadRequest, "not for this path or mode")
    assert held.upstream.calls == []


async def test_a_client_that_leaves_makes_room_for_the_next(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    held.upstream.stream(b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n', ending="open")
    task, client = held.begin([user("lost")], stream=True)
    await client.wait_for_body(1)
    task.cancel()
    await wait_out(task)
    assert (await held.call([user("b")])).status == 200
    assert held.words == ["a", "word 1", "b"]


async def test_a_history_goes_on_from_what_its_client_sent_whole(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    await held.call([user("b")])
    said = {"role": "assistant", "content": "word 1"}
    await held.call([user("a"), said, user("edited")], history="")
    await held.call([user("c")])
    assert held.words == ["a", "word 1", "edited", "word 3", "c"]
    rows = await held.log.list_exchanges(await held.find_session())
    assert [row.relation for row in rows] == ["root", "append", "branch", "append"]


async def test_an_answer_that_was_complete_counts_though_its_client_left(open_client: Open) -> None:
    held = await open_client()
    await held.call([user("a")], history="new")
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    held.upstream.stream(chunk, ending="open")
    task, client = held.begin([user("b")], stream=True)
    await client.wait_for_body(len(chunk))
    task.cancel()
    await wait_out(task)
    await held.call([user("c")])
    assert held.words == ["a", "word 1", "b", "hi", "c"]
