"""The API of search: how it is asked, what it shows, and who may ask."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.references import PAGE
from proxy.model.epoch import StoredOriginal, Summary
from proxy.model.exchange import Headers, SessionKey
from proxy.model.search import Hit, IndexedEntry, IndexHealth, SearchAnswer, SearchQuery
from proxy.wire.headers import find_header
from tests.store.samples import make_original
from tests.support.engine import FakeArchive
from tests.support.scripted import Message, request
from tests.support.searching import FakeIndex
from tests.support.serving import TOKEN, Plan, serving

BEARER = f"Authorization: Bearer {TOKEN}"
MINE, THEIRS = b"\x01" * 16, b"\x02" * 16
HIT = Hit(
    reference="abcdefgh23",
    session="s1",
    node=b"\x0a" * 16,
    exchange="e1",
    n=3,
    role="tool",
    sender="",
    tool="bash",
    kind="output",
    at_ms=1_760_000_000_000,
    snippet="a zebra \ud800",
    score=1.23456,
)
ENTRY = IndexedEntry(
    reference="abcdefgh23",
    tenant=MINE.hex(),
    session="s1",
    node=b"\x0a" * 16,
    exchange="e1",
    n=3,
    role="tool",
    sender="",
    tool="bash",
    kind="output",
    at_ms=1_760_000_000_000,
    text="z" * PAGE + "rest",
)


class Tenants(FakeArchive):
    """A log whose sessions are those of two tenants, with references in them."""

    def __init__(self, *, is_instant: bool) -> None:
        super().__init__(is_instant=is_instant)
        self.originals: dict[str, str] = {}

    async def find_key(self, session: str) -> SessionKey:
        if session not in ("s1", "s2"):
            return await super().find_key(session)
        return SessionKey(session, MINE if session == "s1" else THEIRS, "openai", session)

    async def load_original(self, reference: str) -> StoredOriginal:
        if reference not in self.originals:
            return await super().load_original(reference)
        said = b'{"role":"user","content":"what was said"}'
        return StoredOriginal(self.originals[reference], make_original(reference, said), (said,))

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        return ()

    async def list_ids(self, prefix: str, limit: int) -> list[str]:
        return [each for each in ("s1", "s2") if each.startswith(prefix)][:limit]


def find_tenant(headers: Headers) -> bytes | None:
    """Two clients have tenants."""
    return {b"Bearer mine": MINE, b"Bearer theirs": THEIRS}.get(find_header(headers, b"authorization"))


@pytest.fixture
def searched() -> FakeIndex:
    return FakeIndex(SearchAnswer(hits=(HIT,), behind=2), ENTRY, IndexHealth(behind=2, behind_seconds=1.5, size=4096))


async def ask(
    plan: Plan, index: FakeIndex, path: str, *fields: str, method: str = "GET", archive: Any = None
) -> Message:
    """The response to a request; with the token unless another credential is given."""
    changed = replace(plan, index=index, find_tenant=find_tenant)
    async with serving(changed, archive or Tenants(is_instant=True)) as served:
        return await served.ask(request(method, path, *(fields or (BEARER,))))


async def test_hits_are_shown_as_a_document(plan: Plan, searched: FakeIndex) -> None:
    got = await ask(plan, searched, "/-/api/search?q=a%20zebra")
    assert got.status == 200
    assert json.loads(got.body) == {
        "hits": [
            {
                "reference": "abcdefgh23",
                "session": "s1",
                "node": "0a" * 16,
                "exchange": "e1",
                "n": 3,
                "role": "tool",
                "sender": "",
                "tool": "bash",
                "kind": "output",
                "at_ms": 1_760_000_000_000,
                "snippet": "a zebra \ufffd",
                "visibility": None,
                "score": 1.235,
            }
        ],
        "is_complete": True,
        "behind": 2,
    }
    assert searched.queries == [SearchQuery(text="a zebra")]


async def test_every_parameter_limits_the_search(plan: Plan, searched: FakeIndex) -> None:
    path = (
        "/-/api/search?q=x&session=s2&kind=output,reasoning&role=tool&tool=bash,%20read&since=2026-11-26"
        "&limit=3&tokens=4000"
    )
    assert (await ask(plan, searched, path)).status == 200
    assert searched.queries == [
        SearchQuery(
            text="x",
            sessions=("s2",),
            kinds=("output", "reasoning"),
            roles=("tool",),
            tools=("bash", "read"),
            since_ms=1_795_651_200_000,
            limit=3,
            tokens=4000,
        )
    ]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "q is missing"),
        ("?q=x&kind=outpu", "kind is one of message, output, reasoning"),
        ("?q=x&role=king", "role is one of user, assistant, tool, other"),
        ("?q=x&since=yesterday", "since is a date such as"),
        ("?q=x&limit=0", "limit is 1 to 200"),
        ("?q=x&limit=201", "limit is 1 to 200"),
        ("?q=x&tokens=0", "tokens is 1 to 100000"),
        ("?q=x&tokens=many", "tokens is a number"),
        ("?q=x&other=1", "the parameter 'other' is not known here"),
    ],
)
async def test_what_is_wrong_with_a_search_is_told(plan: Plan, searched: FakeIndex, query: str, told: str) -> None:
    got = await ask(plan, searched, "/-/api/search" + query)
    assert got.status == 400
    assert told in json.loads(got.body)["error"]["message"]
    assert searched.queries == []


async def test_an_unknown_session_is_told(plan: Plan, searched: FakeIndex) -> None:
    got = await ask(plan, searched, "/-/api/search?q=x&session=s9")
    assert got.status == 404


async def test_a_client_finds_its_own_sessions_only(plan: Plan, searched: FakeIndex) -> None:
    got = await ask(plan, searched, "/-/api/search?q=x&session=s1", "Authorization: Bearer mine")
    assert got.status == 200
    assert searched.queries == [SearchQuery(text="x", tenant=MINE.hex(), sessions=("s1",))]
    for session in ("s2", "s9", "s"):
        got = await ask(plan, searched, f"/-/api/search?q=x&session={session}", "Authorization: Bearer mine")
        assert (got.status, json.loads(got.body)["error"]["message"]) == (
            404,
            f"palimpsest: there is no session {session}",
        )
    assert len(searched.queries) == 1


@pytest.mark.parametrize("path", ["/-/api/search?q=x", "/-/api/refs/abcdefgh23"])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (("X: 1",), 401),
        (("Authorization: Bearer nobody",), 401),
        (("Authorization: Bearer mine", "Origin: http://evil.example"), 403),
        (("Authorization: Bearer mine", "Sec-Fetch-Site: cross-site"), 403),
        (("Authorization: Bearer mine",), 200),
        ((BEARER,), 200),
    ],
)
async def test_nobody_else_gets_in(
    plan: Plan, searched: FakeIndex, path: str, fields: tuple[str, ...], status: int
) -> None:
    got = await ask(plan, searched, path, *fields)
    assert got.status == status
    if status != 200:
        assert searched.queries == []


@pytest.mark.parametrize("path", ["/-/api/sessions", "/-/metrics", "/-/api/index", "/-/"])
async def test_a_client_gets_nothing_else(plan: Plan, searched: FakeIndex, path: str) -> None:
    assert (await ask(plan, searched, path, "Authorization: Bearer mine")).status == 401


async def test_the_id_of_a_hit_is_a_reference(plan: Plan, searched: FakeIndex) -> None:
    got = await ask(plan, searched, "/-/api/refs/abcdefgh23")
    assert (got.status, got.body, got.find(b"x-palimpsest-pages")) == (200, b"z" * PAGE, b"2")
    got = await ask(plan, searched, "/-/api/refs/ref:abcdefgh23?page=2")
    assert got.body == b"rest"
    got = await ask(plan, searched, "/-/api/refs/abcdefgh23?page=all")
    assert got.body == b"z" * PAGE + b"rest"
    got = await ask(plan, searched, "/-/api/refs/abcdefgh23?page=3")
    assert (got.status, "has 2 pages" in got.body.decode()) == (404, True)


async def test_a_reference_of_another_tenant_is_unknown(plan: Plan, searched: FakeIndex) -> None:
    refused = await ask(plan, searched, "/-/api/refs/abcdefgh23", "Authorization: Bearer theirs")
    unknown = await ask(plan, searched, "/-/api/refs/bbbbbbbbbb", "Authorization: Bearer theirs")
    assert (refused.status, unknown.status) == (404, 404)
    assert refused.body.replace(b"abcdefgh23", b"bbbbbbbbbb") == unknown.body


async def test_a_reference_of_the_log_is_shown_to_its_own_tenant(plan: Plan, searched: FakeIndex) -> None:
    log = Tenants(is_instant=True)
    log.originals = {"ccccccccc2": "s1", "ccccccccc3": "s2"}
    for name, credential, status in (
        ("ccccccccc2", "mine", 200),
        ("ccccccccc3", "mine", 404),
        ("ccccccccc3", "theirs", 200),
    ):
        got = await ask(plan, searched, f"/-/api/refs/{name}", f"Authorization: Bearer {credential}", archive=log)
        assert got.status == status
        assert (b"what was said" in got.body) == (status == 200)


async def test_the_index_is_told_of_and_made_anew(plan: Plan, searched: FakeIndex) -> None:
    shown = {"behind": 2, "behind_seconds": 1.5, "size": 4096, "is_rebuilding": False, "fault": ""}
    shown |= {"vectors": 0, "without_vectors": 0}
    assert json.loads((await ask(plan, searched, "/-/api/index")).body) == shown
    assert json.loads((await ask(plan, searched, "/-/api/index/rebuild", method="POST")).body) == shown
    assert (await ask(plan, searched, "/-/api/index/rebuild")).status == 405
