"""Plans are values; their edits can be kept as JSON and read again."""

import msgspec
import pytest

from proxy.model.plan import ContextPlan, Edit, Kept, Plan, Reference, Replaced, Written

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
