"""The API under `/-/api`, over sockets: a conversation is carried by the server, and read back from its log."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from proxy.engine.ports import ALL_SESSIONS, Archive
from proxy.model.epoch import Plan as Decided
from proxy.model.errors import NotFound
from proxy.model.events import SessionsErased
from proxy.model.exchange import Opening, Outcome, Usage
from proxy.model.log import BranchRow, ExchangeRow, Record, Selection, SessionRow
from proxy.server.access import make_cookie
from proxy.server.api.sessions import SessionsApi
from tests.store.samples import make_key, make_opening, make_outcome, make_reading, make_round
from tests.support.engine import Commit, FakeArchive
from tests.support.kept_log import KeptLog
from tests.support.scripted import Message, ScriptedUpstream, Wire, answer, request
from tests.support.serving import TOKEN, Plan, Served, serving

BEARER = f"Authorization: Bearer {TOKEN}"
API = "/-/api/sessions"
TURN = {"role": "user", "content": "hé <script>"}
TRICKS = ("%2e", "%2e%2e", "..", "%2e%2e%2f", "%00", "%ff", "%", "x" * 10_000, "*", "' OR 1=1")


class ReadableArchive(FakeArchive):
    """What the server records, to be read back; what is `erased` is missing."""

    def __init__(self) -> None:
        super().__init__(is_instant=True)
        self.memory = cast(Archive, KeptLog())
        self.erased: set[str] = set()

    def append(self, *records: Record, is_urgent: bool = True) -> Commit:
        assert self.memory.append(*records).result()
        return super().append(*records, is_urgent=is_urgent)  # type: ignore[return-value]

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        return await self.memory.list_sessions(limit, selection)

    async def find_session(self, session: str) -> SessionRow:
        return await self.memory.find_session(session)

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        return await self.memory.list_ids(prefix, limit)

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        return await self.memory.list_exchanges(session, after, limit)

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        return await self.memory.list_calls(session, after, limit)

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        return await self.memory.list_branches(session)

    async def load_request(self, exchange: str) -> bytes:
        self._check(exchange)
        return await self.memory.load_request(exchange)

    async def load_sent(self, exchange: str, k: int) -> bytes:
        self._check(exchange)
        return await self.memory.load_sent(exchange, k)

    async def load_received(self, exchange: str, k: int) -> bytes:
        self._check(exchange)
        return await self.memory.load_received(exchange, k)

    def _check(self, exchange: str) -> None:
        if exchange in self.erased:
            raise NotFound("this content was erased")


def turn(*messages: dict[str, str]) -> bytes:
    """A chat request."""
    return request(
        "POST", "/v1/chat/completions", "x-palimpsest-session: talk", body=json.dumps({"messages": messages}).encode()
    )


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def archive() -> ReadableArchive:
    return ReadableArchive()


@pytest.fixture
async def talk(plan: Plan, upstream: ScriptedUpstream, archive: ReadableArchive) -> AsyncIterator[Served]:
    """A server that has carried two turns, the second one edited and gone on with, and a call of another kind."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    said = [json.dumps({"choices": [{"message": say(str(n))}], "usage": usage}).encode() for n in range(1, 5)]
    answers = iter([*(answer(content, "Content-Type: text/html") for content in said), answer(b"\xff")])

    async def play(wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                upstream.requests.append(await wire.read_request())
                wire.send(next(answers))

    upstream.script = play
    edited = (TURN, say("1"), say("?"))
    async with serving(plan, archive) as served:
        for number, messages in enumerate(((TURN,), (TURN, say("1"), TURN), edited, (*edited, say("3"), TURN)), 1):
            assert (await served.ask(turn(*messages))).status == 200
            await served.read_answer(number)
        await served.ask(request("PUT", "/v1/files", "x-palimpsest-session: talk", body=b"\xfe"))
        await archive.wait_for(Outcome, 5)
        yield served


async def get(served: Served, path: str = "", method: str = "GET") -> Message:
    """The answer to a request with the token; it can never be shown as a page."""
    got = await served.ask(request(method, API + path, BEARER))
    assert got.find(b"x-content-type-options") == b"nosniff"
    assert got.find(b"content-security-policy") == b"default-src 'none'; sandbox"
    assert got.find(b"cache-control") == b"no-store"
    assert not got.find(b"content-type").startswith(b"text/html")
    return got


async def load(served: Served, path: str = "") -> Any:
    got = await get(served, path)
    assert (got.status, got.find(b"content-type")) == (200, b"application/json"), got.body
    document = json.loads(got.body)
    return document["items"] if isinstance(document, dict) and "items" in document else document


async def load_pages(served: Served, path: str, size: int) -> list[Any]:
    """All items of a listing, in pages of this size."""
    found, cursor = [], ""
    separator = "&" if "?" in path else "?"
    while True:
        page = json.loads((await get(served, f"{path}{separator}limit={size}&cursor={cursor}")).body)
        assert len(page["items"]) <= size
        found += page["items"]
        if page["next"] is None:
            return found
        cursor = page["next"]


async def refuse(served: Served, path: str) -> tuple[int, str, str]:
    """Status, code and message of an error."""
    got = await get(served, path)
    error = json.loads(got.body)["error"]
    return got.status, error["code"], error["message"]


def id_of(archive: ReadableArchive) -> str:
    return archive.of(Opening)[0].session.id


async def test_sessions_are_listed(talk: Served, archive: ReadableArchive) -> None:
    (row,) = await load(talk)
    expected = {"id": id_of(archive), "family": "talk", "upstream": "scripted", "parent": "", "adopted": ""}
    assert expected.items() <= row.items()
    told = tuple(row[name] for name in ("calls", "branches", "side", "sent_tokens", "output_tokens", "errors"))
    assert told == (5, 2, 0, 28, 8, 0)
    assert (row["title"], row["name"], row["client"], row["status"]) == ("hé <script>", "talk", "", "live")
    assert row["created_ms"] <= row["last_ms"]


async def test_sessions_are_filtered(talk: Served) -> None:
    assert len(await load(talk, "?family=ta&limit=1")) == 1
    assert await load(talk, "?family=x") == []
    assert await load(talk, "?parent=x") == []


async def test_sessions_are_found_by_what_their_summaries_say(talk: Served, archive: ReadableArchive) -> None:
    first = archive.of(Opening)[0]
    for name, model in (("one", "gpt-a"), ("two", "gpt-b"), ("three", "Gpt-A2")):
        archive.append(replace(first, exchange=name, session=replace(first.session, id=name, family=name), model=model))
    assert [row["id"] for row in await load(talk, "?model=gpt-a")] == ["three", "one"]
    assert [row["id"] for row in await load(talk, "?q=GPT%20on")] == ["one"]
    assert await load(talk, "?q=nothing") == await load(talk, "?client=nobody") == []
    live, idle = await load(talk, "?status=live"), await load(talk, "?status=idle")
    assert {row["status"] for row in live} <= {"live"}
    assert len(live) + len(idle) == 4
    for size in (1, 2):
        assert [row["id"] for row in await load_pages(talk, "?model=gpt-a", size)] == ["three", "one"]


async def test_a_listing_goes_on_behind_its_last_session(talk: Served, archive: ReadableArchive) -> None:
    for name in ("one", "two"):
        key = replace(archive.of(Opening)[0].session, id=name, family=name)
        archive.append(replace(archive.of(Opening)[0], exchange=name, session=key))
    rows = await load(talk)
    assert [row["family"] for row in rows] == ["two", "one", "talk"]
    for size in (1, 2, 3, 4):
        assert await load_pages(talk, "", size) == rows
    assert await load_pages(talk, "?family=t", 1) == [rows[0], rows[2]]
    page = json.loads((await get(talk, "?limit=1")).body)
    archive.append(replace(archive.of(Opening)[0], exchange="more", session=replace(key, id="more", family="more")))
    assert await load(talk, f"?cursor={page['next']}") == rows[1:]  # a session that comes meanwhile moves nothing


async def test_a_session_has_its_tree(talk: Served, archive: ReadableArchive) -> None:
    for prefix in (id_of(archive), id_of(archive)[:4]):
        shown = await load(talk, f"/{prefix}")
        assert (shown["session"]["id"], shown["children"]) == (id_of(archive), [])
        assert [(b["depth"], b["relation"], b["after"], b["exchanges"]) for b in shown["branches"]] == [
            (3, "root", 0, [1, 2]),
            (5, "branch", 1, [1, 3, 4]),
        ]
        assert shown["branches"][1]["left"]


async def test_exchanges_are_listed_without_bodies(talk: Served, archive: ReadableArchive) -> None:
    rows = await load(talk, f"/{id_of(archive)}/exchanges")
    assert [(row["n"], row["relation"], row["depth"], row["base"]) for row in rows] == [
        *((1, "root", 1, 0), (2, "append", 3, 2), (3, "branch", 3, 2), (4, "append", 5, 4), (5, "", 0, 0)),
    ]
    assert not {"request", "headers"} & set(rows[0])
    (round_,) = rows[0]["rounds"]
    assert (round_["status"], round_["completeness"], round_["usage"]["input"]) == (200, "complete", 7)
    assert "timings" in round_ and "finish" in round_ and "answer" not in round_
    assert [row["n"] for row in await load(talk, f"/{id_of(archive)}/exchanges?after=2&limit=2")] == [3, 4]
    for size in (1, 2, 5, 9):
        assert await load_pages(talk, f"/{id_of(archive)}/exchanges", size) == rows


async def test_an_exchange_has_its_body_as_it_came(talk: Served, archive: ReadableArchive) -> None:
    one = await load(talk, f"/{id_of(archive)}/exchanges/1")
    assert (one["request"], one["rounds"][0]["answer"]["choices"][0]["message"]["content"]) == (
        {"messages": [TURN]},
        "1",
    )
    assert ["content-type", "text/html"] in one["rounds"][0]["headers"]
    assert (await load(talk, f"/{id_of(archive)}/exchanges/5"))["request_base64"] == "/g=="


async def test_raw_bodies_are_bytes_and_nothing_else(talk: Served, archive: ReadableArchive) -> None:
    sent = json.dumps({"messages": [TURN]}).encode()
    for path, content in (("1/sent", sent), ("1/sent?k=0", sent), ("5/sent", b"\xfe"), ("5/received?k=0", b"\xff")):
        got = await get(talk, f"/{id_of(archive)}/exchanges/{path}")
        assert (got.status, got.body, got.find(b"content-type")) == (200, content, b"application/octet-stream")


@pytest.mark.parametrize(
    ("query", "media"),
    [
        ("", b"application/json"),
        ("?form=json", b"application/json"),
        ("?form=jsonl", b"application/x-ndjson"),
        ("?form=openai", b"application/json"),
    ],
)
async def test_a_session_is_exported(talk: Served, archive: ReadableArchive, query: str, media: bytes) -> None:
    got = await get(talk, f"/{id_of(archive)}/export{query}")
    assert (got.status, got.find(b"content-type")) == (200, media)
    if query == "?form=jsonl":
        assert [json.loads(line)["n"] for line in got.body.splitlines()] == [1, 2, 3, 4, 5]
    elif query == "?form=openai":
        assert [m["content"] for m in json.loads(got.body)] == [TURN["content"], "1", "?", "3", TURN["content"], "4"]
    else:
        assert [row["n"] for row in json.loads(got.body)["exchanges"]] == [1, 2, 3, 4, 5]


async def test_a_branch_is_exported(talk: Served, archive: ReadableArchive) -> None:
    shown = await load(talk, f"/{id_of(archive)}")
    tip = shown["branches"][0]["tip"][:9]
    messages = await load(talk, f"/{id_of(archive)}/export?form=openai&branch={tip}")
    assert [m["content"] for m in messages] == [TURN["content"], "1", TURN["content"], "2"]
    document = await load(talk, f"/{id_of(archive)}/export?branch={tip}")
    assert [row["n"] for row in document["exchanges"]] == [1, 2]


async def test_errors_say_what_to_do(talk: Served, archive: ReadableArchive) -> None:
    for path, status, told in [
        ("?limit=0", 400, "limit is 1 to 1000, not 0"),
        ("?limit=1001", 400, "limit is 1 to 1000"),
        ("?limit=-1", 400, "limit is a number from 0 to 999999999, not '-1'"),
        ("?limit=" + "9" * 5000, 400, "limit is a number"),
        ("?limit=%C2%B2", 400, "limit is a number"),
        ("?cursor=x", 400, "cursor is what `next` of the page before says, not 'x'"),
        (
            "?famly=x",
            400,
            "'famly' is not known here; this path takes: client, cursor, family, limit",
        ),
        ("/{id}?limit=1", 400, "this path takes: none"),
        ("/{id}/exchanges?after=-1", 400, "after is a number"),
        ("/{id}/exchanges?limit=1001", 400, "limit is 1 to 1000"),
        ("/{id}/exchanges/9", 404, "no exchange 9; it has 5, counted from 1"),
        ("/{id}/exchanges/0", 404, "no exchange 0"),
        ("/{id}/exchanges/-1", 400, "n is a number from 0 to"),
        ("/{id}/exchanges/x", 400, "n is a number"),
        ("/{id}/exchanges/" + "9" * 5000, 400, "n is a number"),
        ("/{id}/exchanges/1/sent?k=-1", 400, "k is a number"),
        ("/{id}/exchanges/1/sent?k=7", 404, "no round 7"),
        ("/{id}/exchanges/1/received?k=7", 404, "no answer to round 7"),
        ("/{id}/exchanges/1/received?k=", 400, "k is a number"),
        ("/{id}/export?form=html", 400, "form is one of json, jsonl, openai, not 'html'"),
        ("/{id}/export?branch=zz", 404, "its branches are "),
        ("/zzz", 404, "GET /-/api/sessions lists them"),
        ("/talx", 404, "GET /-/api/sessions lists them"),
    ]:
        got, code, message = await refuse(talk, path.replace("{id}", id_of(archive)))
        assert (got, code) == (status, "bad_request" if status == 400 else "not_found"), path
        assert told in message, path


async def test_a_name_that_is_none_finds_nothing(talk: Served, upstream: ScriptedUpstream) -> None:
    for trick in TRICKS:
        for path in ["/{}", "/{}/exchanges", "/{}/exchanges/1/sent", "/{}/export"]:
            seen = len(upstream.requests)
            got = await talk.ask(request("GET", API + path.format(trick.replace(" ", "%20")), BEARER))
            assert got.status == 404, (path, trick)
            assert len(got.body) < 1000
            assert json.loads(got.body)["error"]["code"] == "not_found"
            assert len(upstream.requests) == seen


async def test_what_was_erased_is_not_found_with_the_reason(talk: Served, archive: ReadableArchive) -> None:
    archive.erased = {archive.of(Opening)[0].exchange}
    for part in ("sent", "received"):
        got = await refuse(talk, f"/{id_of(archive)}/exchanges/1/{part}")
        assert got == (404, "not_found", "palimpsest: this content was erased")
    one = await load(talk, f"/{id_of(archive)}/exchanges/1")
    assert (one["request"], one["missing"]) == (None, "this content was erased")
    whole = await load(talk, f"/{id_of(archive)}/export")
    assert ["missing" in row for row in whole["exchanges"]] == [True, False, False, False, False]


PATHS = pytest.mark.parametrize(
    "path",
    [
        "",
        "/{id}",
        "/{id}/exchanges",
        "/{id}/exchanges/1",
        "/{id}/exchanges/1/sent",
        "/{id}/exchanges/1/received",
        "/{id}/export",
    ],
)


@PATHS
async def test_a_head_is_that_of_a_get(talk: Served, archive: ReadableArchive, path: str) -> None:
    whole = path.replace("{id}", id_of(archive))
    got, head = await get(talk, whole), await get(talk, whole, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers == tuple(field for field in got.headers if field[0] != b"transfer-encoding")
    missing = await get(talk, "/zzz", "HEAD")
    assert (missing.status, missing.body) == (404, b"")


@PATHS
async def test_nothing_can_be_changed(talk: Served, archive: ReadableArchive, path: str) -> None:
    # a session can be begun and erased
    allowed = {"": b"GET, HEAD, POST", "/{id}": b"GET, HEAD, DELETE"}.get(path, b"GET, HEAD")
    for method in {"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - set(allowed.decode().split(", ")):
        got = await get(talk, path.replace("{id}", id_of(archive)), method)
        assert (got.status, got.find(b"allow")) == (405, allowed), method
        assert json.loads(got.body)["error"]["code"] == "method_not_allowed"


@PATHS
@pytest.mark.parametrize(
    ("fields", "host", "status"),
    [
        ((), "127.0.0.1", 401),
        (("Authorization: Bearer wrong",), "127.0.0.1", 401),
        ((BEARER,), "evil.example", 403),
        ((BEARER, "Origin: http://evil.example"), "127.0.0.1", 403),
        ((f"Cookie: palimpsest_admin={make_cookie(TOKEN)}", "Origin: null"), "127.0.0.1", 403),
    ],
)
async def test_only_the_administrator_reads(
    talk: Served, archive: ReadableArchive, path: str, fields: tuple[str, ...], host: str, status: int
) -> None:
    for method in ("GET", "HEAD", "POST"):
        got = await talk.ask(request(method, API + path.replace("{id}", id_of(archive)), *fields, host=host))
        assert got.status == status
        assert b"talk" not in got.body and id_of(archive).encode() not in got.body


async def test_a_client_that_leaves_an_export_leaves_nothing_running(talk: Served, archive: ReadableArchive) -> None:
    reading, leaving = asyncio.Event(), asyncio.Event()
    load_request = archive.memory.load_request

    async def wait(exchange: str) -> bytes:
        reading.set()
        await leaving.wait()
        return await load_request(exchange)

    archive.memory.load_request = wait  # type: ignore[method-assign]
    async with await talk.connect() as client:
        client.send(request("GET", f"{API}/{id_of(archive)}/export", BEARER))
        await reading.wait()
    leaving.set()
    await talk.drained()


async def test_why_the_cache_missed_and_what_that_saved_is_told(plan: Plan, archive: ReadableArchive) -> None:
    decided = Decided("e2", 0, "gpt-4o", "epoch", saving=4.0)
    async with serving(plan, archive) as served:
        for exchange, cached in (("e1", 0), ("e2", 400)):
            archive.append(make_opening(exchange), make_round(exchange), make_outcome(exchange))
            archive.append(make_reading(exchange, usage=Usage(input=900, cached=cached)))
        archive.append(decided)
        session = make_key().id
        got = await served.ask(request("GET", f"/-/api/sessions/{session}/cache", BEARER))
        told = json.loads(got.body)
        assert (got.status, told["session"], told["totals"]) == (200, session, {})
        assert [(call["n"], call["read"], call["use"]) for call in told["calls"]] == [
            (1, 0, "first"),
            (2, 400, "first"),
        ]
        assert told["saved"]["tokens"] == 4.0
        (listed,) = json.loads((await served.ask(request("GET", "/-/api/sessions", BEARER))).body)["items"]
        assert listed["saved"] == told["saved"]
        assert (await served.ask(request("GET", "/-/api/sessions/nobody/cache", BEARER))).status == 404


async def test_what_managing_saves_is_told_of_those_that_are_only_observed(
    plan: Plan, archive: ReadableArchive
) -> None:
    held = Decided("e1", 0, "gpt-4o", "original", reason="holdout", usable=1000)
    async with serving(plan, archive) as served:
        archive.append(make_opening(), make_round(), make_outcome(), held)
        archive.append(make_reading(usage=Usage(input=900, cached=400)))
        got = await served.ask(request("GET", "/-/api/savings", BEARER))
        told = json.loads(got.body)
        assert (got.status, told["saving"], told["managed"]["sessions"]) == (200, None, 0)
        assert told["held_out"] == {"sessions": 1, "cost": pytest.approx(0.6), "blind": 0}
        assert "too few sessions" in told["reason"]
        assert (await served.ask(request("GET", "/-/api/savings?since=1", BEARER))).status == 400
        assert (await served.ask(request("GET", "/-/api/savings"))).status == 401


async def test_what_was_read_of_a_session_is_forgotten_once_it_is_erased() -> None:
    unused: Any = None
    api = SessionsApi(unused, unused, unused, unused)
    for session in ("gone", "left"):
        api.titles.put(session, "Secret words")
        known: Any = object()
        api.reports.known.put(session, known)
    api.forget(SessionsErased(1, 5, "person", ("gone",)))
    assert [api.titles.get(session) for session in ("gone", "left")] == [None, "Secret words"]
    assert api.reports.known.get("gone") is None and api.reports.known.get("left") is not None
