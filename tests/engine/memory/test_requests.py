"""Memory that somebody asked for: made behind the next response, once, and after a restart, too."""

from typing import cast

import pytest

from proxy.engine.durability import DurabilityWaiter
from proxy.engine.memory.compaction import MemoryCompaction, MemoryRequests
from proxy.model.exchange import Headers
from proxy.model.memory import MemoryOrder, OrderKind
from proxy.store.sqlite.archive import SqliteArchive
from tests.support.compacting import Workshop
from tests.support.engine import JSON, ScriptedResponse
from tests.support.managing import Message
from tests.support.remembering import make_memory, make_turn, report_with_facts
from tests.support.talking import Talk

SNAPSHOT: Headers = ((b"x-palimpsest-strategy", b"snapshot"),)


class Session:
    """A session far below its ceiling, whose turns are short."""

    def __init__(self, strategy: Headers = SNAPSHOT) -> None:
        self.shop = Workshop(report_with_facts, ceiling=100_000)
        self.strategy = strategy
        self.history: list[Message] = [{"role": "system", "content": "You are an agent."}]
        self.turns = 0
        self.follow()

    def follow(self) -> None:
        """Carry out orders, as at the start of a server."""
        shop = self.shop
        self.compaction: MemoryCompaction = make_memory(shop)
        self.requests = MemoryRequests(self.compaction, shop.bus)

    async def take_turn(self, steps: int = 2) -> list[Message]:
        """One turn, with a call at its end; what was sent."""
        self.turns += 1
        turn = make_turn(self.turns, f"Do task {self.turns}.", steps)
        self.history += turn[:-1]
        sent = await self.shop.ask(self.history, self.strategy)
        self.history.append(turn[-1])
        await self.shop.settle()
        return sent

    async def take_turns(self, count: int) -> None:
        for _ in range(count):
            await self.take_turn()

    async def order(self, kind: OrderKind) -> None:
        await self.compaction.memory.order(self.shop.session, kind)

    async def list_orders(self) -> list[str]:
        stored = await self.shop.log.load_memory(self.shop.session)
        return [order.kind for _, order in stored.orders]

    async def list_covered(self) -> list[tuple[int, int]]:
        stored = await self.shop.log.load_memory(self.shop.session)
        return [(entry.first_turn, entry.last_turn) for _, entry in stored.entries]


async def test_a_snapshot_is_made_behind_the_next_response_and_sent_with_the_request_after_it() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    assert await session.take_turn() == session.history[:-1]
    assert await session.list_covered() == [(1, 8)] and not session.shop.epochs
    sent = await session.take_turn()
    assert "[MEMORY:EPISODIC]" in str(sent[1]["content"]) and len(sent) == len(session.history) - 30
    (epoch,) = session.shop.epochs
    assert epoch.why == "memory" and epoch.tokens_after < epoch.tokens_before
    assert await session.list_orders() == ["request", "clear"]


async def test_it_is_done_once() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    await session.take_turns(6)
    assert len(session.shop.epochs) == 1 and await session.list_covered() == [(1, 8)]


async def test_an_order_that_was_taken_back_does_nothing() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    await session.order("clear")
    await session.take_turns(3)
    assert not session.shop.epochs and not await session.list_covered()


async def test_to_forget_all_memory_takes_it_back_too() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    await session.order("reset")
    await session.take_turns(3)
    assert not session.shop.epochs and not await session.list_covered()


async def test_an_order_outlives_a_restart() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    session.shop.bus.unsubscribe(session.requests.note_exchange)
    session.shop.bus.unsubscribe(session.requests.note_plan)
    session.follow()
    await session.compaction.memory.load_requests()
    await session.take_turns(2)
    assert len(session.shop.epochs) == 1 and await session.list_covered() == [(1, 8)]


@pytest.mark.parametrize("strategy", [b"epochs", b"turns"])
async def test_with_other_strategies_memory_is_made_and_nothing_begins_anew(strategy: bytes) -> None:
    session = Session(((b"x-palimpsest-strategy", strategy),))
    await session.take_turns(4)
    epochs = len(session.shop.epochs)
    await session.order("request")
    await session.take_turn()
    assert await session.list_covered() == [(1, 4)]
    assert not session.shop.remembered.is_due(session.shop.session)
    assert "[MEMORY" not in str(await session.take_turn())
    assert (strategy == b"turns") == (len(session.shop.epochs) > epochs)


async def test_calls_that_failed_wait_for_the_next_response() -> None:
    session = Session()
    await session.take_turns(8)
    await session.order("request")
    failed = ScriptedResponse(b'{"error":{"message":"no"}}', status=500, headers=JSON, ending="whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.compacting.spell_answer", lambda reply, wire: reply)
        patch.setattr("tests.support.compacting.say", lambda *_, **__: failed)
        await session.shop.call([*session.history, *make_turn(9, "Do task 9.")[:-1]], SNAPSHOT)
        await session.shop.settle()
    assert not await session.list_covered()


async def test_where_there_is_nothing_to_make_memory_of_the_order_ends() -> None:
    session = Session()
    await session.take_turn()
    await session.order("request")
    session.history.append({"role": "user", "content": "And?"})
    session.history = session.history[:1] + session.history[-1:]
    await session.shop.ask(session.history, SNAPSHOT)
    await session.shop.settle()
    assert await session.list_orders() == ["request", "clear"] and not await session.list_covered()


async def test_the_log_knows_which_sessions_were_asked() -> None:
    talk = Talk()
    log = cast(SqliteArchive, talk.log)
    await talk.ask([{"role": "user", "content": "hello"}])

    async def order(kind: OrderKind) -> list[str]:
        gate = DurabilityWaiter(log, 60_000)
        assert await gate.confirm(log.append(MemoryOrder(talk.session, kind, "", 1)), 60.0)
        return list(await log.list_memory_requests())

    assert await order("request") == [talk.session]
    assert await order("clear") == []
    assert await order("request") == [talk.session]
    assert await order("reset") == []
    await talk.close()
