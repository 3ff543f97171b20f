"""The path of a session: its newest conversation on any wire, its turns, and which call brought each message."""

import json
from typing import Any

import pytest

from proxy.engine.memory.path import load_path
from proxy.model.errors import NotFound
from proxy.read.memory import load_report, load_tools
from tests.support.compacting import WIRES, Workshop, fail
from tests.support.managing import Message
from tests.support.remembering import make_memory, make_turn, talk

TEXTS = ("Never push to main. Fix the parser.", "Now the lexer.", "And the docs.")


@pytest.mark.parametrize("wire", WIRES)
async def test_traces_and_turns_are_the_same_on_every_wire(wire: str) -> None:
    shop = Workshop(ceiling=100_000, wire=wire)
    await talk(shop, TEXTS)
    path = await load_path(shop.log, shop.session)
    assert [turn.id for turn in path.turns] == ["turn_0001", "turn_0002", "turn_0003"]
    assert len(path.nodes) == len(path.raws) == len(path.messages) == path.turns[-1].stop
    found = [(each.trace_type, each.turn_id) for each in path.list_traces()]
    step = ["tool_call", "tool_result"]
    kinds = ["user", *step, *step, "assistant"]
    assert found == [(kind, f"turn_000{n}") for n in (1, 2, 3) for kind in kinds]
    tools = await load_tools(shop.log, shop.session)
    assert [json.loads(bytes(each.arguments)) for each in tools][:2] == [{"command": "run 1 0"}, {"command": "run 1 1"}]
    made = await make_memory(shop).compact(shop.session)
    assert made.items.semantic[0].fact == "Never push to main." and made.items.episodic


async def test_each_trace_names_the_call_that_brought_it_and_its_time() -> None:
    shop = Workshop(ceiling=100_000)
    history: list[Message] = []
    for n, text in enumerate(TEXTS, 1):
        shop.clock.advance(100)
        turn = make_turn(n, text, steps=1)
        await shop.ask([*history, *turn[:-1]])
        history += turn
    path = await load_path(shop.log, shop.session)
    found = [(each.source_event, each.ts - 1_700_000_000, each.trace_type) for each in path.list_traces()]
    assert found == [
        (f"x{n}", 100.0 * n, kind) for n in (1, 2, 3) for kind in ("user", "tool_call", "tool_result", "assistant")
    ]
    assert path.list_traces()[-1].content == "Looking."


async def test_the_tail_is_the_turns_before_the_current_one() -> None:
    shop = Workshop(ceiling=100_000)
    await talk(shop, TEXTS)
    path = await load_path(shop.log, shop.session)
    assert [turn.number for turn in path.list_tail(1)] == [2]
    assert [turn.number for turn in path.list_tail(9)] == [1, 2]
    assert path.list_tail(0) == ()


async def test_an_unknown_session_has_no_path() -> None:
    with pytest.raises(NotFound):
        await load_path(Workshop(ceiling=100_000).log, "nobody")


async def test_calls_that_cannot_be_read_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(ceiling=100_000)
    await talk(shop, TEXTS)
    load = shop.log.load_request

    async def lose(exchange: str) -> bytes:
        if exchange == "x3":
            raise NotFound("gone")
        found: bytes = await load(exchange)
        return found

    monkeypatch.setattr(shop.log, "load_request", lose)
    path = await load_path(shop.log, shop.session)
    assert (path.row.id, len(path.turns)) == ("x2", 2)

    async def lose_all(exchange: str) -> bytes:
        raise NotFound("gone")

    monkeypatch.setattr(shop.log, "load_request", lose_all)
    with pytest.raises(NotFound, match="no conversation"):
        await load_path(shop.log, shop.session)


async def test_one_looks_back_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(ceiling=100_000)
    await talk(shop, TEXTS)

    async def read_back(*_: Any) -> Any:
        rows = await shop.log.list_calls(shop.session, 0, 1)
        for row in [*rows] * 300:
            yield row

    monkeypatch.setattr("proxy.engine.memory.path.read_back", read_back)
    monkeypatch.setattr(shop.log, "load_request", shop.log.find_key)  # which finds no session of this name
    with pytest.raises(NotFound, match="no conversation"):
        await load_path(shop.log, shop.session)


async def test_what_was_never_answered_is_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(ceiling=100_000)

    async def refuse(*_: Any) -> Any:
        return fail(b"")

    monkeypatch.setattr(shop.model, "send", refuse)
    await shop.call([{"role": "user", "content": "Never push to main."}])
    await shop.settle()
    report = await load_report(shop.log, shop.session)
    assert [(each.content, each.source_event) for each in report.raw] == [("Never push to main.", "x1")]
