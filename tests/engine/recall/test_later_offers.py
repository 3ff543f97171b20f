"""The tool in sessions whose epochs are older than it."""

import json

from tests.engine.recall.test_rounds_chat import TOOLS, open_epoch, run, until
from tests.engine.test_refused_epochs import REFUSAL, sign
from tests.support.managed import ManagedEngine, answer


async def test_an_epoch_that_follows_one_without_the_tool_offers_it_and_says_so() -> None:
    engine = ManagedEngine()
    await open_epoch(engine)
    assert [epoch.tool for epoch in engine.epochs] == [b""]
    engine = ManagedEngine(run=run, after=engine)
    for steps in range(23, 50):
        turn = await engine.send(until(steps), tools=TOOLS)
        sent = json.loads(turn.sent)
        if len(engine.epochs) == 1:
            assert sent["tools"] == TOOLS and "palimpsest expand" in turn.sent.decode()
        else:
            assert sent["tools"][-1]["function"]["name"] == "context_recall"
            assert "call context_recall" in turn.sent.decode() and "palimpsest expand" not in turn.sent.decode()
    assert len(engine.epochs) > 2 and {epoch.tool for epoch in engine.epochs[1:]} == {engine.epochs[-1].tool}
    assert engine.failures == []


async def test_what_an_upstream_refused_is_sent_again_with_the_tools_that_it_had() -> None:
    engine = ManagedEngine()
    await engine.send(sign(until(14)), tools=TOOLS)
    await engine.send(sign(until(22)), tools=TOOLS)
    engine = ManagedEngine(answer(REFUSAL, 400), answer(), run=run, after=engine)
    turn = await engine.send(sign(until(23)), tools=TOOLS)
    assert [epoch.why for epoch in engine.epochs] == ["hard", "unsigned"]
    assert {epoch.tool for epoch in engine.epochs} == {b""}
    assert json.loads(turn.all_sent[-1])["tools"] == TOOLS
    turns = [await engine.send(until(steps), tools=TOOLS) for steps in range(24, 50)]
    assert engine.epochs[-1].tool and "call context_recall" in turns[-1].sent.decode()
    assert engine.failures == []
