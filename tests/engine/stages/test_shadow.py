"""The shadow check: what is sent behind which calls, within which spending, and what the log has of it."""

import json
from typing import Any, cast

import pytest
from msgspec.structs import replace

from proxy.context.budget import BudgetPolicy
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.erasing.live import LiveSessions
from proxy.engine.models import PriceList
from proxy.engine.policy import Provider, ShadowPolicy
from proxy.engine.ports import RequestBody
from proxy.engine.stages.shadow import ShadowCheck, ShadowEnded, compare_answers, find_used, is_drawn
from proxy.model.card import Card, Prices, Rates
from proxy.model.errors import NotFound, UpstreamUnreachable
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import Headers, Opening, Usage
from proxy.model.log import SHADOW
from proxy.model.manifest import Manifest
from proxy.model.messages import LEDGER_HEAD
from proxy.read.savings import SavingsInputs, load_savings
from proxy.read.shadow import ShadowReport
from proxy.store.erasing.building import build_erasing
from proxy.wire import FORMATS
from tests.support.compacting import CHAT, WIRES, Model, Workshop, in_time, say, spell_answer
from tests.support.engine import JSON, ScriptedResponse, Sent
from tests.support.managing import make_history

PRICED = Card(window=1_000_000, prices=Prices(Rates(1e-6, 5e-6, 1e-7, 1e-6)), prices_source="settings")
ALL = ShadowPolicy(fraction=1.0)
UNMADE = CompactionPolicy(auto=False)
BOUND = "anthropic/claude-fable-5-2"
LONG = make_history(40, 1200)


def act(name: str = "bash", sent: int | None = 9, **arguments: Any) -> bytes:
    """An answer with one call of a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return say(
        None, finish="tool_calls", sent=sent, tool_calls=[{"id": "c1", "type": "function", "function": function}]
    )


class Checked(Model):
    """Answers shortened requests in one way, and the client's own in another."""

    def __init__(self, sent: bytes, own: bytes | ScriptedResponse | Exception, wire: str = CHAT) -> None:
        super().__init__(wire=wire)
        self.replies = sent, own

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        self.calls.append(Sent(method, target, headers, body))
        is_shortened = LEDGER_HEAD.encode() in body
        reply = self.replies[not is_shortened]
        if not is_shortened:
            self.was_asked.set()
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, bytes):
            return reply
        return ScriptedResponse(spell_answer(reply, self.wire), headers=JSON, ending="whole")


