"""Receiving requests: where they go, how they are named, what of them is kept, and that none is refused."""

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.engine.call.response_reader import ResponseReader
from proxy.engine.lineage.identity import ClientId, Tenants, make_session
from proxy.engine.policy import EnginePolicy
from proxy.engine.request import ManagedRequest, ResolvedRequest
from proxy.engine.request_resolver import RequestResolver, Route
from proxy.engine.runtime import EngineBus, TaskRunner
from proxy.model.exchange import ClientRequest, Headers, Opening, RequestOptions
from proxy.model.manifest import compute_digest, make_manifest
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import CountingIds, FakeArchive, FixedClock, ScriptedUpstream, make_lineage
from tests.support.examples import examples
from tests.support.rebuilding import Log

FORM = ChatCompletions()


class Setup:
    """A reception over fakes."""

    def __init__(self, *routes: tuple[str, tuple[str, ...]], cap: int = 1_000_000) -> None:
        self.archive = FakeArchive()
        chosen = [Route(ScriptedUpstream(name), models) for name, models in routes or (("main", ()),)]
        policy = EnginePolicy(record_cap_bytes=cap)
        clock, tasks = FixedClock(), TaskRunner()
        lineage = make_lineage(self.archive, clock, policy)
        readings = ResponseReader(self.archive, EngineBus(tasks), tasks, lineage, cap)
        self.resolver = RequestResolver(policy, chosen, reader=readings, clock=clock, ids=CountingIds())

    async def receive(self, body: bytes, headers: Headers = (), form: ChatCompletions = FORM) -> "Received":
        request = ClientRequest("POST", b"/v1/chat/completions?key=secret", headers, body)
        resolved, build = await self.resolver.resolve(request, form, RequestOptions("observe"))
        return Received(resolved, self.resolver.make_opening(resolved, build))

    def receive_stream(self, headers: Headers = ()) -> "Received":
        request = ClientRequest("PUT", b"/v1/files", headers)
        resolved = self.resolver.resolve_stream(request, RequestOptions("bypass"))
        return Received(resolved, self.resolver.make_opening(resolved, lambda: make_manifest(b"")))


class Received(NamedTuple):
    """A request as it was resolved, and the record of it."""

    resolved: ResolvedRequest
    opening: Opening


def ask(model: str, *messages: str, size: int = 0) -> bytes:
    return json.dumps({"model": model, "messages": list(messages), "pad": "p" * size}).encode()


async def test_an_opening_says_who_asked_what_when() -> None:
    headers: Headers = ((b"content-type", b"application/json"), (b"authorization", b"Bearer k"), (b"thread-id", b"t"))
    received = await Setup().receive(ask("m", "hi"), headers)
    opening = received.opening
    assert (opening.exchange, opening.kind, opening.wire, opening.mode) == (
        "x1",
        "managed",
        "chat_completions",
        "observe",
    )
    assert (opening.model, opening.method, opening.target) == ("m", "POST", "/v1/chat/completions?key")
    assert (opening.opened_ms, opening.body.size) == (1_700_000_000_000, len(ask("m", "hi")))
    assert dict(opening.headers).keys() == {b"content-type", b"thread-id"}
    assert opening.session == make_session(opening.session.tenant, "main", ClientId("codex:t"), "x1")
    assert opening.session.tenant == Tenants(b"salt", FixedClock()).identify(headers).tenant
    assert received.resolved.upstream.name == "main"


async def test_the_opening_of_a_stream_has_its_body_still_to_come() -> None:
    opening = Setup().receive_stream(((b"x-session-id", b"s"),)).opening
    assert (opening.kind, opening.wire, opening.model, opening.mode) == ("passthrough", "", "", "bypass")
    assert (opening.body.size, opening.body.recipe) == (0, b"")
    assert (opening.method, opening.session.family) == ("PUT", "x-session-id:s")


async def test_a_call_without_a_name_is_a_session_of_its_own() -> None:
    setup = Setup()
    first, second = (await setup.receive(ask("m", "hi"))).opening, (await setup.receive(ask("m", "hi"))).opening
    assert (first.session.family, second.session.family) == ("", "")
    assert first.session.id != second.session.id
    assert first.session.id != second.session.id
    assert setup.receive_stream().opening.session.family == ""


