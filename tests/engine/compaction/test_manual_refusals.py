"""Which conversation a person's compaction is of, and what is refused."""

import asyncio
import dataclasses
from typing import Any

import pytest

from proxy.engine.compaction.job import ManualOptions
from proxy.engine.context.rewriter import Invalid, Rewriter
from proxy.engine.ports import Upstream
from proxy.engine.request_resolver import Route
from proxy.model.errors import Conflict, NotFound, StoreUnavailable
from proxy.model.log import ExchangeRow
from tests.support.compacting import Workshop, give_report, in_time
from tests.support.engine import JSON, ScriptedResponse, ScriptedUpstream
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog
from tests.support.managing import make_history
from tests.support.manual_compaction import STEPS, carry, compact, go_on, load_newest, make_manual_compaction


@pytest.fixture
async def shop() -> Workshop:
    """A budget of which the sessions here take a twentieth."""
    return Workshop(ceiling=100_000)


async def test_a_session_too_short_is_told_what_stays(shop: Workshop) -> None:
    await carry(shop, 2)
    with pytest.raises(Conflict, match="what may go is too little, for the newest three groups of calls"):
        await compact(shop)
    assert (shop.summaries, shop.epochs, shop.model.asked) == ([], [], [])


async def test_little_that_may_go_opens_an_epoch_without_a_summary(shop: Workshop) -> None:
    await carry(shop, 5, 800)
    found = await compact(shop)
    assert found.epoch is not None
    assert (found.summaries, shop.model.asked) == ((), [])
    assert "too little is not summarised yet" in found.reason


async def test_a_session_nobody_knows_is_not_found(shop: Workshop) -> None:
    await carry(shop)
    with pytest.raises(NotFound):
        await make_manual_compaction(shop).compact("nobody", ManualOptions())


async def test_the_conversation_with_a_model_may_be_named(shop: Workshop) -> None:
    history = await carry(shop)
    await shop.call(make_history(2), model="other")
    await shop.settle()
    found = await compact(shop, view="gpt-4o")
    assert found.epoch is not None
    assert found.epoch.view == "gpt-4o"
    with pytest.raises(Conflict, match="no call with the model 'third'"):
        await compact(shop, view="third")
    assert len((await go_on(shop, history))[0]) < len(history)


async def test_a_branch_may_be_named_by_its_tip(shop: Workshop) -> None:
    history = await carry(shop)
    aside = [*history[:16], {"role": "user", "content": "Not so."}]
    await shop.ask(aside)
    older, newer = await shop.log.list_branches(shop.session)
    found = await compact(shop, branch=older.tip.hex()[:12])
    assert found.epoch is not None
    assert found.epoch.depth > len(aside)
    with pytest.raises(Conflict, match="this branch has no call with the model 'third'"):
        await compact(shop, view="third", branch=newer.tip.hex())
    with pytest.raises(NotFound, match="no branch begins with 'zz'"):
        await compact(shop, branch="zz")
    found = await compact(shop)
    assert found.epoch is not None
    assert found.epoch.depth <= len(aside)


@pytest.mark.parametrize(
    ("headers", "members", "reason"),
    [
        (((b"x-palimpsest-mode", b"observe"),), {}, "was in mode observe"),
        ((), {"context_management": {"edits": []}}, "is managed already: the request has context_management"),
    ],
)
async def test_what_is_not_managed_is_not_compacted(shop: Workshop, headers: Any, members: Any, reason: str) -> None:
    await shop.call(make_history(STEPS, 1200), headers, **members)
    await shop.settle()
    with pytest.raises(Conflict, match=reason):
        await compact(shop)


async def test_an_upstream_that_is_gone_is_told(shop: Workshop) -> None:
    await carry(shop)
    compactor = make_manual_compaction(shop)
    elsewhere: Upstream = ScriptedUpstream("elsewhere")
    compactor.worker.summarizer.routes = [Route(elsewhere)]
    with pytest.raises(Conflict, match="'main', is no longer in the settings"):
        await compactor.compact(shop.session, ManualOptions())


async def test_an_epoch_that_the_log_does_not_take_is_none(shop: Workshop) -> None:
    class Late:
        async def confirm(self, commit: "asyncio.Future[bool]") -> bool:
            await commit
            return False

    history = await carry(shop)
    with pytest.raises(StoreUnavailable):
        await make_manual_compaction(shop, gate=Late()).compact(shop.session, ManualOptions())
    await shop.settle()
    sent, _ = await go_on(shop, history)
    assert sent[: len(history)] == history


async def test_an_epoch_that_is_opened_while_models_are_asked_is_gone_on_from(shop: Workshop) -> None:
    await carry(shop)
    slow = ScriptedResponse(headers=JSON, ending="open")
    shop.model.summarise = lambda body: slow
    asked = asyncio.create_task(make_manual_compaction(shop).compact(shop.session, ManualOptions()))
    await in_time(shop.model.was_asked.wait())
    case = (await load_newest(shop)).state
    opened = await shop.controller.chain.open_by_hand(case, case.budget, make_manual_compaction(shop).commit, "between")
    assert opened is not None
    await shop.call(make_history(STEPS + 3, 1200))
    slow.feed(give_report(b""), ending="whole")
    found = await in_time(asked)
    assert [each.level for each in found.summaries] == [1]
    assert [each.parent for each in shop.epochs] == ["", *(["between"] if found.epoch else [])]


async def test_the_newest_answered_call_of_a_conversation_is_found() -> None:
    def make(n: int, status: int = 200, **changes: Any) -> ExchangeRow:
        row = dataclasses.replace(
            EXCHANGE, n=n, id=f"x{n}", tip=b"t", rounds=(dataclasses.replace(ROUND, status=status),)
        )
        return dataclasses.replace(row, **changes)

    rows = [make(1), make(2), make(3, is_side=True), make(4, 500), make(5, rounds=()), make(6, tip=b"")]
    compactor = make_manual_compaction(Workshop(), archive=FakeLog(exchanges=rows))
    assert (await compactor.find_newest("abc1", "")).n == 2
    with pytest.raises(Conflict, match="no call that was read and answered"):
        await make_manual_compaction(Workshop(), archive=FakeLog(exchanges=rows[2:])).find_newest("abc1", "")


async def test_another_epoch_in_between_is_left_alone(shop: Workshop) -> None:
    await carry(shop)
    case = (await load_newest(shop)).state
    first = await compact(shop)

    async def commit(epoch: object) -> bool:
        raise AssertionError("nothing is to be kept")

    with pytest.raises(Conflict, match="another epoch was opened meanwhile"):
        await shop.controller.chain.open_by_hand(case, case.budget, commit, "x")
    assert [each.id for each in shop.epochs] == [first.epoch and first.epoch.id]


async def test_what_would_not_be_valid_is_not_kept(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    await carry(shop)

    def rewrite(*asked: object, **_: object) -> bytes:
        raise Invalid("a result without its call")

    monkeypatch.setattr(Rewriter, "rewrite", rewrite)
    with pytest.raises(Conflict, match="not as valid as what the client sent: a result without its call"):
        await compact(shop)
    assert shop.epochs == []
