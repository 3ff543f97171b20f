"""The provider's own compaction as a summary: when it is asked for, within which limits, and what is accepted."""

import json
import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.context.pricing import Cost
from proxy.engine.compaction.job import ManualOptions, SummaryJob
from proxy.engine.compaction.model_call import FailedCall, ModelResponse
from proxy.engine.compaction.provider_compaction import check_compaction, name_task, write_prompt
from proxy.engine.policy import Provider
from proxy.model.epoch import Epoch, Summary
from proxy.model.events import AuxiliaryEnded, SummaryAddedEvent
from proxy.model.exchange import Opening, Usage
from tests.support.compacting import FREE, Reply, Workshop, fail
from tests.support.engine import JSON, ScriptedResponse, Sent
from tests.support.managing import Message, make_history, make_subject

HISTORY = make_history(60, 1600)
WIRE, MODEL = "anthropic_messages", "gpt-4o"
STEP = {"type": "compaction", "input_tokens": 2000, "output_tokens": 500}
BLOCK = {"type": "compaction", "content": "They mend the parser.", "signature": "s"}
ASKING = b'"compaction":{"type":"summarize"}'


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


def respond(*content: Any, stop: str = "compaction", status: int = 200) -> ScriptedResponse:
    usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [STEP]}
    message = {"type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": usage}
    return ScriptedResponse(json.dumps(message).encode(), status=status, headers=JSON, ending="whole")


class Compacting(Workshop):
    """An engine whose provider compacts as the test says; models write reports."""

    def __init__(self, *replies: Reply, provider: Provider | None = None, wire: str = WIRE, **options: Any) -> None:
        self.replies = list(replies)
        super().__init__(provider=provider or Provider(has_compaction=True), wire=wire, **options)
        send = self.model.send

        async def answer(method: str, target: bytes, headers: Any, body: Any) -> ScriptedResponse:
            if ASKING not in body:
                return await send(method, target, headers, body)
            self.model.calls.append(Sent(method, target, headers, body))
            self.model.asked.append(body)
            reply = (self.replies or [respond(BLOCK)]).pop(0)
            assert isinstance(reply, ScriptedResponse)
            return reply

        self.model.send = answer  # type: ignore[method-assign]

    @property
    def compactions(self) -> list[bytes]:
        """The questions for one."""
        return [body for body in self.model.asked if ASKING in body]

    async def reach(self, summaries: int = 1) -> None:
        """Carry calls until there are so many summaries."""
        for steps in range(1, 60):
            await self.ask(until(steps))
            if len(self.summaries) >= summaries:
                return
        raise AssertionError("there were too few summaries")

    async def plan(self, **changes: Any) -> SummaryJob:
        """A job of a summary."""
        request = await self.read_state(HISTORY)
        managed = msgspec.structs.replace(request.state.request, wire=self.wire)
        state = msgspec.structs.replace(request.state, request=managed)
        request = msgspec.structs.replace(request, state=state)
        index = await self.worker.index_conversation(request)
        work = SummaryJob(request, index, MessageRange(3, 29, request.state.history.count(3, 29)))
        return msgspec.structs.replace(work, **changes)


async def test_it_is_asked_for_where_a_summary_would_be_and_recorded_as_one() -> None:
    shop = Compacting()
    await shop.reach()
    (body,), (summary,) = shop.compactions, shop.summaries
    asked, before = json.loads(body), json.loads(shop.model.sent[-1])
    assert shop.model.asked == [body]
    count = len(asked["messages"])
    assert asked["messages"][-1]["content"][-1].pop("cache_control")  # that of the newest message
    assert asked["messages"] == before["messages"][:count]
    assert {name: asked[name] for name in ("model", "tools", "system")} == {
        name: before[name] for name in ("model", "tools", "system")
    }
    assert (summary.start, summary.stop, summary.level, summary.kind) == (0, count, 1, "leaf")
    assert json.loads(summary.block) == {"role": "assistant", "content": [BLOCK]}
    assert (summary.model, summary.is_provisional, summary.reason) == (MODEL, False, "")
    assert summary.text.endswith(f"up to message {summary.stop}]\n{BLOCK['content']}")
    (opening,) = [opening for opening in shop.log.of(Opening) if opening.kind == "auxiliary"]
    assert summary.calls == (opening.exchange,)
    assert [each.summary for each in shop.events if isinstance(each, SummaryAddedEvent)] == [summary.id]
    (ended,) = [each for each in shop.events if isinstance(each, AuxiliaryEnded)]
    price = shop.summarizer.health.budget.price("main", MODEL, Usage(2000, 500))
    assert (ended.verdict, ended.cost) == ("answered", price.tokens)
    assert shop.summarizer.health.budget.get_balance(shop.session).summaries == price != Cost()
    assert (await shop.log.verify()).faults == ()


