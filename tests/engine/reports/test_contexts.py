"""Plans and epochs as documents."""

from dataclasses import replace

import msgspec
import pytest

from proxy.engine.reports.context import describe_plan, find_bound, list_epochs, load_epoch, read_edits
from proxy.model.epoch import Epoch, Original
from proxy.model.errors import NotFound
from proxy.model.plan import Kept, Plan, Replaced, Written
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog

PLAN = Plan("x1", 0, "m", "epoch", "e1", "soft", "why not", 900, 300, 1000, 4.5, -2.5)
EDITS = (Written("ledger", 0, 4), Kept(0), Replaced(3, "gone", "tombstone"))
EPOCH = Epoch(
    *("e1", "abc1", "m", "", b"\x01" * 16, 4, "soft", "x1", 7, 900, 300, msgspec.json.encode(EDITS)),
    rendered=(b'{"n": 1e400}',),
    originals=(Original("r1", (b"d", b"e"), "chat_completions", 1, 50),),
)


class EpochLog(FakeLog):
    """Has one epoch, or one whose edits were erased."""

    epoch = EPOCH

    async def list_epochs(self, session: str) -> list[Epoch]:
        return [msgspec.structs.replace(self.epoch, rendered=())]

    async def load_epoch(self, session: str, n: int) -> Epoch:
        if n != 1:
            raise NotFound(f"there is no epoch {n} of session {session}")
        return self.epoch


async def test_epochs_are_listed_without_what_they_send() -> None:
    (listed,) = await list_epochs(EpochLog(), "abc")
    assert listed["references"] == [{"id": "r1", "start": 1, "stop": 3, "offset": 50}]
    assert (listed["n"], listed["id"], listed["depth"], listed["tokens_before"]) == (1, "e1", 4, 900)
    assert not {"rendered", "edits"} & set(listed)


async def test_an_epoch_is_shown_with_its_edits_and_its_messages_as_they_were_sent() -> None:
    shown = await load_epoch(EpochLog(), "abc", 1)
    assert shown["edits"] == [
        {"edit": "written", "start": 0, "stop": 4, "text": "ledger"},
        {"edit": "kept", "place": 0},
        {"edit": "tombstone", "place": 3, "text": "gone"},
    ]
    assert msgspec.json.encode(shown["rendered"]) == b'[{"n": 1e400}]'
    assert shown["through"] == "01" * 16
    with pytest.raises(NotFound, match="no epoch 2 of session abc1; it has 1, counted from 1"):
        await load_epoch(EpochLog(), "abc", 2)


def test_erased_edits_are_none() -> None:
    assert read_edits(msgspec.structs.replace(EPOCH, edits=b"")) == ()


def test_a_plan_has_all_that_was_decided() -> None:
    told = describe_plan(PLAN)
    assert told is not None
    assert (told["rung"], told["epoch"], told["tokens_client"], told["saving"]) == ("epoch", "e1", 900, -2.5)
    assert not {"exchange", "k"} & set(told)
    assert describe_plan(None) is None


@pytest.mark.parametrize(
    ("row", "bound"),
    [
        (EXCHANGE, 1034),
        (replace(EXCHANGE, rounds=(replace(ROUND, plan=PLAN),)), None),
        (replace(EXCHANGE, rounds=(replace(ROUND, plan=Plan("x1", 0, "m", "original")),)), 1034),
        (replace(EXCHANGE, rounds=()), 1034),
        (replace(EXCHANGE, kind="passthrough"), None),
        (replace(EXCHANGE, is_capped=True), None),
    ],
)
def test_what_was_not_counted_has_a_bound(row: object, bound: int | None) -> None:
    assert find_bound(row, b"0123456789") == bound  # type: ignore[arg-type]


def test_a_picture_has_no_bound() -> None:
    assert find_bound(EXCHANGE, b'{"type":"image_url"}') is None
