"""Outputs that come turns after their calls, as the Responses wire allows: both stay, or both go.

What stands between them gives way as if they were not there, and so do the other outputs of their steps.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage
from proxy.context.verbatim import find_late, split_groups
from proxy.model.epoch import ContextPlan, Kept, Replaced
from proxy.wire import FORMATS
from proxy.wire.validity import Rules, find_faults, judge_history
from tests.support.views import count, splice, view_seen

FORM = FORMATS["responses"]
CEILING = 4_000
BUILDER = ContextBuilder(BuilderPolicy(), count)

Item = dict[str, Any]


def say(role: str, text: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(id: str) -> Item:
    return {"type": "function_call", "call_id": id, "name": "bash", "arguments": f'{{"command": "cat {id}.py"}}'}


def output(id: str, text: str = "some words of an output " * 40) -> Item:
    return {"type": "function_call_output", "call_id": id, "output": f"{id} {text}"}


def step(number: int, *more: Item) -> list[Item]:
    """An answer with a call, more calls of the same answer, and the output of the first."""
    return [say("assistant", f"Part {number}."), call(f"c{number}"), *more, output(f"c{number}")]


def see(item: Item) -> CountedMessage:
    decoded = FORM.decode_message(json.dumps(item).encode())
    return CountedMessage(decoded.message, decoded.structure, count(decoded.message.text) + 20)


def build(items: list[Item], ceiling: int = CEILING) -> ContextPlan:
    """A plan, which has no fault that the history does not have."""
    seen = view_seen([see(item) for item in items], ceiling)
    plan = BUILDER.build(seen)
    structures = [each.structure for each in seen.messages]
    history = judge_history(structures, is_itemised=True)
    assert find_faults(history, splice(plan, seen), Rules(is_itemised=True)) == ()
    return plan


def list_sent(items: list[Item], plan: ContextPlan) -> list[Item]:
    """The items that are sent in some form, unchanged ones only as far as they are."""
    places = [edit.place for edit in plan.edits if isinstance(edit, Kept | Replaced)]
    return [items[place] for place in places] + items[plan.through :]


def write(late: int, steps: int, *, at: int = 1) -> list[Item]:
    """So many steps; the call beside that of step `at` is answered behind step `late`, if there is one."""
    items = [say("user", "Mend the tests.")]
    for number in range(steps):
        items += step(number, *([call("late")] if number == at else []))
        items += [output("late")] if number == late else []
    return items


def test_a_late_output_is_in_another_group_than_its_call() -> None:
    items = [see(item).structure for item in write(3, 5)]
    (place,) = find_late(items)
    assert (items[place].results, items[find_late(items)[place]].calls) == (("late",), ("late",))
    assert len(split_groups(items)) == 6
    assert find_late([see(item).structure for item in write(1, 5)]) == {}  # in its own answer's run


@pytest.mark.parametrize("steps", [14, 15, 16])
def test_a_call_stays_with_its_late_output_and_what_is_between_goes(steps: int) -> None:
    items = write(steps - 1, steps)
    plan = build(items)
    sent = list_sent(items, plan)
    assert call("late") in sent and output("late") in sent
    assert output("c6") not in sent
    (beside,) = [edit for edit in plan.edits if isinstance(edit, Replaced) and items[edit.place] == output("c1")]
    assert beside.kind == "tombstone"


def test_an_output_that_is_still_to_come_holds_its_call_alone() -> None:
    items = write(99, 16)
    plan = build(items)
    assert call("late") in list_sent(items, plan)
    assert [edit.kind for edit in plan.edits if isinstance(edit, Replaced) and items[edit.place] == output("c1")] == [
        "tombstone"
    ]


def test_an_old_pair_goes_together() -> None:
    items = write(5, 20)
    sent = list_sent(items, build(items))
    assert call("late") not in sent and output("late") not in sent


def test_a_chain_of_late_outputs_stays_together() -> None:
    items = [say("user", "Mend the tests.")]
    for number in range(16):
        more = {1: [call("a")], 6: [call("b")]}.get(number, [])
        items += step(number, *more)
        items += {6: [output("a")], 15: [output("b")]}.get(number, [])
    sent = list_sent(items, build(items))
    assert all(item in sent for item in (call("a"), call("b")))


@given(
    st.lists(st.tuples(st.integers(0, 13), st.integers(1, 15)), max_size=4, unique_by=lambda pair: pair[0]),
    st.sampled_from([2_000, CEILING, 8_000]),
    st.sets(st.integers(0, 14), max_size=3),
)
def test_no_call_is_ever_parted_from_its_output(pairs: list[tuple[int, int]], ceiling: int, turns: set[int]) -> None:
    items = [say("user", "Mend the tests.")]
    for number in range(15):
        items += step(number, *[call(f"late{asked}") for asked, _ in pairs if asked == number])
        items += [output(f"late{asked}") for asked, later in pairs if max(asked + 1, later) == number]
        items += [say("user", f"And part {number}.")] if number in turns else []
    build(items, ceiling)
