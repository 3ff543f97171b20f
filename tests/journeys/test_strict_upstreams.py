"""Long sessions in this process, at upstreams that refuse whatever their APIs refuse: nothing is refused.

The engine's own tests have one session of each kind.
"""

from typing import Any

import pytest

from tests.support.bound_sessions import BoundSession
from tests.support.compacting_sessions import CompactingMessages, CompactingResponses
from tests.support.message_sessions import MessageSession
from tests.support.recalling_models import PAGE, make_recalling, recall
from tests.support.response_sessions import ResponseSession

NEVER = ("refused", "failed", "healed", "dropped", "put back")
UNBOUND = {"model": "claude-sonnet-4-5", "other": "claude-opus-4-1"}
WHOLE = {"is_stream": False}
MANUAL: dict[str, Any] = {"body": {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "often": 0, "seed": 7}
SESSIONS: list[tuple[Any, int, int, dict[str, Any]]] = [
    (MessageSession, 8_000, 1_500, {"often": 0}),
    (MessageSession, 8_000, 1_500, UNBOUND | {"marking": "", "seed": 2}),
    (MessageSession, 16_000, 2_500, {"marking": "top", "seed": 3, "check": "drop"}),
    (MessageSession, 32_000, 6_000, UNBOUND | WHOLE | {"seed": 4}),
    (ResponseSession, 8_000, 1_500, {"often": 0}),
    (ResponseSession, 16_000, 2_500, {"echo": "codex", "seed": 2}),
    (ResponseSession, 32_000, 6_000, WHOLE | {"echo": "bare", "seed": 3}),
    (ResponseSession, 64_000, 9_000, {"echo": "between", "seed": 4}),
    (BoundSession, 16_000, 2_500, {"member": "thinking_blocks", "seed": 3}),
    (BoundSession, 32_000, 6_000, {"seed": 4}),
    (BoundSession, 64_000, 12_000, {"check": "drop", "seed": 5}),
]


@pytest.mark.parametrize(("kind", "ceiling", "size", "options"), SESSIONS)
async def test_nothing_is_refused_because_of_us(kind: Any, ceiling: int, size: int, options: dict[str, Any]) -> None:
    session = kind(ceiling, size=size, **{"often": 4} | options)
    await run(session, 110)
    counts = session.counts
    assert counts["managed"] > 0.25 * counts["calls"]
    assert kind is ResponseSession or counts["blocks sent"] > 0.2 * counts["messages"]
    assert kind is ResponseSession or options.get("model") or not counts["unsaid"]


@pytest.mark.parametrize("is_interleaved", [True, False])
@pytest.mark.parametrize("options", [UNBOUND, {"model": "claude-haiku-4-5"}, {"model": "unknown-1"}])
async def test_where_thinking_has_a_budget_a_turn_under_way_begins_with_thinking(
    options: dict[str, Any], *, is_interleaved: bool
) -> None:
    session = MessageSession(8_000, size=1_500, **MANUAL, **options)
    session.upstream.is_interleaved = is_interleaved
    await run(session, 110)
    assert session.counts["managed"] > 0.4 * session.counts["calls"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CompactingMessages, WHOLE | {"marking": "long", "seed": 1}),
        (CompactingMessages, {"model": "claude-opus-4-8", "marking": "top", "seed": 2}),
        (CompactingResponses, {"seed": 3}),
    ],
)
async def test_nothing_is_refused_where_the_provider_compacts(kind: Any, options: dict[str, Any]) -> None:
    session = kind(8_000, size=1_500, often=4, **options)
    await run(session, 110)
    assert len(session.upstream.compacted) >= 3
    sent = sum(session.find_block(request) is not None for request in session.sent_requests)
    assert sent > 0.3 * session.counts["calls"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BoundSession, {"often": 0}),
        (BoundSession, {"often": 3, "seed": 2, "member": "thinking_blocks"}),
        (MessageSession, {"often": 0}),
        (MessageSession, {"often": 4, "seed": 2, "is_stream": False}),
        (MessageSession, {"often": 4, "seed": 3, **UNBOUND}),
        (MessageSession, {"often": 4, "seed": 4, "marking": "top", "check": "drop"}),
        (ResponseSession, {"often": 0}),
        (ResponseSession, {"often": 4, "seed": 2, "is_stream": False}),
        (ResponseSession, {"often": 4, "seed": 3, "echo": "codex"}),
        (ResponseSession, {"often": 4, "seed": 4, "echo": "bare"}),
    ],
)
async def test_nothing_is_refused_because_a_model_recalls(kind: Any, options: dict[str, Any]) -> None:
    ceiling, size = (4_000, 900) if kind is BoundSession else (8_000, 1_500)
    session = kind(ceiling, size=size, run=recall, **options)
    made = make_recalling(session.upstream)
    await session.run(60)
    await session.talk.close()
    assert session.upstream.refused == 0
    assert (session.counts["refused"], session.counts["failed"]) == (0, 0)
    assert len(made) > 5 and any(PAGE.encode() in call.body for call in session.upstream.calls)
    assert b"context_recall" not in b"".join(repr(message).encode() for message in session.history)


async def run(session: Any, calls: int) -> None:
    """So many calls, none of which may be refused, healed or dropped."""
    await session.run(calls)
    await session.talk.close()
    assert session.upstream.refused == 0
    assert {name: session.counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