async def test_only_what_it_was_asked_with_has_the_header() -> None:
    shop = Compacting()
    await shop.reach(3)
    betas = [dict(call.headers).get(b"anthropic-beta", b"") for call in shop.model.calls]
    needed = [ASKING in (call.body or b"") or b'"type":"compaction"' in call.body for call in shop.model.calls]  # type: ignore[operator]
    assert betas == [b"compact-2026-09-04" if each else b"" for each in needed]
    assert 3 < needed.count(True) < len(needed)


async def test_the_next_one_covers_the_last_one_too() -> None:
    shop = Compacting()
    await shop.reach(2)
    first, second = shop.summaries
    assert (second.start, second.supersedes, second.parents) == (0, (first.id,), ())
    assert second.stop > first.stop and second.covered > first.covered
    asked = json.loads(shop.compactions[1])["messages"]
    assert asked[0] == json.loads(first.block)


@pytest.mark.parametrize(
    ("provider", "wire"),
    [
        (Provider(), WIRE),
        (Provider(has_compaction=True), "chat_completions"),
    ],
)
async def test_without_permission_or_on_another_wire_models_write_summaries(provider: Provider, wire: str) -> None:
    shop = Compacting(provider=provider, wire=wire)
    await shop.reach()
    assert shop.compactions == []
    assert shop.summaries[0].block == "" and shop.summaries[0].level == 1


async def test_a_job_that_is_no_beginning_of_an_epoch_is_none_of_it() -> None:
    shop = Compacting()
    job, found = await shop.plan(), shop.summarizer.provider_compaction
    state = job.request.state
    made = found.find_job(job)
    assert made is not None
    assert (made.span.start, made.span.stop, made.covered) == (0, 29, state.history.count(0, 29))
    leaf = Summary("a", "s1", WIRE, 0, 3, b"", "leaf", 1, False, "t", 9, 99, 0)
    for changes in ({"parents": (leaf,)}, {"supersedes": ("a",)}, {"options": ManualOptions()}):
        assert found.find_job(msgspec.structs.replace(job, **changes)) is None
    state.context.given_up.add(MODEL)
    assert found.find_job(job) is None
    state.context.given_up.clear()
    large = msgspec.structs.replace(
        leaf, model=MODEL, block="{}", tokens=10_000, last=job.request.nodes[2], level=1, covered=20_000
    )
    state.context.add_summary(large)
    assert found.find_job(job) is None