class World:
    """An engine that checks calls, over a log; `again` is a restart."""

    def __init__(
        self,
        sent: bytes,
        own: Any,
        policy: ShadowPolicy = ALL,
        *,
        wire: str = CHAT,
        card: Card = PRICED,
        limits: CompactionPolicy = UNMADE,
        **options: Any,
    ) -> None:
        self.policy, self.limits, self.options, self.card = policy, limits, options, card
        self.model = Checked(sent, own, wire)
        self.open(None)

    def open(self, after: Workshop | None) -> None:
        made: Any = {"policy": self.limits, "card": self.card, **self.options}
        self.shop = Workshop(upstream=self.model, wire=self.model.wire, after=after, **made)
        self.told: list[ShadowEnded] = []
        self.shop.bus.subscribe(ShadowEnded, self.told.append)
        self.check = ShadowCheck(
            self.policy, self.shop.summarizer.caller, self.shop.worker.jobs, self.shop.worker.credentials
        )

    async def again(self) -> None:
        await self.shop.settle()
        await self.shop.log.reopen()
        self.open(self.shop)
        await self.shop.settle()

    async def call(self, messages: Any = LONG, **members: Any) -> Any:
        client = await self.shop.call(messages, **members)
        await self.shop.settle()
        return client

    @property
    def verdicts(self) -> list[str]:
        return [each.verdict for each in self.told]

    async def report(self) -> ShadowReport:
        inputs = SavingsInputs(PriceList(lambda upstream, model: self.card), BudgetPolicy())
        found = (await load_savings(self.shop.log, inputs)).shadow
        assert isinstance(found, ShadowReport)
        return found


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (act(command="ls", at=1), "same"),
        (act(at=1, command="ls"), "same"),
        (act(command="pwd", at=1), "arguments"),
        (act("read", command="ls", at=1), "other"),
        (say("Done."), "other"),
    ],
)
async def test_the_answer_to_the_clients_own_request_is_compared_with_the_one_it_got(
    wire: str, own: bytes, verdict: str
) -> None:
    world = World(act(command="ls", at=1), own, wire=wire)
    client = await world.call()
    short, full = world.model.calls
    assert len(short.body) < len(full.body)  # type: ignore[arg-type]
    assert client.body == spell_answer(world.model.replies[0], wire)
    assert world.verdicts == [verdict]
    exchange = world.told[0].exchange
    assert full.body == await world.shop.log.load_request(exchange)
    assert await world.shop.log.load_request(exchange + SHADOW) == full.body
    (opening,) = [each for each in world.shop.log.of(Opening) if each.kind == "auxiliary"]
    assert (opening.exchange, opening.body.slices, opening.body.blobs) == (exchange + SHADOW, (), ())
    found = await world.report()
    assert getattr(found.total, verdict) == 1
    assert found.total.agreement is not None and found.total.agreement.share == (verdict == "same")
    assert [each.name for each in found.sessions] == [world.shop.session]
    assert (await world.shop.log.verify()).faults == ()


@pytest.mark.parametrize(
    ("sent", "own", "verdict"),
    [
        (say("All is  done."), say("All is done."), "same"),
        (say("Done."), say("All is done."), "text"),
        (act(a=1), UpstreamUnreachable("nobody is there"), "uncompared"),
        (
            act(a=1),
            ScriptedResponse(b'{"error":{"message":"no"}}', status=400, headers=JSON, ending="whole"),
            "uncompared",
        ),
        (act(a=1), say("Let me", finish="length"), "uncompared"),
        (act(a=1), say("x", finish="content_filter"), "uncompared"),
    ],
)
async def test_what_is_no_call_of_a_tool_and_what_cannot_be_compared(sent: bytes, own: Any, verdict: str) -> None:
    world = World(sent, own)
    await world.call()
    assert world.verdicts == [verdict]
    found = await world.report()
    assert getattr(found.total, verdict) == 1
    assert (found.total.agreement is None) == (verdict == "uncompared")


async def test_a_stream_is_read_to_its_end_though_a_tool_is_called() -> None:
    call = b'{"index":0,"id":"c","type":"function","function":{"name":"bash","arguments":"{\\"a\\":1}"}}'
    chunk = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}\n\n' % call
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    world = World(act(a=1), ScriptedResponse(chunk, end, ending="eof"))
    await world.call(stream=True)
    assert world.verdicts == ["same"]


async def test_answers_of_several_choices_are_not_compared() -> None:
    one = FORMATS[CHAT]
    assert compare_answers(one, ("stop,stop", "stop"), (say("x"), say("x"))) == "uncompared"
    assert compare_answers(one, ("stop", "stop"), (say("x"), b"")) == "uncompared"
    assert compare_answers(one, ("stop", "stop"), (say("x"), say("x"))) == "same"


async def test_a_call_of_our_own_tool_counts_for_nothing() -> None:
    function = {"name": "context_recall", "arguments": "{}"}
    said = json.loads(act(a=1))
    said["choices"][0]["message"]["tool_calls"].append({"id": "c2", "type": "function", "function": function})
    assert compare_answers(FORMATS[CHAT], ("tool_calls",) * 2, (json.dumps(said).encode(), act(a=1))) == "same"


