"""Going back, and pinning, in an agent's conversation."""

import asyncio
import dataclasses
import json
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from proxy.context.pricing import estimate_size
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.model.errors import Conflict, NotFound, StoreUnavailable
from proxy.model.events import EpochOpened
from proxy.model.exchange import Usage
from proxy.model.log import ExchangeRow
from tests.store.samples import make_key, make_opening
from tests.support.managing import make_history
from tests.support.talking import Talk


async def row_of(talk: Talk, n: int = 0) -> Any:
    """The n-th exchange, or the last one."""
    (row,) = await talk.log.list_exchanges(talk.session, (n or len(talk.exchanges)) - 1, 1)
    return row


def sent(talk: Talk) -> list[Any]:
    """The messages that were sent last."""
    messages: list[Any] = json.loads(talk.upstream.bodies[-1])["messages"]
    return messages


async def test_going_back_before_the_first_epoch_sends_all_as_it_comes(talk: Talk) -> None:
    history = await talk.grow_to(1)
    assert len(sent(talk)) < len(history)
    reversion = await talk.care.revert(talk.session, 1)
    assert (reversion.epoch.depth, reversion.epoch.rendered, reversion.epoch.why) == (0, (), "revert")
    assert reversion.quote.tokens > reversion.now
    assert reversion.quote.once > reversion.quote.each > 0
    more = make_history(talk.step + 1, 30)
    client = await talk.ask([*history, *more[-2:]])
    assert sent(talk) == [*history, *more[-2:]]
    assert b"x-palimpsest-notice" not in dict(client.labels)
    await talk.reopen()
    await talk.ask([*history, *more[-2:]])
    assert sent(talk) == [*history, *more[-2:]]


async def test_what_was_sent_before_a_revert_goes_back_too(talk: Talk) -> None:
    history = await talk.grow_to(1)
    shortened = talk.upstream.bodies[-1]
    await talk.ask(history)
    assert talk.upstream.bodies[-1] == shortened
    await talk.care.revert(talk.session, 1)
    await talk.ask(history)
    assert sent(talk) == history


async def test_a_quote_changes_nothing(talk: Talk) -> None:
    history = await talk.grow_to(1)
    shortened = talk.upstream.bodies[-1]
    quoted = await talk.care.quote(talk.session, 1)
    await talk.ask(history)
    assert talk.upstream.bodies[-1] == shortened
    assert len(await talk.log.list_epochs(talk.session)) == 1
    done = await talk.care.revert(talk.session, 1)
    assert (done.quote, done.now) == (quoted.quote, quoted.now)


