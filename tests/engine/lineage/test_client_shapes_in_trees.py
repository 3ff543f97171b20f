"""Where the calls of real clients' shapes land: two sessions of each, in turns, with equal beginnings."""

import json
from dataclasses import replace
from itertools import chain, pairwise

import pytest

from proxy.engine.lineage.identity import ClientId, make_session
from proxy.model.exchange import ClientRequest, Headers, Opening
from proxy.model.lineage import Lineage
from proxy.store.sqlite.lineage_queries import ExchangePosition, find_branches
from tests.support import chat_clients, responses_clients
from tests.support.client_turns import CLIENTS, COMPACTING, REWRITING, turns
from tests.support.clients import Request, Said
from tests.support.coding_clients import write_aider
from tests.support.engine import JSON, Engine, RecordingClient, ScriptedResponse, ScriptedUpstream
from tests.support.scripted import LIMIT

NAMED = ("opencode", "codex", "claude-code")
each_client = pytest.mark.parametrize("client", CLIENTS)

Landed = list[tuple[Request, str, Lineage]]


class Setup:
    """An engine that answers as it is told, by calls that go all the way."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(ScriptedUpstream(), is_instant=True)

    async def send(self, request: Request, key: str = "k") -> tuple[str, Lineage]:
        """Its session, and where it stands there."""
        engine, content = self.engine, json.dumps(request.answer).encode()
        engine.upstream.answer(ScriptedResponse(content, headers=JSON, ending="whole"))
        headers: Headers = (*request.headers, (b"authorization", f"Bearer {key}".encode()))
        sent = ClientRequest("POST", request.path.encode(), headers, request.body)
        await engine.exchanges.carry(sent, request.format.name, RecordingClient())
        return engine.archive.of(Opening)[-1].session.id, engine.archive.of(Lineage)[-1]

    async def send_all(self, *requests: Request) -> Landed:
        return [(request, *await self.send(request)) for request in requests]


async def play_two(client: str) -> tuple[Landed, Landed]:
    """Two sessions of a client, interleaved."""
    first, second = turns(client, "s1"), turns(client, "s2")
    landed = await Setup().send_all(*chain(*zip(first, second, strict=True)))
    return landed[::2], landed[1::2]


def name(client: str, family: str) -> str:
    tenant = Engine().lineage.tenants.identify(((b"authorization", b"Bearer k"),)).tenant
    return make_session(tenant, "main", ClientId(family), "").id


@each_client
async def test_the_turns_of_a_session_are_one_session_and_no_others(client: str) -> None:
    whole = [[each for each in landed if each[0].kind == "main"] for landed in await play_two(client)]
    is_proven = client in NAMED or client not in COMPACTING
    mine, theirs = [{session for _, session, _ in (each if is_proven else each[:-1])} for each in whole]
    assert (len(mine), len(theirs)) == (1, 1)
    assert mine != theirs


@pytest.mark.parametrize("client", [client for client in CLIENTS if client not in REWRITING])
async def test_turns_that_only_append_are_told_so(client: str) -> None:
    for landed in await play_two(client):
        main = [step for request, _, step in landed if request.kind == "main"]
        *appended, last = main[1:]
        assert {step.relation for step in appended} == {"append"}
        assert last.relation == "append" or client in COMPACTING
        assert all(step.base > before.depth for before, step in pairwise(main[:-1]))


@pytest.mark.parametrize("client", NAMED)
async def test_a_clients_own_compaction_stays_in_the_session_that_it_names(client: str) -> None:
    for landed in await play_two(client):
        kinds = {kind: {session for request, session, _ in landed if request.kind == kind} for kind in ("main", "side")}
        compaction = {session for request, session, _ in landed if request.kind == "compaction"}
        assert compaction == kinds["main"]
        assert [step.relation for request, _, step in landed if request.kind == "main"][-1] == "compaction"
        assert kinds["side"] in (set(), kinds["main"])


@pytest.mark.parametrize("client", ["qwen-code"])
async def test_a_compaction_call_without_a_name_is_found_by_the_answers_before_it(client: str) -> None:
    for landed in await play_two(client):
        (session,) = {session for request, session, _ in landed[:-1]}
        assert landed[-2][0].kind == "compaction" and landed[-2][1] == session
        assert landed[-1][1] != session  # nothing in it was ever an answer: a conversation found twice


@pytest.mark.parametrize(
    ("client", "parent", "child"),
    [
        ("opencode", "x-session-id:s1", "x-session-id:s1-sub"),
        ("codex", "codex:s1", "codex:s1-sub"),
        ("claude-code", "claude-code:s1:main", "claude-code:s1:agent-1"),
    ],
)
async def test_a_subagent_has_a_session_of_its_own_and_says_whose_it_is(client: str, parent: str, child: str) -> None:
    setup = Setup()
    landed = await setup.send_all(*turns(client))
    (session,) = {session for request, session, _ in landed if request.kind == "subagent"}
    assert session == name(client, child)
    assert setup.engine.archive.trees.by_id[session].key.parent == name(client, parent)
    assert {session for request, session, _ in landed if request.kind == "main"} == {name(client, parent)}


@pytest.mark.parametrize("client", ["opencode", "claude-code"])
async def test_a_title_is_beside_the_conversation(client: str) -> None:
    landed = await Setup().send_all(*turns(client))
    assert [step.is_side for request, _, step in landed if request.kind == "side"] == [True]
    assert not any(step.is_side for request, _, step in landed if request.kind == "main")


async def test_a_call_by_which_codex_compacts_is_beside_the_conversation() -> None:
    landed = await Setup().send_all(*turns("codex"))
    assert [step.is_side for request, _, step in landed if request.kind == "compaction"] == [True]
    assert not any(step.is_side for request, _, step in landed if request.kind == "main")


@pytest.mark.parametrize(("client", "key"), [("claude-code", "system"), ("codex", "instructions")])
async def test_a_call_under_other_orders_is_beside_the_conversation(client: str, key: str) -> None:
    setup, main = Setup(), [request for request in turns(client) if request.kind == "main"]
    session, _ = await setup.send(main[0])
    body = json.loads(main[0].body)
    items_key = main[0].format.items_key
    for orders, is_side in ((body[key], False), ("You make titles.", True)):
        body[items_key][-1]["content"][0]["text"] = f"Which words name this? {orders}"
        asked = replace(main[0], body=json.dumps({**body, key: orders}).encode())
        beside, step = await setup.send(asked)
        assert (beside, step.is_side) == (session, is_side)


async def test_files_that_wander_to_the_end_leave_a_conversation_one_by_its_answers() -> None:
    mine, theirs = [
        [(session, step.relation) for request, session, step in landed if request.kind == "main"]
        for landed in await play_two("aider")
    ]
    for landed in (mine, theirs):
        assert len({session for session, _ in landed}) == 1
        assert [relation for _, relation in landed] == ["root", "root", "branch"]


def write_call(turn: int, answers: list[str]) -> Request:
    """A call of aider, with the answers that it got: `write_aider` has invented ones."""
    messages = write_aider(turn)
    start = len(messages) - 3 - 2 * (turn - 1)  # where what was done begins, before the files and the task
    for i, text in enumerate(answers):
        messages[start + 2 * i + 1] = {"role": "assistant", "content": text}
    body = json.dumps({"model": "m", "messages": messages}).encode()
    text = f"I changed the parser so that it reads shape {turn}, as it was asked for."
    return Request((), "/v1/chat/completions", body, "main", chat_clients.answer(Said(text)))


async def play_aider_turns(setup: Setup, turns: range, answers: list[str]) -> Landed:
    landed: Landed = []
    for turn in turns:
        request = write_call(turn, answers)
        landed.append((request, *await setup.send(request)))
        answers.append(f"I changed the parser so that it reads shape {turn}, as it was asked for.")
    return landed


async def test_twelve_calls_of_aider_are_one_conversation_with_a_volatile_tail() -> None:
    setup = Setup()
    landed = await play_aider_turns(setup, range(1, 13), [])
    assert len({session for _, session, _ in landed}) == 1
    assert [step.relation for _, _, step in landed] == ["root", "branch", "branch", *9 * ["volatile"]]
    steps = [step for _, _, step in landed]
    assert steps[-1].depth - steps[-1].base == 5  # the turn before with its answer, the files with "Ok.", the new turn
    parents = dict[bytes, bytes]()
    for row in chain.from_iterable(step.nodes for step in steps):
        parents.setdefault(row.node, row.parent if row.parent in parents else b"")
    positions = [ExchangePosition(n, "", x.tip, x.depth, x.relation, x.is_side) for n, x in enumerate(steps, 1)]
    branches = find_branches(parents, positions)
    assert [len(branch.own) for branch in branches] == [1, 1, 10]
    assert branches[-1].tip == steps[-1].tip


async def test_a_tail_stays_volatile_after_a_restart() -> None:
    setup = Setup()
    answers = list[str]()
    before = await play_aider_turns(setup, range(1, 6), answers)
    assert await setup.engine.tasks.finish(LIMIT)
    setup = Setup(Engine(ScriptedUpstream(), after=setup.engine))
    after = await play_aider_turns(setup, range(6, 9), answers)
    assert {session for _, session, _ in after} == {before[0][1]}
    assert [(step.relation, step.depth - step.base) for _, _, step in after] == 3 * [("volatile", 5)]


def ask(input: object, answer: Said, **fields: object) -> Request:
    body = json.dumps({"model": "m", "input": input, **fields}).encode()
    return Request((), "/v1/responses", body, "main", responses_clients.answer(answer))


LOOKED, SAID = Said("I will look.", "call_one_a", {}), Said("It is there.", "call_two_b", {})


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_request_goes_on_from_the_stored_answer_that_it_names(*, is_restarted: bool) -> None:
    setup = Setup()
    first, _ = await setup.send(ask("hi", LOOKED))
    if is_restarted:
        assert await setup.engine.tasks.finish(LIMIT)
        setup = Setup(Engine(ScriptedUpstream(), after=setup.engine))
    session, step = await setup.send(ask("and?", SAID, previous_response_id="resp_call_one_a"))
    assert (session, step.relation, step.base, step.depth) == (first, "append", 0, 1)
    again, step = await setup.send(ask("or?", SAID, previous_response_id="resp_call_one_a"))
    assert (again, step.relation) == (first, "branch")
    other, step = await setup.send(ask("and?", SAID, previous_response_id="resp_call_one_a"), "another key")
    assert (other != first, step.relation) == (True, "root")


@pytest.mark.parametrize("previous", ["resp_unknown", "", "\ud800", "x" * 10_000, 7, None])
async def test_a_stored_answer_that_is_not_known_is_a_root(previous: object) -> None:
    setup = Setup()
    first, _ = await setup.send(ask("hi", LOOKED))
    session, step = await setup.send(ask("and?", SAID, previous_response_id=previous))
    assert (session != first, step.relation) == (True, "root")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_ids_stand_for_the_items_that_are_stored(*, is_restarted: bool) -> None:
    setup = Setup()
    mine, theirs = turns("vercel-ai-responses", "s1"), turns("vercel-ai-responses", "s2")
    (_, first, _), (_, other, _) = await setup.send_all(mine[0], theirs[0])
    if is_restarted:
        assert await setup.engine.tasks.finish(LIMIT)
        setup = Setup(Engine(ScriptedUpstream(), after=setup.engine))
    (_, session, step), (_, third, _) = await setup.send_all(mine[1], theirs[1])
    assert (session, step.relation, step.base) == (first, "append", step.depth - 1)
    assert third == other != first
