"""Turns that were made elsewhere, in an engine as it is wired: what becomes of them, and what is to be sent next."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.assembly import Engine, build_engine
from proxy.config import load_settings
from proxy.engine.memory.reports import load_sendable
from proxy.engine.models import PriceList
from proxy.engine.reports.savings import SavingsInputs
from proxy.engine.reports.savings_report import load_report
from proxy.engine.turns.calls import make_call
from proxy.engine.turns.recording import KeptTurn, NewSession, make_turn
from proxy.model.errors import BadRequest, Conflict, StoreUnavailable
from proxy.model.events import CompactionStarted, EpochOpened, ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, SessionKey
from proxy.model.results import TokenUsage
from tests.support.compacting import give_report, is_own
from tests.support.managing import MODEL, Message, make_history
from tests.support.scripted import ScriptedUpstream, Wire, answer
from tests.support.strict_messages import find_problems, list_parts

CEILING = 4000
JSON = "Content-Type: application/json"


class Program:
    """A program that makes its calls elsewhere, or through us, and the engine that it tells of them."""

    def __init__(self, data: Path, upstream: ScriptedUpstream, **flags: Any) -> None:
        upstreams = [{"name": "scripted", "base_url": f"{upstream.url}/v1", "api_key": "sk-ours-0123456789"}]
        self.settings = load_settings(
            None, {"data": str(data), "upstreams": upstreams, "budget.ceiling_tokens": CEILING, **flags}
        )
        self.upstream = upstream
        self.sent: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.words = 0
        self.key: SessionKey
        self.engine: Engine
        upstream.script = self._serve

    async def _serve(self, wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                request = await wire.read_request()
                body = json.loads(request.body)
                if is_own(request.body):
                    self.asked.append(body)
                    wire.send(answer(give_report(request.body), JSON))
                    continue
                self.sent.append(body)
                self.words += 1
                said = {"role": "assistant", "content": f"word {self.words}"}
                choice = {"index": 0, "message": said, "finish_reason": "stop"}
                wire.send(answer(json.dumps({"id": "c", "choices": [choice]}).encode(), JSON))

    async def open(self) -> None:
        """Start the engine."""
        self.engine = await build_engine(self.settings)

    async def reopen(self) -> None:
        """Stop the engine, and start it again."""
        await self.engine.close()
        await self.open()

    async def begin(self, **wanted: str) -> None:
        """Begin the session."""
        self.key = await self.engine.turns.create(NewSession(MODEL, "told", **wanted))

    async def record(self, asked: Any, answered: Any, once: str = "", **more: Any) -> KeptTurn:
        """Record a turn."""
        return await self.engine.turns.record(self.key, make_turn(asked, answered, **more), once)

    async def context(self, wire: str = "") -> list[Message]:
        """The messages to send next."""
        document = await load_sendable(
            self.engine.archive, self.engine.manual_compaction, self.key.id, self._inputs, wire=wire
        )
        raw = document.input if wire == "responses" else document.messages
        assert isinstance(raw, bytes) or raw is not None
        found: list[Message] = json.loads(bytes(raw))  # type: ignore[arg-type]
        return found

    async def send(self, messages: Sequence[Message]) -> None:
        """Make a call through us, whose history we hold."""
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        headers: Headers = ((b"x-palimpsest-session", b"told"), (b"x-palimpsest-history", b"server"))
        request = ClientRequest("POST", b"/v1/chat/completions", headers, body)
        response = await make_call(self.engine.exchanges, self.engine.tasks, request, "chat_completions")
        assert (response.status, response.session) == (200, self.key.id)

    async def settle(self) -> None:
        """Wait for what goes on behind calls."""
        while waiting := [task for task in self.engine.tasks.held if task is not asyncio.current_task()]:
            await asyncio.wait(waiting)

    @property
    def _inputs(self) -> SavingsInputs:
        prices = PriceList(self.engine.models.card, self.settings.providers())
        return SavingsInputs(prices, self.settings.budget_policy())


@contextlib.asynccontextmanager
async def programming(data: Path, **flags: Any) -> AsyncIterator[Program]:
    """A program with a session that was begun."""
    async with ScriptedUpstream() as upstream:
        program = Program(data, upstream, **flags)
        await program.open()
        try:
            await program.begin(system_prompt="You are an agent.")
            yield program
            assert (await program.engine.archive.verify()).faults == ()
        finally:
            await program.engine.close()


def list_turns(steps: int) -> list[tuple[list[Message], Message]]:
    """The calls of an agent: what was sent each time, and what came back."""
    history = make_history(steps, 300)[1:]
    turns = []
    for place in range(1, len(history) - 1, 2):
        turns.append(([history[place - 1]], history[place]))
    return turns


def find_faults(messages: Sequence[Message]) -> list[str]:
    """What the API of chat completions would refuse: calls without their results behind them, and results of others."""
    faults, waiting = list[str](), list[str]()
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                faults.append(f"{place}: a result without a call")
            waiting = [each for each in waiting if each != message["tool_call_id"]]
            continue
        faults += [f"{place}: {id} has no result" for id in waiting]
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if message["role"] == "system" and place:
            faults.append(f"{place}: a system prompt")
    return faults


def answer_calls(message: Message) -> Message:
    """Results of the calls of the last message of a context of Anthropic's."""
    ids = [each["id"] for each in list_parts(message) if each["type"] == "tool_use"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "x"} for id in ids]}