def test_which_calls_are_drawn_follows_from_their_ids() -> None:
    drawn = [number for number in range(4000) if is_drawn(f"x{number}", 0.25)]
    assert 900 < len(drawn) < 1100
    assert drawn == [number for number in range(4000) if is_drawn(f"x{number}", 0.25)]
    assert set(drawn) < {number for number in range(4000) if is_drawn(f"x{number}", 0.5)}
    assert not any(is_drawn(f"x{number}", 0.0) for number in range(100))
    assert all(is_drawn(f"x{number}", 1.0) for number in range(100))


def test_what_a_call_used_is_what_was_expected_unless_something_else_is_known() -> None:
    expected = Usage(100, 5)
    assert find_used(200, Usage(90, 4, 10), expected) == Usage(90, 4, 10)
    assert find_used(200, Usage(), expected) == find_used(0, None, expected) == expected
    assert find_used(400, None, expected) == Usage(0, 0)


@pytest.mark.parametrize(
    ("messages", "members"),
    [
        (make_history(2), {}),  # nothing of it is cut
        (LONG, {"tools": [{"type": "mcp", "server_url": "https://example.org"}]}),
        (LONG, {"mcp_servers": []}),
    ],
)
async def test_what_is_not_shortened_and_what_the_provider_would_do_twice_is_not_sent_again(
    messages: Any, members: Any
) -> None:
    world = World(act(a=1), act(a=1))
    await world.call(messages, **members)
    assert (len(world.model.calls), world.told) == (1, [])


@pytest.mark.parametrize(
    ("card", "options", "policy"),
    [
        (Card(window=1_000_000), {}, ALL),  # no price is known
        (PRICED, {"provider": Provider(cache="local")}, ALL),
        (PRICED, {}, ShadowPolicy(fraction=1.0, spend_per_day=0.001)),
        (PRICED, {"limits": CompactionPolicy(auto=False, spend_per_day=0.001)}, ALL),
        (PRICED, {"window": 1000}, ShadowPolicy(fraction=0.0)),
    ],
)
async def test_nothing_is_sent_that_cannot_be_afforded_or_is_in_the_way(
    card: Card, options: Any, policy: ShadowPolicy
) -> None:
    world = World(act(a=1), act(a=1), policy, card=card, **options)
    await world.call()
    assert (len(world.model.calls), world.told) == (1, [])


async def test_what_the_window_would_not_hold_is_not_sent() -> None:
    world = World(act(a=1), act(a=1), card=Card(window=11_000, prices=PRICED.prices, prices_source="settings"))
    await world.call()
    assert (len(world.model.calls), world.told) == (1, [])


async def test_the_budget_of_the_day_holds_over_a_restart_and_ends_with_the_day() -> None:
    world = World(act(a=1), act(a=1, sent=None), ShadowPolicy(fraction=1.0, spend_per_day=0.02))
    await world.call()
    history, days = [*LONG, *make_history(41, 1200)[-2:]], 1
    assert 0.01 < ((await world.report()).total.money or 0.0) < 0.02  # what was expected: no usage was reported
    for step in ("call", "restart", "tomorrow"):
        if step == "restart":
            await world.again()
        if step == "tomorrow":
            world.shop.clock.advance(86_400)
            days = 2
        await world.call(history)
        assert len(await world.shop.log.list_shadows(0)) == days
    assert len(await world.shop.log.list_shadows(world.shop.clock.now_ms() - 1000)) == 1


async def test_no_share_of_a_session_pays_for_it() -> None:
    world = World(act(a=1), act(a=1))
    await world.call()
    budget = world.shop.summarizer.health.budget
    assert budget.get_balance(world.shop.session).summaries.tokens == 0
    assert budget.get_balance("").summaries.tokens > 0


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_bound_reasoning_is_sent_behind_another_beginning_only_where_that_is_set(is_allowed: bool) -> None:
    thought = {"role": "assistant", "content": "x", "reasoning_details": [{"type": "reasoning.text", "signature": "s"}]}
    world = World(act(a=1), act(a=1), ShadowPolicy(fraction=1.0, bound_reasoning=is_allowed))
    await world.call([*LONG, thought, {"role": "user", "content": "Go on."}], model=BOUND)
    assert len(world.told) == is_allowed
    if is_allowed:
        assert (await world.report()).bound == [BOUND]


