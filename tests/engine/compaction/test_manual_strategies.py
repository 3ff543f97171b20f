"""A session of another strategy than epochs that a person compacts: in its own view, by the rules of its strategy."""

import json
from typing import Any

import pytest

from proxy.context.conversation import SnapshotPolicy
from proxy.engine.memory.snapshots import SnapshotMemory
from proxy.model.errors import Conflict
from proxy.model.exchange import Headers
from tests.support.compacting import Workshop
from tests.support.managing import Message
from tests.support.manual_compaction import compact
from tests.support.remembering import make_memory, make_turn, report_with_facts


async def carry(strategy: bytes, turns: int = 9) -> tuple[Workshop, list[Message], Headers]:
    shop, headers = Workshop(report_with_facts, ceiling=100_000), ((b"x-palimpsest-strategy", strategy),)
    memory = make_memory(shop).memory
    shop.controller.chain.memory = SnapshotMemory(memory=memory, worker=shop.worker, policy=SnapshotPolicy())
    history: list[Message] = [{"role": "system", "content": "You are an agent."}]
    for n in range(turns):
        turn = make_turn(n, f"Do task {n}.")
        await shop.ask([*history, *turn[:-1]], headers)
        history += turn
    return shop, history, headers


async def go_on(shop: Workshop, history: list[Message], headers: Headers) -> list[Any]:
    await shop.ask([*history, {"role": "user", "content": "And now?"}], headers)
    sent: list[Any] = json.loads(shop.model.sent[-1])["messages"]
    return sent


async def test_a_snapshot_begins_anew_from_memory() -> None:
    shop, history, headers = await carry(b"snapshot")
    found = await compact(shop)
    assert found.epoch is not None and (found.epoch.view, found.epoch.why) == ("gpt-4o (snapshot)", "manual")
    sent = await go_on(shop, history, headers)
    assert "[MEMORY:EPISODIC]" in sent[1]["content"] and len(sent) < len(history)


async def test_turns_ask_no_model() -> None:
    shop, _, _ = await carry(b"turns")
    with pytest.raises(Conflict, match="there is nothing to compact"):
        await compact(shop)
    assert not shop.model.asked and shop.epochs