async def test_a_long_session_opens_epochs_and_its_context_stays_below_the_ceiling(tmp_path: Path) -> None:
    async with programming(tmp_path) as program:
        opened: list[EpochOpened] = []
        program.engine.bus.subscribe(EpochOpened, opened.append)
        own, kept = 0, []
        for asked, answered in list_turns(80):
            kept.append(await program.record(asked, answered))
            own += len(json.dumps([*asked, answered]))
            messages = await program.context()
            assert messages[0] == {"role": "system", "content": "You are an agent."}
            assert messages[-1] == answered
            assert find_faults(messages) == []
            raws = [json.dumps(each).encode() for each in messages]
            assert await program.engine.turns.count(program.key, MODEL, raws) < CEILING
        assert len(opened) >= 2 and own / 4 > 2 * CEILING
        assert any(each.result.compaction_triggered for each in kept)
        assert not all(each.result.compaction_triggered for each in kept)
        assert program.sent == program.asked == []
        other = await program.context("anthropic_messages")
        assert list(find_problems({"model": "m", "messages": [*other, answer_calls(other[-1])], "max_tokens": 9})) == []
        items = await program.context("responses")
        called = [each["call_id"] for each in items if each["type"] == "function_call"]
        assert [each["call_id"] for each in items if each["type"] == "function_call_output"] == called[:-1]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_context_is_what_a_call_through_us_would_send(tmp_path: Path, is_restarted: bool) -> None:
    async with programming(tmp_path) as program:
        same, epochs = 0, 0
        for number, (asked, answered) in enumerate(list_turns(70)):
            if number % 4 == 3:
                before, known = await program.context(), await program.engine.archive.list_epochs(program.key.id)
                if is_restarted and number % 8 == 3:
                    await program.reopen()
                    assert await program.context() == before
                await program.send(asked)
                newest = await program.engine.archive.list_epochs(program.key.id)
                assert find_faults(before) == [] and program.sent[-1]["messages"][-1] == asked[-1]
                if len(newest) == len(known):
                    assert before == program.sent[-1]["messages"][:-1]
                    same, epochs = same + 1, len(newest)
                result = await program.context()
                assert result[-1] == {"role": "assistant", "content": f"word {program.words}"}
                await program.record("Go on.", answered)
            else:
                await program.record(asked, answered)
        assert same > 10 and epochs > 1
