"""Recall within answers at upstreams that check all rules of their APIs: nothing is refused, and the log is sound."""

import json
from typing import Any

import pytest

from proxy.engine.models import PriceList
from proxy.model.card import Card
from proxy.read.savings import group_calls, price_call, price_round
from tests.support.bound_sessions import BoundSession
from tests.support.message_sessions import MessageSession
from tests.support.recalling_models import make_recalling, recall
from tests.support.response_sessions import ResponseSession


@pytest.mark.parametrize("is_stream", [True, False])
async def test_all_rounds_are_billed(is_stream: bool) -> None:
    session = MessageSession(8_000, size=1_500, often=0, run=recall, is_stream=is_stream)
    made = make_recalling(session.upstream)
    await session.run(40)
    await session.talk.settle()
    log, calls = session.talk.log, session.upstream.calls
    rows = await log.load_rounds(session.talk.session)
    assert made and len(rows) == len(calls) > 40
    assert [row.input for row in rows] == [len(json.dumps(json.loads(call.body))) // 4 for call in calls]
    known = await log.find_session(session.talk.session)
    tallies = await log.load_tallies([known.id])
    assert (sum(each.output for each in tallies), known.exchanges) == (99 * len(calls), 40)
    hops = [row for row in rows if not row.client]
    assert len(hops) == len(calls) - 40
    prices = PriceList(lambda *_: Card(), {})
    (_, hop), whole = price_round(hops[0], prices), [price_call(call, prices)[1] for call in group_calls(rows)]
    assert hop is not None and hop.tokens < 0 < sum(each.tokens for each in whole if each is not None)
    await session.talk.close()


@pytest.mark.parametrize("kind", [BoundSession, MessageSession, ResponseSession])
async def test_under_one_epoch_what_is_sent_only_grows_round_by_round(kind: Any) -> None:
    options = {"marking": ""} if kind is MessageSession else {}
    session = kind(8_000, size=1_500, often=0, run=recall, **options)
    made = make_recalling(session.upstream)
    await session.run(40)
    await session.restart()
    await session.run(20)
    await session.talk.settle()
    rows = await session.talk.log.list_exchanges(session.talk.session, limit=100)
    epochs = [each.plan.epoch if each.plan else "" for row in rows for each in row.rounds]
    sent = [json.loads(call.body)[kind.items_key] for call in session.upstream.calls]
    pairs = list(zip(sent, sent[1:], epochs, epochs[1:], strict=False))
    grown = [now[: len(before)] == before for before, now, first, second in pairs if first == second != ""]
    assert made and len(sent) == len(epochs) and len(grown) > 20 and all(grown)
    await session.talk.close()