ROUTES = (("main", ()), ("claude", ("claude-*", "*opus*")), ("local", ("llama[0-9]",)), ("never", ("claude-x",)))


@pytest.mark.parametrize(
    ("model", "upstream"),
    [
        ("claude-x", "claude"),
        ("my-opus-4", "claude"),
        ("llama3", "local"),
        ("llama33", "main"),
        ("Claude-x", "main"),
        ("gpt-5", "main"),
        ("", "main"),
    ],
)
async def test_a_model_goes_to_the_first_upstream_that_claims_it_else_to_the_one_that_claims_none(
    model: str, upstream: str
) -> None:
    assert (await Setup(*ROUTES).receive(ask(model))).resolved.upstream.name == upstream
    assert (await Setup(*reversed(ROUTES[:2])).receive(ask("gpt-5"))).resolved.upstream.name == "main"


@pytest.mark.parametrize(
    ("body", "upstream"), [(ask("claude-x", "hi"), "claude"), (ask("claude-x"), "claude"), (b"?", "main")]
)
async def test_a_request_to_count_of_no_known_session_goes_to_the_upstream_of_its_model(
    body: bytes, upstream: str
) -> None:
    resolver = Setup(*ROUTES).resolver
    request = ClientRequest("POST", b"/v1/messages/count_tokens", ((b"x-session-id", b"s"),), body)
    unread = resolver.resolve_stream(request, RequestOptions())
    found = await resolver.find_counted(request, FORM, unread)
    assert not isinstance(found, ManagedRequest)
    assert (found.upstream.name, found.session.upstream, found.session.family) == (upstream, upstream, "x-session-id:s")


async def test_without_a_model_the_first_upstream_answers_even_if_all_claim_some() -> None:
    claimed = (("claude", ("claude-*",)), ("local", ("llama*",)))
    assert (await Setup(*claimed).receive(ask("gpt-5"))).resolved.upstream.name == "claude"
    assert (await Setup(*claimed).receive(b"not JSON")).resolved.upstream.name == "claude"
    assert Setup(*claimed).receive_stream().resolved.upstream.name == "claude"


async def test_sessions_of_two_upstreams_are_two() -> None:
    headers: Headers = ((b"x-session-id", b"s"),)
    setup = Setup(*ROUTES)
    ids = {(await setup.receive(ask(model), headers)).opening.session.id for model in ("claude-x", "gpt-5", "gpt-6")}
    assert len(ids) == 2


async def test_a_name_in_the_body_counts_before_the_clients_own_way_of_naming() -> None:
    body = json.dumps({"messages": [], "litellm_session_id": "l"}).encode()
    assert (await Setup().receive(body)).opening.session.family == "litellm_session_id:l"
    named = (await Setup().receive(body, ((b"thread-id", b"t"),))).opening
    assert named.session.family == "litellm_session_id:l"


@pytest.mark.parametrize(
    "body",
    [b"", b"not JSON", b'{"a":1,"a":2}', "\ufeff{}".encode(), '{"model":"m"}'.encode("utf-16"), b"[" * 100_000, b"[1]"],
)
async def test_a_body_that_cannot_be_split_is_kept_whole_and_goes_to_the_first_upstream(body: bytes) -> None:
    received = await Setup(*ROUTES).receive(body)
    manifest = received.opening.body
    assert received.resolved.upstream.name == "main"
    assert [blob.content for blob in manifest.blobs] == ([body] if body else [])
    assert (manifest.size, manifest.slices, manifest.whole_digest, received.opening.model) == (len(body), (), b"", "")


@pytest.mark.parametrize("value", [b'"\xff"', b'"\\ud800"', b"7", b"null", b'{"a":1}'])
async def test_a_model_that_is_no_text_is_none_and_fails_no_call(value: bytes) -> None:
    received = await Setup(*ROUTES).receive(b'{"messages":[],"model":' + value + b"}")
    assert (received.opening.model, received.resolved.upstream.name) == ("", "main")


