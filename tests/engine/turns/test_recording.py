"""Turns that were made elsewhere, in an engine as it is wired: what becomes of them, and what is to be sent next."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.assembly import Engine, build_engine
from proxy.config import load_settings
from proxy.engine.models import PriceList
from proxy.engine.turns.calls import make_call
from proxy.engine.turns.recording import KeptTurn, SessionRequest, make_turn
from proxy.model.errors import BadRequest, Conflict, StoreUnavailable
from proxy.model.events import CompactionTriggeredEvent, EpochOpened, ExchangeRecorded
from proxy.model.exchange import ClientRequest, Headers, SessionKey
from proxy.model.results import TokenUsage
from proxy.read.memory import SendableDocument, load_sendable
from proxy.read.savings import SavingsInputs, load_savings
from proxy.wire import FORMATS
from proxy.wire.summary_request import make_target
from tests.support.compacting import give_report, is_own
from tests.support.holding import KEY, WIRES, Wire, user
from tests.support.holding import answer as give_answer
from tests.support.managing import MODEL, Message, make_history
from tests.support.scripted import ScriptedUpstream, answer
from tests.support.scripted import Wire as Connection
from tests.support.strict_messages import find_problems, list_parts

CEILING = 4000
JSON = "Content-Type: application/json"


class Program:
    """A program that makes its calls elsewhere, or through us, and the engine that it tells of them."""

    def __init__(self, data: Path, upstream: ScriptedUpstream, **flags: Any) -> None:
        upstreams = [
            {"name": "scripted", "base_url": f"{upstream.url}/v1", "api_key": "sk-ours-0123456789", "cache": "prefix"}
        ]
        self.settings = load_settings(
            None, {"data": str(data), "upstreams": upstreams, "budget.ceiling_tokens": CEILING, **flags}
        )
        self.upstream = upstream
        self.sent: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.words = 0
        self.wire: Wire = "chat_completions"
        self.calls: tuple[str, ...] = ()  # those of the next answers
        self.key: SessionKey
        self.engine: Engine
        upstream.script = self._serve

    async def _serve(self, wire: Connection) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                request = await wire.read_request()
                if not request.body:  # which models there are: the end of the engine would wait for an answer
                    wire.send(answer(b'{"data":[]}', JSON))
                    continue
                body = json.loads(request.body)
                if is_own(request.body):
                    self.asked.append(body)
                    wire.send(answer(give_report(request.body), JSON))
                    continue
                self.sent.append(body)
                self.words += 1
                said = give_answer(self.wire, f"word {self.words}", *self.calls)
                for choice in said.get("choices", ()):
                    choice["message"] = {name: each for name, each in choice["message"].items() if name != "refusal"}
                wire.send(answer(json.dumps(said).encode(), JSON))

    async def open(self) -> None:
        """Start the engine."""
        self.engine = await build_engine(self.settings)

    async def reopen(self) -> None:
        """Stop the engine, and start it again."""
        await self.engine.close()
        await self.open()

    async def begin(self, **wanted: str) -> None:
        """Begin the session."""
        self.key = await self.engine.conversations.recorder.create(SessionRequest(MODEL, "told", **wanted))

    async def record(self, asked: Any, answered: Any, once: str = "", **more: Any) -> KeptTurn:
        """Record a turn."""
        return await self.engine.conversations.recorder.record(self.key, make_turn(asked, answered, **more), once)

    async def load(self, wire: str = "") -> SendableDocument:
        """What is to be sent next, as the API shows it."""
        log = self.engine.archive
        return await load_sendable(log, self.engine.context.memory.manual, self.key.id, self.inputs, wire=wire)

    async def context(self, wire: str = "") -> list[Message]:
        """The messages to send next."""
        document = await self.load(wire)
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

    @property
    def said(self) -> Message:
        """The message of the newest answer to a call through us."""
        return {"role": "assistant", "content": f"word {self.words}"}

    async def settle(self) -> None:
        """Wait for what goes on behind calls."""
        while waiting := [task for task in self.engine.tasks.running if task is not asyncio.current_task()]:
            await asyncio.wait(waiting)

    @property
    def inputs(self) -> SavingsInputs:
        """What reports need beside the log."""
        prices = PriceList(self.engine.models.card, self.settings.providers())
        return SavingsInputs(prices, self.settings.budget)


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


CALL = {"id": "c9", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c9", "content": "x y"}


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
    ids = [each["id"] for each in list_parts(dict(message)) if each["type"] == "tool_use"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "x"} for id in ids]}


async def test_a_long_session_opens_epochs_and_its_context_stays_below_the_ceiling(tmp_path: Path) -> None:
    async with programming(tmp_path, **{"compaction.auto": False}) as program:
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
            assert await program.engine.conversations.recorder.count(program.key, MODEL, raws) < CEILING
        assert len(opened) >= 2 and own / 4 > 2 * CEILING
        assert any(each.result.compaction_triggered for each in kept)
        assert not all(each.result.compaction_triggered for each in kept)
        assert program.sent == program.asked == []
        other = await program.context("anthropic_messages")
        assert list(find_problems({"model": "m", "messages": [*other, answer_calls(other[-1])], "max_tokens": 9})) == []
        items = await program.context("responses")
        called = [each["call_id"] for each in items if each["type"] == "function_call"]
        assert [each["call_id"] for each in items if each["type"] == "function_call_output"] == called[:-1]


async def test_a_context_shows_the_epoch_that_would_open_with_the_next_call(tmp_path: Path) -> None:
    async with programming(tmp_path, **{"compaction.auto": False}) as program:
        unopened, promised = 0, list[Message]()
        for number in range(16):
            words = " ".join(f"part {number} of {place}" for place in range(110))
            await program.record(f"Explain part {number}.", words)
            document = await program.load()
            messages = json.loads(bytes(document.messages))  # type: ignore[arg-type]
            raws = [json.dumps(each).encode() for each in messages]
            counted = await program.engine.conversations.recorder.count(program.key, MODEL, raws)
            assert counted < CEILING and abs((document.token_estimate or 0) - counted) < 100
            known = len(await program.engine.archive.list_epochs(program.key.id))
            assert messages[-1]["content"] == words
            is_due = document.epoch == "" and "[palimpsest" in json.dumps(messages)
            assert not promised or messages[: len(promised)] == promised  # the epoch that has opened is the one shown
            promised = messages if is_due else []
            unopened += is_due
            assert await program.context() == messages
            assert len(await program.engine.archive.list_epochs(program.key.id)) == known
            if is_due and unopened % 2:
                await program.send([user("Go on.")])
                assert program.sent[-1]["messages"] == [*messages, user("Go on.")]
                assert len(await program.engine.archive.list_epochs(program.key.id)) == known + 1
        assert unopened > 2 and len(await program.engine.archive.list_epochs(program.key.id)) >= unopened - 1


async def test_a_context_is_what_a_call_through_us_would_send(tmp_path: Path) -> None:
    """Before every second of the calls the engine is restarted."""
    async with programming(tmp_path) as program:
        same, epochs = 0, 0
        for number, (asked, answered) in enumerate(list_turns(70)):
            if number % 4 == 3:
                before, known = await program.context(), await program.engine.archive.list_epochs(program.key.id)
                if number % 8 == 3:
                    await program.reopen()
                    assert await program.context() == before
                await program.send(asked)
                newest = await program.engine.archive.list_epochs(program.key.id)
                assert find_faults(before) == [] and program.sent[-1]["messages"][-1] == asked[-1]
                if len(newest) == len(known):
                    assert before == program.sent[-1]["messages"][:-1]
                    same, epochs = same + 1, len(newest)
                result = await program.context()
                assert result[-1] == program.said
                await program.record("Go on.", answered)
            else:
                await program.record(asked, answered)
        assert same > 10 and epochs > 1


async def test_summaries_are_made_of_what_was_recorded_and_are_in_the_context(tmp_path: Path) -> None:
    flags = {"compaction.model": MODEL, "compaction.spend_fraction": 1.0, "budget.ceiling_tokens": 8000}
    async with programming(tmp_path, **flags) as program:
        began: list[CompactionTriggeredEvent] = []
        program.engine.bus.subscribe(CompactionTriggeredEvent, began.append)
        kept = []
        for asked, answered in list_turns(80):
            kept.append(await program.record(asked, answered))
            await program.settle()
        assert began and began[0].session == program.key.id
        assert program.asked and [each["model"] for each in program.asked] == [MODEL] * len(program.asked)
        assert any(each.result.compaction_triggered for each in kept)
        summaries = await program.engine.archive.list_summaries(program.key.id)
        report = next(each for each in summaries if each.level == 1)
        assert (report.model, report.session) == (MODEL, program.key.id)
        context = "".join(str(message["content"]) for message in await program.context())
        assert any(each.text[:60] in context for each in summaries if each.level == 1)


async def test_a_recorded_turn_teaches_nothing_of_upstreams_and_proves_no_credential(tmp_path: Path) -> None:
    async with programming(tmp_path) as program:
        ended: list[ExchangeRecorded] = []
        program.engine.bus.subscribe(ExchangeRecorded, ended.append)
        counter = program.engine.models.counter
        before = counter.find_ratio("scripted", MODEL)
        for asked, answered in list_turns(30):
            await program.record(asked, answered, tokens=TokenUsage(input=9, output=1))
        await program.settle()
        assert {each.kind for each in ended} == {"recorded"}
        assert counter.find_ratio("scripted", MODEL) == before
        assert not program.engine.tenants.is_proven(b"")
        assert not program.engine.tenants.is_proven(program.engine.tenants.identify(()).token)
        report = await load_savings(program.engine.archive, program.inputs)
        assert (report.estimate is None or report.estimate.tokens == 0) and program.sent == []


async def test_one_turn_at_a_time_and_one_that_was_begun_is_recorded(tmp_path: Path) -> None:
    async with programming(tmp_path) as program:
        recording = asyncio.create_task(program.record("first", "one"))
        await asyncio.sleep(0)
        recording.cancel()
        await asyncio.wait((recording,))
        results = await asyncio.gather(
            *(program.record(f"word {n}", "yes", f"key {n}") for n in range(4)), return_exceptions=True
        )
        assert {type(each) for each in results} <= {KeptTurn, Conflict}
        kept = [each for each in results if isinstance(each, KeptTurn)]
        said = [each["content"] for each in await program.context()]
        assert len(said) in (1 + 2 * len(kept), 3 + 2 * len(kept))


async def test_a_log_that_takes_nothing_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with programming(tmp_path) as program:
        await program.record("first", "one")
        broken = msgspec.structs.replace(program.engine.archive.health, problem="the disk is full")
        with monkeypatch.context() as patch:
            patch.setattr(type(program.engine.archive), "health", broken)
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                await program.record("second", "two")
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                await program.engine.conversations.recorder.create(SessionRequest(MODEL, "other"))
        await program.record("third", "three")
        assert [each["content"] for each in await program.context()][1:] == ["first", "one", "third", "three"]


@pytest.mark.parametrize("wire", WIRES)
async def test_turns_go_on_in_the_format_of_their_session_whoever_it_belongs_to(tmp_path: Path, wire: Wire) -> None:
    async with programming(tmp_path) as program:
        form, program.wire, program.calls = FORMATS[wire], wire, ("call_1", "call_2")
        body: dict[str, Any] = {"model": MODEL, form.items_key: [user("list")]}
        headers: Headers = (*KEY, (b"x-palimpsest-session", b"native"), (b"x-palimpsest-history", b"new"))
        request = ClientRequest("POST", make_target(form), headers, json.dumps(body).encode())
        response = await make_call(program.engine.exchanges, program.engine.tasks, request, wire)
        assert response.status == 200
        program.key, program.calls = await program.engine.archive.find_key(response.session), ()
        results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in ("call_1", "call_2")]
        with pytest.raises(BadRequest, match="call_2"):
            await program.record(results[:1], "No.")
        await program.record(results, "Two.")
        await program.record("And?", [CALLING, RESULT, {"role": "assistant", "content": "No more."}])
        messages = await program.context("chat_completions")
        assert messages[2:4] == results
        assert [each["role"] for each in messages[4:]] == ["assistant", "user", "assistant", "tool", "assistant"]
        await program.reopen()
        headers = (*KEY, (b"x-palimpsest-session", b"native"), (b"x-palimpsest-history", b"server"))
        body[form.items_key] = [user("Go on.")]
        request = ClientRequest("POST", make_target(form), headers, json.dumps(body).encode())
        assert (await make_call(program.engine.exchanges, program.engine.tasks, request, wire)).status == 200
        if wire == "anthropic_messages":
            assert list(find_problems({**program.sent[-1], "max_tokens": 9})) == []
        said = [form.parse_message(json.dumps(each).encode()).text for each in program.sent[-1][form.items_key]]
        assert [text for text in said if text][-4:] == ["And?", "x y", "No more.", "Go on."]


STEPS = st.lists(st.sampled_from(["record", "tools", "send", "context", "restart"]), min_size=3, max_size=9)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS)
async def test_any_order_of_turns_calls_and_restarts_keeps_the_conversation(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str]
) -> None:
    async with programming(tmp_path_factory.mktemp("log"), **{"budget.ceiling_tokens": 100_000}) as program:
        model: list[Message] = [{"role": "system", "content": "You are an agent."}]
        for number, step in enumerate(steps):
            asked = {"role": "user", "content": f"question {number}"}
            said = {"role": "assistant", "content": f"answer {number}"}
            if step == "restart":
                await program.reopen()
            elif step == "send" and len(model) > 1:
                await program.send([asked])
                model += [asked, program.said]
                assert program.sent[-1]["messages"] == model[:-1]
            elif step == "context":
                assert len(model) == 1 or await program.context() == model
            elif step == "tools":
                call = {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
                calls = {"role": "assistant", "content": None, "tool_calls": [call]}
                result = {"role": "tool", "tool_call_id": f"c{number}", "content": "a b"}
                await program.record([asked], [calls, result, said])
                model += [asked, calls, result, said]
            else:
                await program.record([asked], said, f"key {number}")
                again = await program.record([asked], said, f"key {number}")
                assert again.is_repeated
                model += [asked, said]
        if len(model) > 1:
            assert await program.context() == model