async def test_a_call_without_such_reasoning_is_checked_and_the_report_names_the_model() -> None:
    world = World(act(a=1), act(a=1))
    await world.call(model=BOUND)
    assert (world.verdicts, (await world.report()).bound) == (["same"], [BOUND])


async def test_after_a_restart_the_log_says_the_same() -> None:
    world = World(act(a=1), act(a=2))
    await world.call()
    before = await world.report()
    assert (before.total.arguments, before.total.same_tool) == (1, before.models[0].same_tool)
    await world.again()
    assert await world.report() == before


async def test_what_it_costs_counts_against_what_was_saved_and_is_told_apart() -> None:
    world = World(act(a=1), act(a=1))
    await world.call()
    (row,) = await world.shop.log.list_shadows(0)
    found = await world.report()
    assert found.total.money == pytest.approx(9 * 1e-7 + 3 * 5e-6)  # by the usage that came back
    assert row.usage == Usage(9, 3, 9)
    (tally,) = [each for each in await world.shop.log.load_tallies() if each.is_auxiliary]
    assert (tally.usage.cached, tally.usage.output) == (9, 3)


async def test_with_its_session_the_call_is_erased() -> None:
    world = World(act(secret="hunter2"), act(secret="hunter3"))
    await world.call()
    log, own = world.shop.log, world.told[0].exchange + SHADOW
    assert b"hunter3" in await log.load_received(own, 0)
    erasing = build_erasing(log.path, log.stored, "")
    await erasing.erase(world.shop.session)
    for load in (log.load_request, log.load_manifest):
        with pytest.raises(NotFound):
            await load(own)
    with pytest.raises(NotFound):
        await log.load_received(own, 0)
    found = await world.report()
    assert (found.total.uncompared, found.total.agreement) == (1, None)
    assert found.total.money == pytest.approx(1.59e-5)
    assert (await log.verify()).faults == ()
    erasing.eraser.close()


async def test_a_check_that_is_under_way_ends_when_its_session_is_erased() -> None:
    world = World(act(a=1), ScriptedResponse(b"{", headers=JSON))
    await world.shop.call(LONG)
    shop = world.shop
    await in_time(world.model.was_asked.wait())
    live = LiveSessions(shop.exchanges, shop.worker, shop.remembered, cast(Any, None), cast(Any, None))
    assert await live.settle(shop.session) == ""
    assert not shop.worker.jobs.list_jobs(shop.session)
    (row,) = await shop.log.list_shadows(0)
    assert (row.answers[1], row.expected.output) == (b"", 3)
    assert world.check.policy is ALL


async def test_a_call_that_is_recorded_in_part_is_not_sent_again() -> None:
    world = World(act(a=1), act(a=1))
    load: Any = world.shop.log.stored.load_manifest

    async def load_part(exchange: str) -> Manifest:
        whole: Manifest = await load(exchange)
        return replace(whole, whole_digest=b"d" * 32)

    world.shop.log.stored.load_manifest = load_part
    await world.call()
    assert (len(world.model.calls), world.told) == (1, [])


async def test_a_call_in_which_the_model_recalled_counts_with_the_size_of_its_first_round() -> None:
    world = World(act(a=1), act(a=1))
    check = world.check
    world.shop.bus.unsubscribe(check.note_exchange)

    def hear(event: ExchangeRecorded) -> None:
        assert event.plan is not None
        check.note_exchange(replace(event, is_final=False))
        check.note_exchange(replace(event, plan=replace(event.plan, tokens_client=0)))

    world.shop.bus.subscribe(ExchangeRecorded, hear)
    await world.call()
    assert world.verdicts == ["same"]