@examples(60)
@given(st.binary(max_size=60), st.binary(max_size=20))
async def test_no_body_and_no_name_is_refused(body: bytes, name: bytes) -> None:
    for content in (body, b'{"model":"' + body + b'","session_id":"' + name + b'"}'):
        received = await Setup().receive(content, ((b"x-session-id", name), (b"authorization", name)))
        assert received.opening.body.size == len(content)


async def test_a_body_above_the_cap_is_kept_to_the_cap_with_a_digest_of_all() -> None:
    body = ask("m", "x" * 2000)
    opening = (await Setup(cap=1000).receive(body)).opening
    manifest, log = opening.body, Log()
    log.take(manifest)
    kept = log.rebuild(manifest.recipe, opening.session.tenant)
    assert body.startswith(kept)
    assert 750 == sum(len(each.content or b"") for each in manifest.slices) < len(kept) <= 1000
    assert (manifest.size, manifest.whole_digest) == (len(body), compute_digest(body))
    assert (await Setup(cap=len(body)).receive(body)).opening.body.whole_digest == b""


async def test_a_body_that_is_mostly_no_messages_is_kept_to_the_cap_as_it_begins() -> None:
    for rest in (b'"messages":[1]', b'"messages":[]', b'"prompt":"why"'):
        body = b'{"model":"m","tools":"%b",%b}' % (b"t" * 5000, rest)
        manifest = (await Setup(cap=4000).receive(body)).opening.body
        assert [blob.content for blob in manifest.blobs] == [body[:4000]]
        assert (manifest.slices, manifest.size, manifest.whole_digest) == ((), len(body), compute_digest(body))


async def test_the_cap_counts_what_a_call_brings_not_what_it_repeats() -> None:
    setup, log, texts = Setup(cap=10_000), Log(), []
    for number in range(12):
        texts.append(f"{number} " + "x" * 5000)
        body = ask("m", *texts)
        received = await setup.receive(body)
        manifest = received.opening.body
        log.take(manifest)
        assert (len(manifest.slices), manifest.whole_digest) == (1, b"")
        assert log.rebuild(manifest.recipe, received.resolved.session.tenant) == body
        assert isinstance(received.resolved, ManagedRequest)
        assert received.resolved.list_unkept() == frozenset()


async def test_what_did_not_fit_under_the_cap_is_kept_with_the_next_call() -> None:
    setup, log, texts = Setup(cap=10_000), Log(), [f"{number} " + "x" * 3000 for number in range(5)]
    unkept, whole = [], []
    for _ in range(2):
        received = await setup.receive(ask("m", *texts))
        manifest = received.opening.body
        log.take(manifest)
        assert isinstance(received.resolved, ManagedRequest)
        unkept.append(received.resolved.list_unkept())
        whole.append(log.rebuild(manifest.recipe, received.resolved.session.tenant))
        assert sum(len(each.content or b"") for each in manifest.slices) <= 10_000
    assert unkept == [frozenset({3, 4}), frozenset()]
    assert ask("m", *texts).startswith(whole[0])
    assert whole[1] == ask("m", *texts)


async def test_what_the_log_has_is_not_counted_again_after_a_restart() -> None:
    setup, texts = Setup(cap=10_000), [f"{number} " + "x" * 3000 for number in range(6)]
    for count in range(1, 7):
        setup.archive.append((await setup.receive(ask("m", *texts[:count]))).opening)
    again = Setup(cap=10_000)
    again.archive.appended = setup.archive.appended
    manifest = (await again.receive(ask("m", *texts, "new"))).opening.body
    assert (len(manifest.slices), manifest.whole_digest) == (1, b"")
    assert len((await again.receive(ask("m", *texts, "new", "newer"))).opening.body.slices) == 1


