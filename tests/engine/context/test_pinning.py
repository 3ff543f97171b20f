"""Pins that come with requests."""

import json

import pytest

from proxy.engine.context.client_orders import find_pin_objection
from proxy.model.epoch import Pin, StoredContext
from tests.support.managing import make_history, spell
from tests.support.talking import Talk

PIN = (b"x-palimpsest-pin", b"true")
NOTICE = b"x-palimpsest-notice"


@pytest.mark.parametrize(("tokens", "usable", "is_fine"), [(388, 3880, True), (389, 3880, False), (0, 0, True)])
def test_pins_have_a_tenth_of_the_budget(tokens: int, usable: int, *, is_fine: bool) -> None:
    assert (find_pin_objection(tokens, usable) == "") == is_fine


async def pins_of(talk: Talk) -> tuple[Pin, ...]:
    found: StoredContext = await talk.log.load_context(talk.session)
    return found.pins


async def test_a_request_pins_its_newest_message(talk: Talk) -> None:
    await talk.grow(1)
    history = make_history(9, 300)
    client = await talk.ask(history[:6], PIN)
    assert NOTICE not in dict(client.labels)
    (pin,) = await pins_of(talk)
    assert (pin.is_on, pin.session) == (True, talk.session)
    talk.engine.clock.advance(1)
    await talk.ask(history[:6], PIN)
    assert await pins_of(talk) == (pin,)
    whole = await talk.grow_to(1)
    sent = json.loads(talk.upstream.bodies[-1])["messages"]
    assert len(sent) < len(whole)
    assert history[5] in sent
    assert history[3] not in sent


async def test_one_that_is_too_much_is_not_taken_and_the_call_goes_on(talk: Talk) -> None:
    history = make_history(1, 3000)
    await talk.ask(history[:2])
    client = await talk.ask(history, PIN)
    assert dict(client.labels)[NOTICE].startswith(b"not pinned: pins may have 388 tokens together")
    assert client.status == 200
    assert await pins_of(talk) == ()


async def test_where_a_call_is_not_managed_the_client_is_told(talk: Talk) -> None:
    history = make_history(1)
    await talk.ask(history[:2])
    observed = await talk.ask(history, PIN, (b"x-palimpsest-mode", b"observe"))
    assert dict(observed.labels)[NOTICE] == b"not pinned: observe was asked for"
    assert talk.upstream.bodies[-1] == spell(history, tools=json.loads(talk.upstream.bodies[-1])["tools"])
    assert await pins_of(talk) == ()


@pytest.mark.parametrize("value", [b"false", b"", b"1"])
async def test_another_value_pins_nothing(talk: Talk, value: bytes) -> None:
    history = make_history(1)
    await talk.ask(history[:2])
    client = await talk.ask(history, (b"x-palimpsest-pin", value))
    assert NOTICE not in dict(client.labels)
    assert await pins_of(talk) == ()


async def test_a_pin_beside_a_compaction_tells_both(talk: Talk) -> None:
    await talk.grow(26)
    history = make_history(27, 300)
    history[-1] = {**history[-1], "content": "x " * 6500}
    client = await talk.ask(history, PIN)
    notices = [value for name, value in client.labels if name == NOTICE]
    assert [notice.split(b" ")[0] for notice in notices] == [b"compacted", b"not"]
