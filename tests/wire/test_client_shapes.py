"""Real clients' shapes: each main request extends the one before and its answer, where PROTOCOL §1 says append-only."""

import json
from itertools import pairwise

import pytest

from proxy.wire.body import split_body
from proxy.wire.headers import find_header
from proxy.wire.identity import Item, count_preamble
from tests.support.client_turns import CLIENTS, COMPACTING, REWRITING, turns
from tests.support.clients import Request

each_client = pytest.mark.parametrize("client", CLIENTS)


def read_chain(request: Request) -> list[Item]:
    """The request's items behind the preamble that are part of identity."""
    split = split_body(request.body, request.format.items_key)
    assert split is not None
    items = request.format.read_items(request.body, split.items)
    return [item for item in items[count_preamble(items) :] if item.form]


def read_reply(request: Request) -> list[Item]:
    (reply,) = request.format.read_reply(request.answer)
    return [item for item in reply if item.form]


def list_main(client: str) -> list[Request]:
    found = [request for request in turns(client) if request.kind == "main"]
    assert len(found) >= 3
    return found


def extends(request: Request, earlier: Request) -> bool:
    known = [*read_chain(earlier), *read_reply(earlier)]
    return read_chain(request)[: len(known)] == known


@pytest.mark.parametrize("client", [name for name in CLIENTS if name not in REWRITING])
def test_each_main_request_extends_the_one_before_and_its_answer(client: str) -> None:
    main = list_main(client)
    steps = [extends(later, earlier) for earlier, later in pairwise(main)]
    assert steps == [True] * (len(steps) - 1) + [client not in COMPACTING]


@pytest.mark.parametrize("client", COMPACTING)
def test_a_compacted_history_begins_anew(client: str) -> None:
    *_, before, last = list_main(client)
    assert len(read_chain(last)) < len(read_chain(before))


def list_having(*kinds: str) -> list[str]:
    """The clients that make requests of one of these kinds."""
    return [client for client in CLIENTS if any(request.kind in kinds for request in turns(client))]


@pytest.mark.parametrize("client", [client for client in list_having("compaction") if client != "aider"])
def test_the_clients_own_compaction_extends_its_turns(client: str) -> None:
    requests = turns(client)
    place = next(place for place, request in enumerate(requests) if request.kind == "compaction")
    *_, last = [request for request in requests[:place] if request.kind == "main"]
    assert extends(requests[place], last)


@pytest.mark.parametrize("client", list_having("side", "subagent"))
def test_side_calls_and_subagents_extend_nothing(client: str) -> None:
    requests = turns(client)
    others = [request for request in requests if request.kind in ("side", "subagent")]
    assert not any(extends(other, main) for other in others for main in requests if main.kind == "main")


def test_aider_extends_only_its_own_words() -> None:
    main = list_main("aider")
    chains = [[item.form for item in read_chain(request)] for request in main]
    assert not any(extends(later, earlier) for earlier, later in pairwise(main))
    assert chains[2][:2] == chains[1][:2]
    assert set(chains[0]) < set(chains[1]) < set(chains[2])


def test_references_point_at_what_answers_brought() -> None:
    sent: set[str] = set()
    for request in list_main("vercel-ai-responses"):
        references = [item.reference for item in read_chain(request) if item.reference]
        assert set(references) == sent
        sent |= {str(item["id"]) for item in json.loads(json.dumps(request.answer))["output"]}


@each_client
def test_calls_are_answered_by_their_ids(client: str) -> None:
    made: set[str] = set()
    for request in list_main(client):
        assert {call for item in read_chain(request) for call in item.results} <= made
        made |= {call for item in read_reply(request) for call in item.calls}
    assert bool(made) == (client != "aider")


@each_client
def test_two_conversations_begin_with_the_same_bytes_and_part_with_the_first_answer(client: str) -> None:
    one, other = turns(client, "s1"), turns(client, "s2")
    assert [request.kind for request in one] == [request.kind for request in other]
    assert read_chain(one[0]) == read_chain(other[0])
    if client not in ("codex", "claude-code"):  # these name themselves in the body too
        assert one[0].body == other[0].body
    if client != "aider":
        assert read_chain(one[3]) != read_chain(other[3])


@pytest.mark.parametrize(
    ("client", "name"),
    [("opencode", b"x-session-id"), ("codex", b"thread-id"), ("claude-code", b"x-claude-code-session-id")],
)
def test_clients_that_name_their_conversation_do_so_in_every_call(client: str, name: bytes) -> None:
    for request in turns(client):
        assert find_header(request.headers, name).startswith(b"s1")
    assert {find_header(request.headers, name) for request in turns(client) if request.kind == "main"} == {b"s1"}


@pytest.mark.parametrize("client", sorted(set(CLIENTS) - {"opencode", "codex", "claude-code"}))
def test_other_clients_name_nothing(client: str) -> None:
    assert all(b"s1" not in value for request in turns(client) for _, value in request.headers)


def test_markers_hop_and_lists_collapse() -> None:
    main = list_main("claude-code")
    assert all(request.body.count(b'"cache_control"') == 2 for request in main)
    bodies = [json.loads(request.body)["messages"] for request in main]
    assert bodies[1][0]["content"] == bodies[0][0]["content"][0]["text"]
    assert [message["role"] for message in bodies[3]].count("system") == 1