async def test_a_message_above_the_cap_is_kept_as_its_head_and_what_comes_behind_it_whole() -> None:
    setup, log = Setup(cap=10_000), Log()
    texts = ["first", "x" * 20_000]
    for number in range(3):
        body = ask("m", *texts)
        received = await setup.receive(body)
        manifest = received.opening.body
        log.take(manifest)
        kept = log.rebuild(manifest.recipe, received.resolved.session.tenant)
        assert (len(manifest.slices), manifest.whole_digest) == (1 if number else 2, compute_digest(body))
        assert isinstance(received.resolved, ManagedRequest)
        assert received.resolved.list_unkept() == {1}
        digests = received.resolved.list_digests(0, len(texts))
        assert set(digests) == {each.digest for each in log.slices.values()}
        assert all(text.encode() in kept for i, text in enumerate(texts) if i != 1)
        texts.append(f"number {number}")


async def test_what_was_found_before_the_log_lost_a_record_is_not_leant_on() -> None:
    setup = Setup(cap=10_000)
    texts = [f"{number} " + "x" * 3000 for number in range(3)]
    assert (await setup.receive(ask("m", *texts))).opening.body.slices
    request = ClientRequest("POST", b"/v1/chat/completions", (), ask("m", *texts, "y" * 3000))
    resolved, build = await setup.resolver.resolve(request, FORM, RequestOptions("observe"))
    setup.archive.health = replace(setup.archive.health, generation=1)
    opening = setup.resolver.make_opening(resolved, build)
    assert len(opening.body.slices) == 3
    assert opening.body.whole_digest


async def test_a_body_above_the_record_cap_goes_where_its_model_goes() -> None:
    """A cap of the record decides what is kept, not which provider gets to see a conversation."""
    received = await Setup(*ROUTES, cap=100).receive(ask("claude-x", "x" * 200))
    assert (received.resolved.upstream.name, received.opening.model) == ("claude", "claude-x")


async def test_a_body_above_the_record_cap_belongs_to_the_session_that_it_names() -> None:
    body = json.dumps({"session_id": "s", "messages": ["x" * 200]}).encode()
    assert (await Setup(cap=100).receive(body)).opening.session.family == "session_id:s"


async def test_a_repeated_history_brings_its_new_messages_only_until_the_log_loses_a_record() -> None:
    setup = Setup()
    assert len((await setup.receive(ask("m", "a", size=5000))).opening.body.slices) == 1
    assert len((await setup.receive(ask("m", "a", "b", size=5000))).opening.body.slices) == 1
    setup.archive.health = replace(setup.archive.health, generation=1)
    complete = (await setup.receive(ask("m", "a", "b", "c", size=5000))).opening.body
    assert (len(complete.slices), len(complete.blobs)) == (3, 1)
    assert len((await setup.receive(ask("m", "a", "b", "c", "d", size=5000))).opening.body.slices) == 1


async def test_what_another_tenant_sent_is_never_taken_as_known() -> None:
    setup = Setup()
    mine, theirs = [
        (await setup.receive(ask("m", "a", size=5000), ((b"authorization", key), (b"x-session-id", b"s")))).opening
        for key in (b"Bearer one", b"Bearer two")
    ]
    assert (len(mine.body.slices), len(theirs.body.slices)) == (1, 1)
    assert mine.body.slices[0].link != theirs.body.slices[0].link
    assert mine.session.id != theirs.session.id


class Broken(ChatCompletions):
    """A format with a defect of its own."""

    @property
    def items_key(self) -> str:  # type: ignore[override]
        raise RuntimeError("a defect")


@pytest.mark.parametrize("cap", [1_000_000, 10])
async def test_a_defect_in_reading_a_request_does_not_fail_the_call(cap: int, caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(cap=cap)
    body = ask("m", "secret words")
    received = await setup.receive(body, ((b"x-session-id", b"s"),), Broken())
    assert (received.opening.kind, received.opening.model, received.resolved.is_stream) == ("managed", "", False)
    assert received.opening.session.family == "x-session-id:s"
    assert received.opening.body.size == len(body)
    assert "a request was not understood" in caplog.text
    assert "secret words" not in caplog.text


@pytest.mark.parametrize(("said", "is_stream"), [(b"true", True), (b"false", False), (b'"true"', False), (b"1", False)])
async def test_a_streamed_answer_is_asked_for_by_the_bodys_own_word(said: bytes, *, is_stream: bool) -> None:
    assert (await Setup().receive(b'{"model":"m","stream":%b,"messages":[1]}' % said)).resolved.is_stream == is_stream
