"""Plans, epochs and summaries are values, and go through msgspec unchanged."""

from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from proxy.model.epoch import (
    ContextPlan,
    Edit,
    Epoch,
    EpochReason,
    Kept,
    Original,
    Pin,
    Plan,
    Reference,
    Replaced,
    StoredContext,
    StoredOriginal,
    Summary,
    Written,
)
from proxy.model.log import Record

EDITS: tuple[Edit, ...] = (
    Written("done so far", 1, 7),
    Kept(0),
    Replaced(7, "[shown earlier]", "tombstone"),
    Replaced(8, "[FILE: a.py]", "file"),
)


def test_edits_come_back_from_json_as_what_they_were() -> None:
    found = msgspec.json.decode(msgspec.json.encode(EDITS), type=tuple[Edit, ...])
    assert found == EDITS
    assert [type(edit) for edit in found] == [Written, Kept, Replaced, Replaced]


@pytest.mark.parametrize("content", [b'[["Dropped",1]]', b'[["Kept"]]', b'[["Replaced",1,"x","other"]]', b"[1]"])
def test_what_is_no_edit_is_not_read_as_one(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(content, type=tuple[Edit, ...])


def test_a_plan_is_new_and_protects_nothing_unless_it_is_said() -> None:
    plan = ContextPlan(8, EDITS, (Reference("r1", 1, 7),), 900)
    assert (plan.rung, plan.protected, plan.references[0].offset) == ("plan", 0, 0)


def test_a_round_of_which_nothing_is_known_owes_nothing_and_counts_nothing() -> None:
    plan = Plan("x1", 0, "gpt-5", "original")
    assert (plan.epoch, plan.pressure, plan.reason, plan.usable, plan.owed) == ("", "none", "", 0, 0.0)
    assert (plan.tokens_client, plan.tokens_upstream, plan.saving) == (None, None, None)


def test_a_plan_cannot_be_changed() -> None:
    plan = Plan("x1", 0, "gpt-5", "original")
    with pytest.raises(AttributeError):
        plan.owed = 1.0  # type: ignore[misc]


EPOCH = Epoch("p1", "s1", "gpt-5", "", b"n" * 16, 4, "hard", "x1", 7, 90, 30, b"[]", (b"{}",))


def test_an_epoch_refers_to_nothing_unless_it_is_said() -> None:
    assert EPOCH.originals == ()
    original = Original("r1", (b"d" * 32,), "chat_completions", 3)
    assert original.offset == 0
    assert replace(EPOCH, originals=(original,)) != EPOCH == replace(EPOCH)


def test_an_epoch_without_what_came_later_is_still_understood() -> None:
    fields = msgspec.structs.astuple(EPOCH)[:-1]
    payload = msgspec.msgpack.encode(["Epoch", *fields])
    assert msgspec.msgpack.decode(payload, type=Epoch | Pin) == EPOCH


def test_an_epoch_and_a_pin_cannot_be_changed() -> None:
    pin = Pin("s1", b"n" * 16, True, 7)
    with pytest.raises(AttributeError):
        EPOCH.depth = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        pin.is_on = False  # type: ignore[misc]


def test_of_a_session_that_nobody_managed_nothing_is_known() -> None:
    assert StoredContext() == StoredContext((), (), ())
    original = Original("r1", (), "responses", 0)
    assert StoredOriginal("s1", original, ()) != StoredOriginal("s2", original, ())


LEAF = Summary("a", "s", "w", 0, 1, b"\xff" * 16, "leaf", 3, True, "é\0", 1, 2, 3, digests=(b"\x00" * 32,))
CONDENSED = replace(LEAF, kind="condensed", level=1, calls=("e1",), parents=("a", "b"), files=("ref:c",), digests=())


@pytest.mark.parametrize("summary", [LEAF, CONDENSED], ids=lambda summary: summary.kind)
def test_a_summary_is_told_from_other_records_and_comes_back(summary: Summary) -> None:
    encoded = msgspec.msgpack.encode((summary,))
    assert msgspec.msgpack.decode(encoded, type=tuple[Record, ...]) == (summary,)


def test_a_level_that_is_none_is_refused() -> None:
    encoded = msgspec.msgpack.encode(replace(LEAF, level=4))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=Summary)


def test_what_goes_back_to_the_epoch_before_is_a_reversion() -> None:
    assert [why for why in get_args(EpochReason) if replace(EPOCH, why=why).is_reversion] == ["revert", "refused"]
