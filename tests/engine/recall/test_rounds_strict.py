"""Recall within answers at upstreams that check all rules of their APIs: nothing is refused, and the log is sound."""

from pathlib import Path
from typing import Any

import pytest

from proxy.store.sqlite.verify import verify_log
from tests.support.bound_sessions import BoundSession
from tests.support.message_sessions import MessageSession
from tests.support.recalling_models import PAGE, make_recalling, recall
from tests.support.response_sessions import ResponseSession

UNBOUND = {"model": "claude-sonnet-4-5", "other": "claude-opus-4-1"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BoundSession, {"often": 0}),
        (BoundSession, {"often": 3, "seed": 1}),
        (BoundSession, {"often": 3, "seed": 2, "member": "thinking_blocks"}),
        (MessageSession, {"often": 0}),
        (MessageSession, {"often": 4, "seed": 1}),
        (MessageSession, {"often": 4, "seed": 2, "is_stream": False}),
        (MessageSession, {"often": 4, "seed": 3, **UNBOUND}),
        (MessageSession, {"often": 4, "seed": 4, "marking": "top", "check": "drop"}),
        (ResponseSession, {"often": 0}),
        (ResponseSession, {"often": 4, "seed": 1}),
        (ResponseSession, {"often": 4, "seed": 2, "is_stream": False}),
        (ResponseSession, {"often": 4, "seed": 3, "echo": "codex"}),
        (ResponseSession, {"often": 4, "seed": 4, "echo": "bare"}),
    ],
)
async def test_nothing_is_refused_because_a_model_recalls(tmp_path: Path, kind: Any, options: dict[str, Any]) -> None:
    ceiling, size = (4_000, 900) if kind is BoundSession else (8_000, 1_500)
    session = kind(ceiling, size=size, path=tmp_path, run=recall, **options)
    made = make_recalling(session.upstream)
    await session.run(90)
    await session.talk.close()
    assert session.upstream.refused == 0
    assert (session.counts["refused"], session.counts["failed"]) == (0, 0)
    assert len(made) > 5 and any(PAGE.encode() in call.body for call in session.upstream.calls)
    assert b"context_recall" not in b"".join(map(repr_of, session.history))
    assert verify_log(tmp_path / "log.db").faults == ()


def repr_of(message: Any) -> bytes:
    return repr(message).encode()
