"""When the worker is started, and when it is not."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.engine.compaction.job import SentRequest
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.policy import Provider
from proxy.engine.request import ManagedRequest
from proxy.model.card import Card
from proxy.model.epoch import Plan
from proxy.model.errors import StoreUnavailable
from proxy.model.events import ExchangeRecorded
from proxy.model.exchange import Headers, Usage
from tests.support.compacting import FREE, Workshop, in_time, is_own, record_usage
from tests.support.kept_log import KeptLog
from tests.support.managing import Message, make_history

HISTORY = make_history(22, 1600)
LOCAL = Provider(cache="local")
MODE: Headers = ((b"x-palimpsest-mode", b"observe"),)
ABOVE = 14


def until(steps: int) -> list[Message]:
    return HISTORY[: 2 + 2 * steps]


async def test_below_the_soft_mark_nothing_is_made_and_above_it_there_is() -> None:
    shop = Workshop()
    for steps in range(1, 10):
        await shop.ask(until(steps))
    assert (shop.model.asked, shop.summaries) == ([], [])
    await shop.ask(until(ABOVE))
    (summary,) = shop.summaries
    assert (summary.level, summary.start, summary.exchange) == (1, 0, "x10")


@pytest.mark.parametrize(
    ("policy", "headers"),
    [
        (replace(FREE, auto=False), ()),
        (FREE, MODE),
        (CompactionPolicy(spend_fraction=0.0), ()),
    ],
)
async def test_who_does_not_want_it_pays_for_none(policy: CompactionPolicy, headers: Headers) -> None:
    shop = Workshop(policy=policy)
    for steps in (1, 2, ABOVE, ABOVE + 1):
        await shop.ask(until(steps), headers)
    assert shop.model.asked == []
    assert shop.summaries == []


@pytest.mark.parametrize(
    ("is_side", "pressure", "share", "kept"),
    [
        (False, "soft", 1.0, True),
        (True, "soft", 1.0, False),
        (False, "none", 0.86, True),  # the next call may open an epoch
        (False, "none", 0.84, False),
    ],
)
async def test_what_stands_beside_the_conversation_or_far_below_the_mark_is_not_kept(
    is_side: bool, pressure: Any, share: float, kept: bool
) -> None:
    shop = Workshop()
    request = await shop.read_state(until(ABOVE), is_side=is_side)
    shop.watch.note_managed(request.state.request)
    plan = Plan("x1", 0, "m", "original", pressure=pressure)
    outgoing = OutgoingRequest("original", request.body, int(share * request.state.budget.soft), plan=plan)
    shop.watch.note_sent(request.state, outgoing)
    (call,) = shop.watch.open_calls.values()
    assert (call.sent is not None) == kept


class Recording:
    """A worker that notes what it is told."""

    def __init__(self) -> None:
        self.started: list[SentRequest] = []

    def start(self, request: SentRequest) -> None:
        self.started.append(request)

    async def wait(self, subject: ManagedRequest) -> None:
        """There is nothing to wait for."""


def record(shop: Workshop) -> Recording:
    worker: Any = Recording()
    shop.watch.worker = worker
    recording: Recording = worker
    return recording


async def test_what_is_reported_is_what_was_sent() -> None:
    shop = Workshop()
    worker = record(shop)
    for steps in (1, ABOVE, 22):
        await shop.ask(until(steps))
    first, second = worker.started
    assert (first.body, first.opened, first.tokens) == (shop.model.sent[-2], None, first.state.tokens)
    (epoch,) = shop.epochs
    assert second.body == shop.model.sent[-1]
    assert second.opened is not None
    assert second.opened.id == epoch.id
    assert second.tokens < second.state.tokens


async def test_the_time_since_the_request_before_is_known_where_it_goes_on_from_that() -> None:
    shop = Workshop()
    worker = record(shop)
    edited = [*until(ABOVE - 1), {"role": "user", "content": "Go back."}, *make_history(ABOVE, 1500)[-2:]]
    for messages in (until(ABOVE), until(ABOVE + 1), edited):
        await shop.ask(messages)
        shop.clock.advance(7)
    assert [request.interval for request in worker.started] == [None, 7.0, None]


async def test_a_round_that_another_follows_is_not_the_one_that_was_sent_last() -> None:
    shop = Workshop()
    worker = record(shop)
    await shop.ask(until(1))
    request = await shop.read_state(until(ABOVE), exchange="x9")
    exchange = _sent(shop, request)
    shop.bus.publish(_recorded(exchange, is_final=False))
    shop.bus.publish(_recorded(exchange))
    assert worker.started == []
    assert is_keyed(shop, request)


def is_keyed(shop: Workshop, request: SentRequest) -> bool:
    return shop.worker.credentials.find("s1", request.state.request.chain.tip) is not None


def _sent(shop: Workshop, request: SentRequest) -> str:
    subject = request.state.request
    shop.watch.note_managed(subject)
    (call,) = shop.watch.open_calls.values()
    call.sent = request
    return subject.exchange


def _recorded(exchange: str, *, is_final: bool = True, status: int = 200, end: Any = "complete") -> ExchangeRecorded:
    told: Any = (exchange, "s1", "managed", "chat_completions", "main", status, end, 1, 1, 0.1, 0.1)
    return msgspec.structs.replace(ExchangeRecorded(*told), is_final=is_final)


@pytest.mark.parametrize(("status", "end", "is_key"), [(500, "complete", False), (200, "aborted", True)])
async def test_what_broke_off_or_was_refused_starts_nothing(status: int, end: str, is_key: bool) -> None:
    shop = Workshop()
    worker = record(shop)
    request = await shop.read_state(until(ABOVE))
    exchange = _sent(shop, request)
    shop.bus.publish(_recorded(exchange, status=status, end=end))
    assert worker.started == []
    assert is_keyed(shop, request) == is_key


async def test_a_local_server_thinks_for_us_when_it_is_idle_and_a_model_was_named() -> None:
    shop = Workshop(policy=replace(FREE, model="small"), provider=LOCAL)
    await shop.ask(until(1))
    await shop.ask(until(ABOVE))
    assert shop.model.asked == []
    record_usage(shop.summarizer.health.budget, shop.session, Usage(10_000, 0))  # time for what was not read before
    for later in tuple(shop.later):
        later()
    await shop.settle()
    assert [summary.model for summary in shop.summaries] == ["small"]


async def test_a_local_server_that_is_busy_again_does_not() -> None:
    shop = Workshop(policy=replace(FREE, model="small"), provider=LOCAL)
    worker = record(shop)
    await shop.ask(until(1))
    await shop.ask(until(ABOVE))
    await shop.ask([{"role": "user", "content": "Hi."}], MODE)  # whatever it is, managed or not
    for later in tuple(shop.later):
        later()
    assert worker.started == []


@pytest.mark.parametrize("provider", [LOCAL, Provider()])
async def test_other_work_at_a_local_server_ends_when_that_has_a_call(provider: Provider) -> None:
    shop = Workshop(provider=provider)
    send, seen = shop.model.send, list[bool]()
    work: Any = asyncio.Event().wait
    there, elsewhere = [shop.jobs.start("s", "vectors", work, upstream=name) for name in ("main", "other")]
    assert there is not None
    assert elsewhere is not None

    async def look(*args: Any) -> Any:
        seen.append(shop.jobs.has_call("main", "m"))
        return await send(*args)

    shop.model.send = look  # type: ignore[assignment, method-assign]
    assert not shop.jobs.has_call("main", "m")
    await shop.call(until(1))
    assert seen == [provider is LOCAL]
    assert (there.task.cancelled(), elsewhere.task.done()) == (provider is LOCAL, False)
    assert not shop.jobs.has_call("main", "m")
    found = shop.worker.credentials.find_newest(shop.session)
    assert found is not None
    assert found[0].id == shop.session
    shop.tasks.cancel()
    await shop.settle()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "localhost", "ollama", "gpu.local"])
async def test_a_server_of_ones_own_without_a_price_is_not_asked_while_the_user_waits(host: str) -> None:
    shop = Workshop(provider=Provider(host))
    for steps in (1, ABOVE, ABOVE + 1):
        await shop.ask(until(steps))
    for later in tuple(shop.later):
        later()
    await shop.settle()
    assert (shop.model.asked, shop.summaries) == ([], [])


@pytest.mark.parametrize(
    ("provider", "source"),
    [
        (Provider("127.0.0.1", cache="prefix"), ""),
        (Provider("127.0.0.1"), "bundled"),
        (Provider("api.example.com"), ""),
        (Provider("8.8.8.8"), ""),
    ],
)
async def test_a_server_that_is_declared_otherwise_or_has_a_price_or_is_far_is(provider: Provider, source: Any) -> None:
    shop = Workshop(provider=provider)
    shop.catalog.card = Card(window=1_000_000, prices_source=source)
    for steps in (1, ABOVE):
        await shop.ask(until(steps))
    assert len(shop.model.asked) == 1


async def test_a_call_at_a_server_of_ones_own_stops_what_is_made_there() -> None:
    shop = Workshop(lambda body: None, replace(FREE, model="small"), provider=Provider("127.0.0.1"))
    await shop.ask(until(1))
    await shop.ask(until(ABOVE))
    [later] = shop.later[-1:]
    later()
    await in_time(shop.model.was_asked.wait())
    await shop.call(until(ABOVE + 1))
    assert shop.jobs.list_at("main") == []
    await shop.settle()
    assert shop.summaries == []


async def test_of_two_conversations_that_began_alike_each_is_reported_with_its_own_header_fields() -> None:
    shop = Workshop()
    other = [*until(1), {"role": "user", "content": "Go on in another way."}, *until(ABOVE)[4:]]
    one, two = (b"openai-organization", b"org-one"), (b"openai-organization", b"org-two")
    worker = record(shop)
    await shop.call(until(1), (one,))
    await shop.call(until(ABOVE), (one,))
    await shop.call(until(1), (two,))
    await shop.call(other, (two,))
    first, second = worker.started
    assert first.session == second.session
    shop.worker.start(first)  # once the other conversation is the newest
    await shop.settle()
    [asked] = [call for call in shop.model.calls if isinstance(call.body, bytes) and is_own(call.body)]
    assert [field for field in asked.headers if field in (one, two)] == [one]


async def test_a_local_server_without_a_model_for_it_is_left_alone() -> None:
    shop = Workshop(provider=LOCAL)
    worker = record(shop)
    await shop.ask(until(1))
    await shop.ask(until(ABOVE))
    for later in tuple(shop.later):
        later()
    assert worker.started == []


async def test_other_servers_are_not_cared_for_so() -> None:
    shop = Workshop()
    await shop.ask(until(1))
    assert not shop.jobs.is_newest("main", "x1")


class BrokenLog(KeptLog):
    """Cannot say what was spent."""

    async def sum_auxiliary(self, since_ms: int) -> Any:
        raise StoreUnavailable("not now")


@pytest.mark.parametrize(("archive", "is_open"), [(KeptLog, True), (BrokenLog, False)])
async def test_where_a_day_has_a_cap_what_was_spent_is_read_first(archive: Any, is_open: bool) -> None:
    shop = Workshop(policy=replace(FREE, spend_per_day=1.0), archive=archive())
    assert not shop.watch.budget.is_loaded
    await shop.settle()
    assert shop.watch.budget.is_loaded == is_open


async def test_more_turns_can_be_kept_out_of_reports_than_out_of_plans() -> None:
    surveys = []
    for turns in (2, 5):
        shop = Workshop(policy=replace(FREE, protect_turns=turns))
        messages = [{"role": role, "content": f"{role} {i}"} for i in range(8) for role in ("user", "assistant")]
        surveys.append(await shop.worker.index_conversation(await shop.read_state(messages)))
    assert [len(index.newest) for index in surveys] == [2, 5]
