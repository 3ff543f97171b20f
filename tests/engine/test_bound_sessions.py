"""Sessions on a model that binds its reasoning (BEHAVIOUR B37), at an upstream that checks it strictly.

Nothing is refused, not even inside a call, and what is not sent is told. `benchmarks/strict_sessions.py` has long ones.
"""

import pytest

from tests.support.bound_sessions import MODEL, BoundSession
from tests.support.strict_upstream import Check, Member

NEVER = ("refused", "failed", "healed", "dropped", "unsaid", "put back")


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("ceiling", "size", "check", "member", "seed"),
    [
        (8_000, 1_500, "error", "reasoning_details", 1),
        (8_000, 1_500, "drop", "thinking_blocks", 2),
    ],
)
async def test_nothing_is_refused_because_of_us(
    ceiling: int, size: int, check: Check, member: Member, seed: int
) -> None:
    session = BoundSession(ceiling, check=check, member=member, seed=seed, size=size, often=4)
    await session.run(60)
    await session.talk.close()
    counts = session.counts
    assert {name: counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert counts["managed"] > 0.25 * counts["calls"]
    assert counts["blocks sent"] > 0.3 * counts["messages"]
    assert min(counts[name] for name in ("restart", "retry", "branch", "bypass", "observe")) > 0


async def test_what_was_made_under_an_epoch_is_known_after_a_restart() -> None:
    session = BoundSession(8_000, size=1_500, often=0)
    while session.counts["managed"] < 3:
        await session.call()
    kept = session.counts["blocks sent"]
    await session.call()
    kept = session.counts["blocks sent"] - kept
    await session.restart()
    before = session.counts["blocks sent"]
    await session.call()
    assert session.counts["blocks sent"] - before == kept + 1
    assert kept >= 2
    await session.call("bypass")
    assert session.counts["refused"] == session.counts["healed"] == 0
    await session.talk.close()


async def test_the_history_of_a_client_is_accepted_without_us_when_the_reasoning_behind_an_epoch_is_gone() -> None:
    session = BoundSession(8_000, size=1_500, often=0)
    while session.counts["managed"] < 6:
        await session.call()
    own = {"model": MODEL, "messages": session.history}
    assert session.upstream.find_faults(own)
    bare = [{k: v for k, v in message.items() if k != "reasoning_details"} for message in session.history]
    assert not session.upstream.find_faults(own | {"messages": bare})
    await session.call("bypass")
    sent = session.upstream.read_last()
    assert not session.upstream.find_faults(sent)
    assert 0 < sum("reasoning_details" in message for message in sent["messages"]) < session.counts["calls"] - 1


async def test_the_upstream_is_strict() -> None:
    session = BoundSession(1_000_000, often=0)
    for _ in range(6):
        await session.call()
    upstream, own = session.upstream, session.upstream.read_last()
    messages = own["messages"]
    assert not upstream.find_faults(own)
    spelled = [m | {"content": [{"type": "text", "text": f" {m['content']}\n"}]} for m in messages]
    assert not upstream.find_faults(own | {"messages": spelled})  # only the spelling differs
    places = [place for place, message in enumerate(messages) if "reasoning_details" in message]
    bare = [
        {k: v for k, v in m.items() if k != "reasoning_details"} if p == places[1] else m
        for p, m in enumerate(messages)
    ]
    assert upstream.find_faults(own | {"messages": bare}) == places[2:]  # behind a gap
    changed = [m | {"content": "[output pruned]"} if p == places[0] + 1 else m for p, m in enumerate(messages)]
    assert upstream.find_faults(own | {"messages": changed}) == places[1:]
    assert upstream.find_faults(own | {"tools": []}) == places