@pytest.mark.parametrize(
    ("reply", "reason", "is_final"),
    [
        (respond(stop="refusal"), "the model refused", False),
        (respond(stop="end_turn"), "no compaction: end_turn", False),
        (respond(stop="tool_use"), "no compaction: tool_use", False),
        (respond({"type": "text", "text": "Hello."}, stop="end_turn"), "no compaction: end_turn", True),
        (respond({"type": "tool_use", "id": "c", "name": "bash", "input": {}}, stop="tool_use"), "a tool", True),
        (respond(BLOCK, status=529), "status 529", False),
        (respond(BLOCK, status=404), "status 404", True),
        (respond(BLOCK | {"content": "word " * 50_000}), "no shorter than what it covers", False),
        (fail(b""), "status 500: broken", False),
    ],
)
async def test_where_there_is_none_a_model_writes_the_summary(
    reply: ScriptedResponse, reason: str, is_final: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Compacting(reply)
    await shop.reach()
    (summary,) = shop.summaries
    assert (summary.block, summary.level, len(shop.compactions), len(summary.calls)) == ("", 1, 1, 2)
    assert reason in summary.reason
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert any("gives no compaction of its own" in each for each in told) == is_final
    shop.clock.advance(3600.0)
    await shop.reach(2)
    assert len(shop.compactions) == (1 if is_final else 2)
    assert shop.summarizer.health.breakers.get("main", MODEL).failures == 0


async def test_more_room_is_given_once_where_thinking_took_all() -> None:
    shop = Compacting(respond(stop="max_tokens"), respond(BLOCK))
    await shop.reach()
    assert [json.loads(body)["max_tokens"] for body in shop.compactions] == [8192, 16384]
    assert shop.summaries[0].block
    shop = Compacting(respond(stop="max_tokens"), respond(stop="max_tokens"))
    await shop.reach()
    assert (shop.summaries[0].block, shop.summaries[0].level) == ("", 1)


@pytest.mark.parametrize("play", [lambda: respond(stop="end_turn"), lambda: fail(b"")])
async def test_after_two_failures_it_is_asked_less_often(play: Any) -> None:
    shop = Compacting(*[play() for _ in range(9)])
    await shop.reach(4)
    assert len(shop.compactions) == 2
    assert not shop.summarizer.health.breakers.allows(*name_task("main", MODEL))


async def test_it_costs_what_summaries_may_cost() -> None:
    shop = Compacting(policy=replace(FREE, spend_fraction=0.0))
    with pytest.raises(AssertionError, match="too few"):
        await shop.reach()
    assert shop.compactions == []


async def test_a_persons_plan_is_not_used_for_it() -> None:
    for allowed in (False, True):
        shop = Compacting(policy=replace(FREE, subscription_calls=allowed))
        for steps in range(1, 20):
            await shop.ask(until(steps), ((b"chatgpt-account-id", b"a"),))
        assert bool(shop.compactions) == allowed


async def test_only_a_request_that_can_be_cut_there_is_used() -> None:
    shop = Compacting()
    work = await shop.plan()
    job, sent = work, work.request
    prompt = write_prompt(job, is_cold=False)
    assert prompt is not None and prompt.is_warm
    assert (prompt.expected.output, prompt.expected.cached) == (1500, sent.state.tokens)
    assert len(json.loads(prompt.body)["messages"]) == 1 + 29
    cold = write_prompt(job, is_cold=True)
    assert cold is not None and cold.expected == msgspec.structs.replace(prompt.expected, cached=0)
    longer = make_subject(HISTORY[:40]).split.content
    behind = Epoch("e", "s1", MODEL, "", b"", 40, "hard", "x", 0, 0, 0, b"[]", ())
    for body, opened in ((b"{}", None), (longer, None), (sent.body, behind)):
        other = msgspec.structs.replace(sent, body=body, opened=opened)
        assert write_prompt(msgspec.structs.replace(job, request=other), is_cold=False) is None
    spent = sent.body.replace(b'"messages"', b'"output_config":{"task_budget":{"remaining":1}},"messages"', 1)
    other = msgspec.structs.replace(sent, body=spent)
    assert write_prompt(msgspec.structs.replace(job, request=other), is_cold=False) is None


async def test_what_is_sealed_is_counted_and_called_so() -> None:
    shop = Compacting(wire="responses")
    work = await shop.plan()
    sealed = json.dumps({"type": "compaction", "encrypted_content": "g" * 1600})
    said = ModelResponse("", "completed", None, 1.0, False, "x", block=sealed)
    found: Any = check_compaction(work, said, shop.summarizer.count)
    assert 300 <= found.tokens <= 310
    assert found.text.endswith("up to message 29]\nOnly the provider can read it.")
    assert "nothing" in str(check_compaction(work, ModelResponse("", "", None, 1.0, False, "x"), len))


async def test_it_is_merged_with_no_summary_and_takes_none_of_their_room() -> None:
    shop = Compacting()
    request = await shop.read_state(HISTORY)
    index = await shop.worker.index_conversation(request)
    job = SummaryJob(request, index, MessageRange(40, 60, request.state.history.count(40, 60)))
    target = job.compute_target(1, 8192)
    own = Summary("a", "s1", WIRE, 20, 40, request.nodes[39], "leaf", 1, False, "t", 60, 9000, 0)
    made = msgspec.structs.replace(own, id="p", start=0, stop=20, last=request.nodes[19], tokens=900)
    request.state.context.add_summary(msgspec.structs.replace(made, model=MODEL, block="{}"))
    assert job.compute_target(1, 8192) == target
    request.state.context.add_summary(own)
    assert len(request.state.context.list_summaries(request.nodes, MODEL)) == 2
    assert await shop.worker.condense(request, index) == []
    assert shop.model.asked == []


async def test_only_a_refusal_of_the_request_itself_ends_the_asking() -> None:
    shop = Compacting()
    job, found = await shop.plan(), shop.summarizer.provider_compaction
    for response in (FailedCall("too long", 400, is_too_long=True), FailedCall("not now", 503)):
        found.note_response(("main", MODEL), response)
        assert found.find_job(job) is not None
    found.note_response(("main", MODEL), FailedCall("no such field", 400))
    assert found.find_job(job) is None
    shop.clock.advance(86_401.0)
    assert found.find_job(job) is not None