async def test_a_quote_begins_with_what_the_newest_call_sent_and_would_have_sent(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.grow_to(3)
    plan = (await row_of(talk)).rounds[-1].plan
    uncounted = await talk.care.quote(talk.session, 3)
    assert uncounted.now == plan.tokens_upstream
    counted, read = 2 * plan.tokens_upstream, talk.log.list_calls

    async def count(*asked: Any) -> list[ExchangeRow]:
        """The calls with a usage that is not what we counted."""
        usage = Usage(input=counted)
        rows = await read(*asked)
        return [dataclasses.replace(row, rounds=(dataclasses.replace(row.rounds[-1], usage=usage),)) for row in rows]

    monkeypatch.setattr(talk.log, "list_calls", count)
    last, first = await talk.care.quote(talk.session, 3), await talk.care.quote(talk.session, 1)
    assert last.now == first.now == counted
    epochs = await talk.log.list_epochs(talk.session)
    assert last.quote.tokens == last.now + epochs[2].tokens_before - epochs[2].tokens_after
    assert first.quote.tokens == estimate_size(plan, counted)


async def test_a_revert_ends_at_the_high_mark(talk: Talk) -> None:
    await talk.grow_to(1)
    await talk.care.revert(talk.session, 1)
    history = await talk.grow_to(2)
    assert [epoch.why for epoch in await talk.log.list_epochs(talk.session)] == ["soft", "revert", "hard"]
    assert len(sent(talk)) < len(history)


async def test_the_tokens_of_a_quote_are_those_of_the_next_request(talk: Talk) -> None:
    history = await talk.grow_to(1)
    before = (await row_of(talk)).rounds[0].plan
    reversion = await talk.care.revert(talk.session, 1)
    await talk.ask(history)
    plan = (await row_of(talk)).rounds[0].plan
    assert reversion.quote.tokens == plan.tokens_client == plan.tokens_upstream
    assert reversion.now == before.tokens_upstream


async def test_calls_of_our_own_hide_no_request_from_a_quote(talk: Talk) -> None:
    history = await talk.grow_to(1)
    before = await talk.care.quote(talk.session, 1)
    key = replace(make_key(), id=talk.session)
    for i in range(120):  # more than are looked at in one go
        assert await talk.log.append(make_opening(f"a{i}", key=key, kind="auxiliary"))
    more = make_history(talk.step + 20, 300)
    await talk.ask([*history, *more[len(history) :]])
    plan = (await talk.log.list_exchanges(talk.session, (await talk.log.find_session(talk.session)).recorded - 1))[0]
    quoted = await talk.care.quote(talk.session, 1)
    assert quoted.now > before.now
    assert plan.rounds[0].plan is not None
    assert quoted.now == plan.rounds[0].plan.tokens_upstream


async def test_going_back_before_a_later_epoch_is_going_back_to_the_one_before_it(talk: Talk) -> None:
    history = await talk.grow_to(2)
    first, second = (await talk.log.load_context(talk.session)).epochs[:2]
    assert second.parent == first.id
    reversion = await talk.care.revert(talk.session, 2)
    assert (reversion.epoch.rendered, reversion.epoch.depth) == (first.rendered, first.depth)
    assert reversion.epoch.originals == first.originals
    if reversion.quote.is_lasting:
        await talk.ask(history)
        assert sent(talk)[1] == json.loads(first.rendered[0])


async def test_a_revert_can_be_taken_back_but_not_done_twice(talk: Talk) -> None:
    history = await talk.grow_to(1)
    shortened = talk.upstream.bodies[-1]
    await talk.care.revert(talk.session, 1)
    with pytest.raises(Conflict, match="reverted already"):
        await talk.care.revert(talk.session, 1)
    await talk.care.revert(talk.session, 2)
    await talk.ask(history)
    assert talk.upstream.bodies[-1] == shortened


async def test_a_revert_is_told_on_the_bus(talk: Talk) -> None:
    await talk.grow_to(1)
    reversion = await talk.care.revert(talk.session, 1)
    last = [event for event in talk.engine.events if isinstance(event, EpochOpened)][-1]
    assert (last.epoch.id, last.epoch.why, last.epoch.exchange) == (reversion.epoch.id, "revert", "")


async def test_another_branch_is_left_alone(talk: Talk) -> None:
    history = await talk.grow_to(1)
    edited = [*history[:6], {"role": "user", "content": "otherwise"}, *make_history(60, 300)[6:]]
    await talk.ask(edited)
    shortened = sent(talk)
    assert len(shortened) < len(edited)
    await talk.care.revert(talk.session, 1)
    epochs = len(await talk.log.list_epochs(talk.session))
    talk.engine.controller.states.caches.contexts.clear()
    await talk.ask(edited)
    assert sent(talk) == shortened
    assert len(await talk.log.list_epochs(talk.session)) == epochs
    await talk.ask(history)
    assert sent(talk) == history


async def test_an_epoch_that_is_not_there_cannot_be_reverted(talk: Talk) -> None:
    await talk.grow(1)
    with pytest.raises(NotFound):
        await talk.care.quote(talk.session, 1)


async def test_what_is_pinned_stays_in_the_next_epoch(talk: Talk) -> None:
    await talk.grow(2)
    row = await row_of(talk, 1)
    pinned = await talk.care.pin(row, 0)
    assert (pinned.place, json.loads(pinned.raw)["role"]) == (0, "user")
    call = await talk.care.pin(await row_of(talk, 2), 2)
    assert call.tokens > 0
    history = await talk.grow_to(1)
    assert len(sent(talk)) < len(history)
    assert history[2] in sent(talk)
    assert history[3] in sent(talk)


async def test_the_newest_message_is_pinned_where_no_place_is_named(talk: Talk) -> None:
    history = await talk.grow(2, size=100)
    pinned = await talk.care.pin(await row_of(talk, 2), None)
    assert json.loads(pinned.raw) == history[-1]
    assert [each.node for each in await talk.care.list_pins(talk.session)] == [pinned.node]


async def test_pins_are_listed_where_they_stand_and_outlive_a_restart(talk: Talk) -> None:
    await talk.grow(3, size=100)
    pinned = [await talk.care.pin(await row_of(talk, 3), place) for place in (0, 4)]
    for _ in range(2):
        assert [(pin.node, pin.place, pin.tokens) for pin in await talk.care.list_pins(talk.session)] == [
            (pin.node, pin.place, pin.tokens) for pin in pinned
        ]
        await talk.reopen()
    await talk.care.unpin(await row_of(talk, 3), 4)
    await talk.care.unpin_node(talk.session, pinned[0].node)
    assert await talk.care.list_pins(talk.session) == []
    for question in (talk.care.unpin(await row_of(talk, 3), 4), talk.care.unpin_node(talk.session, b"?")):
        with pytest.raises(NotFound, match="not pinned"):
            await question


async def test_a_pin_on_a_branch_that_nobody_has_any_more_is_listed_without_a_place(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.grow(2, size=100)
    await talk.care.pin(await row_of(talk, 2), 0)
    monkeypatch.setattr(talk.log, "list_branches", AsyncMock(return_value=()))
    (lost,) = await talk.care.list_pins(talk.session)
    assert (lost.exchange, lost.raw) == (None, b"")


async def test_without_pins_the_branches_are_not_asked_for(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    await talk.grow(2, size=100)
    monkeypatch.setattr(talk.log, "list_branches", AsyncMock(side_effect=StoreUnavailable("asked")))
    assert await talk.care.list_pins(talk.session) == []


async def test_pins_beyond_their_share_are_refused(talk: Talk) -> None:
    await talk.grow(2, size=1200)
    await talk.care.pin(await row_of(talk, 2), 2)
    with pytest.raises(Conflict, match=r"0\.1 of its budget; these would have"):
        await talk.care.pin(await row_of(talk, 2), 4)
    assert [each.place for each in await talk.care.list_pins(talk.session)] == [2]


async def test_what_is_pinned_already_is_not_noted_again(talk: Talk) -> None:
    await talk.grow(2)
    await talk.care.pin(await row_of(talk, 2), 2)
    pins = (await talk.log.load_context(talk.session)).pins
    talk.engine.clock.advance(1)
    assert (await talk.care.pin(await row_of(talk, 2), 2)).place == 2
    assert (await talk.log.load_context(talk.session)).pins == pins


async def test_a_place_that_is_not_there_is_told(talk: Talk) -> None:
    await talk.grow(1)
    for place in (3, 100):
        with pytest.raises(NotFound, match="3 messages behind its preamble, counted from 0"):
            await talk.care.pin(await row_of(talk, 1), place)


async def test_what_was_archived_before_it_was_pinned_stays_from_the_next_epoch_on(talk: Talk) -> None:
    history = await talk.grow_to(1)
    before = sent(talk)
    assert history[2] not in before
    await talk.care.pin(await row_of(talk), 1)
    await talk.ask(history)
    assert sent(talk) == before
    await talk.grow_to(2)
    assert history[2] in sent(talk)


async def test_what_the_log_does_not_take_is_not_done(talk: Talk) -> None:
    class Late:
        async def confirm(self, commit: "asyncio.Future[bool]") -> bool:
            await commit
            return False

    history = await talk.grow_to(1)
    shortened = talk.upstream.bodies[-1]
    parts = talk.engine
    care = EpochAdmin(parts.controller.states, talk.log, Late(), parts.bus, parts.ids)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="try again"):
        await care.revert(talk.session, 1)
    with pytest.raises(StoreUnavailable):
        await care.pin(await row_of(talk), 0)
    await talk.ask(history)
    assert talk.upstream.bodies[-1] == shortened
    assert await talk.care.list_pins(talk.session) == []
