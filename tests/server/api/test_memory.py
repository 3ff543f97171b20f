"""The API of memory: what it shows, what it changes, and what it refuses."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.routing import Router

from proxy.context.budget import BudgetPolicy
from proxy.context.conversation import SnapshotPolicy
from proxy.engine.models import PriceList
from proxy.model.card import Card
from proxy.read.savings import SavingsInputs
from proxy.server.api.memory import MemoryApi
from tests.support.compacting import Workshop
from tests.support.managing import Message
from tests.support.remembering import make_memory, make_turn, report_with_facts, talk

TEXTS = (
    "Never push to main. Fix the parser.",
    "Now the lexer.",
    "I prefer short names. Now the printer.",
    "And the docs.",
)
INPUTS = SavingsInputs(PriceList(lambda upstream, model: Card(window=8000)), BudgetPolicy(4000))
SYSTEM: Message = {"role": "system", "content": "You are an agent."}


class Asked:
    """An API over a session of four turns."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        memory = make_memory(shop)
        app = Router(list(MemoryApi(memory.memory, memory, SnapshotPolicy(), INPUTS).list_routes()))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x/api/sessions")

    async def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """The document at a path."""
        got = await self.refuse(path, method, body)
        assert got[0] == 200, got
        return got[1]

    async def refuse(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Status and document of a response."""
        content = b"" if body is None else json.dumps(body).encode()
        got = await self.client.request(method, f"/{self.shop.session[:12]}{path}", content=content)
        return got.status_code, got.json()


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await talk(shop, TEXTS, system=SYSTEM)
    api = Asked(shop)
    yield api
    await api.client.aclose()


async def test_items_are_listed_by_type_turn_and_number(asked: Asked) -> None:
    await asked.ask("/memory/compact", "POST")
    found = await asked.ask("/memory")
    assert found["counts"] == {"raw": 24, "episodic": 1, "semantic": 4}
    assert (len(found["raw"]), len(found["episodic"]), len(found["semantic"]), found["turns"]) == (24, 1, 4, 4)
    only = await asked.ask("/memory?type=raw&turn=2&limit=2")
    assert [each["content"] for each in only["raw"]] == [found["raw"][10]["content"], "Turn 2 is done."]
    assert only["episodic"] == only["semantic"] == [] and only["counts"] == {"raw": 6, "episodic": 1, "semantic": 0}
    assert [each["fact"] for each in (await asked.ask("/memory?type=semantic&turn=turn_0001"))["semantic"]] == [
        "Never push to main."
    ]
    assert (await asked.ask("/memory?type=episodic&turn=4"))["episodic"] == []


async def test_calls_of_tools_are_shown_with_their_results(asked: Asked) -> None:
    every = (await asked.ask("/tools"))["items"]
    assert [each["status"] for each in every] == ["SUCCESS"] * 8
    assert [each["arguments"] for each in (await asked.ask("/tools?turn=3"))["items"]] == [
        {"command": "run 3 0"}, {"command": "run 3 1"},
    ]  # fmt: skip


async def test_a_bundle_has_what_a_model_is_shown(asked: Asked) -> None:
    empty = await asked.ask("/memory/bundle")
    assert empty == {"episodic": [], "semantic": [], "text": ""}
    await asked.ask("/memory/compact", "POST", {"turn_ids": ["turn_0001"], "level": 3})
    bundle = await asked.ask("/memory/bundle?max_semantic=1&max_episodic=0")
    assert (bundle["episodic"], [each["id"] for each in bundle["semantic"]]) == ([], ["sem_0001"])
    assert bundle["text"] == "[MEMORY:SEMANTIC]\n- (constraint) Never push to main."


async def test_a_snapshot_begins_anew_from_memory(asked: Asked) -> None:
    await asked.ask("/memory/compact", "POST")
    made = await asked.ask("/memory/snapshot?raw_tail_turns=1")
    assert made["turns"] == ["turn_0003", "turn_0004"] and made["episodic"] == ["ep_0001"]
    messages = made["messages"]
    assert messages[0] == SYSTEM and messages[1]["content"].startswith("[MEMORY:EPISODIC]\n1) ")
    assert messages[2]["content"] == TEXTS[2] and len(messages) == 2 + 6 + 6
    assert [each["content"] for each in messages].count(TEXTS[3]) == 1
    told = await asked.ask("/memory/snapshot?raw_tail_turns=1&tail=text")
    assert "[RECENT TURNS]\nTurn 3:\n  User: I prefer short names." in told["messages"][1]["content"]
    assert told["messages"][2:] == messages[8:]
    none = await asked.ask("/memory/snapshot?raw_tail_turns=0&tail=text&max_semantic=0")
    assert "[RECENT" not in none["messages"][1]["content"] and none["turns"] == ["turn_0004"]
    other = await asked.ask("/memory/snapshot?wire=anthropic_messages")
    assert other["wire"] == "anthropic_messages" and other["system"] == SYSTEM["content"]
    assert other["messages"][0]["content"][0]["text"].startswith("[MEMORY:EPISODIC]")


async def test_a_late_result_is_not_sent_without_its_call() -> None:
    shop = Workshop(ceiling=100_000)
    call = make_turn(1, "go", steps=1)[:2]
    late = {**make_turn(1, "go", steps=1)[2], "content": "late"}
    words: list[Message] = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    await shop.ask([*call, *words[:2], late, words[2]])
    api = Asked(shop)
    made = await api.ask("/memory/snapshot?raw_tail_turns=1")
    assert [each["role"] for each in made["messages"]] == ["user", "assistant", "user", "assistant"]
    assert "late" in [each["content"] for each in (await api.ask("/memory/snapshot"))["messages"]]
    await api.client.aclose()


async def test_without_memory_a_snapshot_has_only_the_tail(asked: Asked) -> None:
    messages = (await asked.ask("/memory/snapshot?raw_tail_turns=1"))["messages"]
    assert [each["content"] for each in messages[:2]] == [SYSTEM["content"], TEXTS[2]]


async def test_the_context_is_what_would_be_sent_now_and_in_another_format(asked: Asked) -> None:
    found = await asked.ask("/context")
    window = (short := await asked.ask("/context?messages=false"))["window"]
    assert "messages" not in short and window == found["window"] and short["exchange"] == found["exchange"]
    assert (window["window"], window["ceiling"]) == (8000, 4000)
    assert {"system", "user", "assistant", "output"} <= {kind["kind"] for kind in window["kinds"]}
    assert (found["wire"], found["epoch"], found["messages"][0]) == ("chat_completions", "", SYSTEM)
    assert found["messages"][-1] == {"role": "assistant", "content": "Looking."}
    assert len(found["messages"]) == 1 + 6 * 4
    items = await asked.ask("/context?wire=responses")
    assert items["instructions"] == SYSTEM["content"]
    assert [each["type"] for each in items["input"][:4]] == [
        "message", "function_call", "function_call_output", "function_call",
    ]  # fmt: skip


@pytest.mark.parametrize(("wire", "member"), [("anthropic_messages", "system"), ("responses", "instructions")])
async def test_instructions_stay_beside_the_messages_and_go_along_into_another_format(wire: str, member: str) -> None:
    shop = Workshop(ceiling=100_000, wire=wire)
    await talk(shop, TEXTS[:2], system=SYSTEM)
    api = Asked(shop)
    own = await api.ask("/context")
    assert SYSTEM["content"] in json.dumps(own[member]) and own["wire"] == wire
    chat = await api.ask("/context?wire=chat_completions")
    assert chat["messages"][0] == SYSTEM and [each["role"] for each in chat["messages"][1:4]] == [
        "user", "assistant", "tool",
    ]  # fmt: skip
    await api.client.aclose()
    bare = Workshop(ceiling=100_000, wire=wire)
    await talk(bare, TEXTS[:1])
    api = Asked(bare)
    assert (await api.ask("/context?wire=chat_completions"))["messages"][0]["role"] == "user"
    await api.client.aclose()


async def test_memory_is_asked_for_and_that_is_taken_back(asked: Asked) -> None:
    assert (await asked.ask("/memory/compact", "POST", {"when": "later"}))["is_requested"]
    assert (await asked.ask("/memory"))["is_requested"]
    assert not (await asked.ask("/memory/compact", "POST", {"when": "never"}))["is_requested"]
    assert not (await asked.ask("/memory"))["is_requested"]


async def test_items_are_pinned_retracted_and_forgotten(asked: Asked) -> None:
    await asked.ask("/memory/compact", "POST")
    assert await asked.ask("/memory/sem_0004", "POST") | {"session": ""} == {
        "session": "", "item": "sem_0004", "action": "pin",
    }  # fmt: skip
    await asked.ask("/memory/sem_0001", "DELETE")
    bundle = await asked.ask("/memory/bundle")
    assert [each["id"] for each in bundle["semantic"]] == ["sem_0004", "sem_0002", "sem_0003"]
    await asked.ask("/memory/sem_0004", "POST", {"action": "unpin"})
    assert (await asked.ask("/memory/bundle"))["semantic"][0]["id"] == "sem_0002"
    assert (await asked.ask("/memory/reset", "POST"))["is_reset"]
    assert (await asked.ask("/memory/bundle"))["text"] == ""


IMPOSSIBLE: list[tuple[str, str, Any, int, str]] = [
    ("/memory?type=raws", "GET", None, 400, "type is one of episodic, raw, semantic"),
    ("/memory?turn=9", "GET", None, 400, "turn is 1 to 4"),
    ("/memory?turn=turn_0000", "GET", None, 400, "turn is 1 to 4"),
    ("/memory?limit=0", "GET", None, 400, "limit is 1 to"),
    ("/memory?branch=ffff", "GET", None, 404, "no branch begins with"),
    ("/memory?page=1", "GET", None, 400, "this path takes"),
    ("/memory/bundle?max_semantic=1001", "GET", None, 400, "max_semantic is 0 to 1000, not 1001"),
    ("/memory/snapshot?tail=words", "GET", None, 400, "tail is one of messages, text"),
    ("/memory/snapshot?wire=smoke", "GET", None, 400, "wire is one of chat_completions"),
    ("/context?wire=smoke", "GET", None, 400, "wire is one of chat_completions"),
    ("/tools?turn=x", "GET", None, 400, "turn is 1 to 4"),
    ("/memory/compact", "POST", {"turn_ids": ["turn_0099"]}, 400, "there is no turn"),
    ("/memory/compact", "POST", {"turns": []}, 400, "the body is not valid"),
    ("/memory/compact", "POST", {"when": "tomorrow"}, 400, "the body is not valid"),
    ("/memory/compact", "DELETE", None, 405, "DELETE is not allowed"),
    ("/memory/sem_0001", "POST", None, 404, "no item"),
    ("/memory/rt_0001", "DELETE", None, 400, "can be pinned and retracted"),
    ("/memory/sem_0001", "POST", {"action": "praise"}, 400, "the body is not valid"),
    ("/memory/reset", "GET", None, 405, "it takes POST"),
]


async def test_what_cannot_be_done_is_said(asked: Asked) -> None:
    for path, method, body, status, what in IMPOSSIBLE:
        got = await asked.refuse(path, method, body)
        assert got[0] == status and what in got[1]["error"]["message"], got


async def test_an_unknown_session_and_one_without_a_conversation_are_404() -> None:
    shop = Workshop(ceiling=100_000)
    await shop.ask([{"role": "user", "content": "hi"}])
    api = Asked(shop)
    for path in ("/memory", "/tools", "/context", "/memory/bundle"):
        assert (await api.client.get(f"/zzzz{path}")).status_code == 404
    await api.client.aclose()
