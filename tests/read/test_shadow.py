"""What shadow checks found: shares with their intervals, and calls by session, model and age."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.engine.models import PriceList
from proxy.model.card import Card
from proxy.model.exchange import Usage
from proxy.model.log import ShadowRow
from proxy.read.shadow import ShadowReport, Share, compute_share, load_shadow
from tests.support.unmanaged import UnmanagedLog

SAID = b'{"choices":[{"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}'
ELSE = SAID.replace(b"Done", b"Not yet")


def make_row(
    n: int,
    own: bytes = SAID,
    *,
    session: str = "s",
    model: str = "m",
    age: int | None = 5,
    wire: str = "chat_completions",
) -> ShadowRow:
    named = (f"x{n}", session, n, wire, "main", model, 200)
    return ShadowRow(*named, Usage(100, 0), Usage(90, 0), age, ("stop", "stop"), (SAID, own))


@dataclass
class CheckedLog(UnmanagedLog):
    """A log with these checks."""

    rows: Sequence[ShadowRow]

    async def list_shadows(self, since_ms: int, limit: int = 0) -> Sequence[ShadowRow]:
        assert since_ms == 0
        return self.rows


async def load(*rows: ShadowRow, models: Sequence[str] = ()) -> ShadowReport | None:
    log: Any = CheckedLog(rows)
    return await load_shadow(log, PriceList(lambda upstream, model: Card()), models)


@pytest.mark.parametrize(
    ("count", "whole", "expected"),
    [  # by Wilson's formula, worked out by hand for z = 1.96
        (0, 10, (0.0, 0.0, 0.2775)),
        (5, 10, (0.5, 0.2366, 0.7634)),
        (10, 10, (1.0, 0.7225, 1.0)),
        (81, 263, (0.30798, 0.2553, 0.3662)),
    ],
)
def test_an_interval_is_that_of_wilsons_score(count: int, whole: int, expected: tuple[float, float, float]) -> None:
    found = compute_share(count, whole)
    assert found is not None
    assert (found.share, found.low, found.high) == pytest.approx(expected, abs=1e-4)


def test_of_nothing_there_is_no_share() -> None:
    assert compute_share(0, 0) is None


async def test_without_checks_there_is_no_report() -> None:
    assert await load() is None


async def test_calls_are_told_by_session_model_and_age() -> None:
    found = await load(
        make_row(1, age=200),
        make_row(2, ELSE, session="t", age=10),
        make_row(3, b"", model="claude-fable-5-2", age=None),
        make_row(4, age=11, wire="unheard of"),
        models=["gpt-4o", "claude-opus-5-5"],
    )
    assert found is not None
    total = found.total
    assert (total.same, total.text, total.uncompared) == (1, 1, 2)
    assert (total.agreement, total.same_tool) == (compute_share(1, 2), compute_share(2, 2))
    assert (total.tokens, total.money) == (400.0, None)
    assert [(each.name, each.same, each.text, each.uncompared) for each in found.sessions] == [
        ("s", 1, 0, 2),
        ("t", 0, 1, 0),
    ]
    assert [each.name for each in found.models] == ["m at main", "claude-fable-5-2 at main"]
    assert [each.name for each in found.ages] == [
        "0 to 10 messages",
        "11 to 30 messages",
        "101 messages or more",
        "unknown",
    ]
    assert found.bound == ["claude-fable-5-2", "claude-opus-5-5", "m"]
    assert isinstance(total.agreement, Share)
