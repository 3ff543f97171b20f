"""Under which rendering answers were made, as far as memory and the log know."""

from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.verbatim import OWN
from proxy.engine.context.epoch_scope import ReasoningOrigins, format_removed, make_own_body
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import EpochReason, EpochUse
from tests.support.contexts import make_epoch
from tests.support.managing import Message, make_history, make_subject

VIEW, OTHER, FREE = "claude-fable-5-2", "claude-opus-5-5", "gpt-4o"
HISTORY: list[Message] = [
    message | {"thinking_blocks": [{"signature": "s"}]} if message["role"] == "assistant" else message
    for message in map(dict, make_history(9))
]


def ask(view: str = VIEW, count: int = 12) -> ManagedRequest:
    return replace(make_subject(HISTORY[:count]), model=view)


def note(origins: ReasoningOrigins, place: int, epoch: str, view: str = VIEW) -> None:
    """A history with the answer at a place was asked for under an epoch."""
    origins.note(EpochUse(view, ask().nodes[place - 1], epoch))


def make_origins(*epochs: Any) -> ReasoningOrigins:
    origins = ReasoningOrigins()
    for epoch in epochs:
        origins.add(epoch)
    return origins


def make(name: str, depth: int = 1, why: EpochReason = "hard", view: str = VIEW, edits: bytes = b"[]") -> Any:
    return replace(make_epoch(name, depth), why=why, view=view, edits=edits)


def test_nothing_is_foreign_where_nothing_was_sent_under_an_epoch() -> None:
    assert make_origins(make("a")).find_changed(ask(), None) == {}
    assert ReasoningOrigins().find_changed(ask(), make("a")).keys() == {1, 3, 5, 7, 9}


def test_a_message_without_reasoning_keeps_its_bytes() -> None:
    plain = replace(make_subject(make_history(9)[:12]), model=VIEW)
    assert ReasoningOrigins().find_changed(plain, make("a")) == {}


def test_what_was_made_under_an_epoch_stays_under_it_alone() -> None:
    origins = make_origins(first := make("a"), second := make("b"))
    note(origins, 5, "a")
    note(origins, 7, "b")
    assert origins.find_changed(ask(), first).keys() == {1, 3, 7, 9}
    assert origins.find_changed(ask(), second).keys() == {1, 3, 5, 9}
    assert origins.find_changed(ask(), None).keys() == {5, 7}
    changed = origins.find_changed(ask(), None)
    assert b"thinking_blocks" not in changed[5]
    assert changed[5] in make_own_body(ask(), changed)
    assert make_own_body(ask(), {}) is ask().split.content or make_own_body(ask(), {}) == ask().split.content


def test_a_history_that_is_sent_again_as_it_is_was_made_under_no_epoch() -> None:
    origins = make_origins(make("a"))
    note(origins, 5, "a")
    note(origins, 5, "")
    assert origins.find_changed(ask(), None) == {}


def test_what_another_model_was_asked_under_an_epoch_is_foreign_to_all() -> None:
    origins = make_origins(epoch := make("a", view=OTHER))
    note(origins, 5, "a", OTHER)
    assert origins.find_changed(ask(), None).keys() == {5}
    note(origins, 5, "b")
    assert origins.find_changed(ask(OTHER), epoch).keys() == {1, 3, 7, 9}
    assert origins.find_changed(ask(FREE), None) == {}


@pytest.mark.parametrize("why", ["revert", "refused"])
def test_who_goes_back_has_the_rendering_of_where_he_goes(why: EpochReason) -> None:
    first, second = make("a", edits=b"[1]"), make("b", edits=b"[2]")
    back, out = make("c", why=why, edits=b"[1]"), make("d", 0, why=why, edits=b"[]")
    origins = make_origins(first, second, back, out)
    assert [origins.find_rendering(each) for each in (None, first, second, back, out)] == [OWN, "a", "b", "a", OWN]
    note(origins, 3, "a")
    note(origins, 5, "b")
    note(origins, 7, "c")
    note(origins, 9, "d")
    assert origins.find_changed(ask(), back).keys() == {1, 5, 9}
    assert origins.find_changed(ask(), out).keys() == {3, 5, 7}


def test_one_whose_target_is_not_known_is_its_own() -> None:
    origins = make_origins(back := make("c", why="revert"))
    assert origins.find_rendering(back) == "c"
    assert ReasoningOrigins().find_rendering(make("x")) == "x"
    assert ReasoningOrigins().find_rendering(make("x", 0)) == OWN


def test_a_view_is_bound_by_its_name_or_since_it_refused() -> None:
    origins = make_origins(make("a", view=FREE))
    assert (origins.binds(VIEW), origins.binds(FREE), origins.may_bind) == (True, False, False)
    origins.add(make("b", why="unsigned", view=FREE))
    assert (origins.binds(FREE), origins.may_bind) == (True, True)


def test_what_the_log_has_goes_before_what_happened_since() -> None:
    origins = make_origins(first := make("a"), second := make("b"))
    note(origins, 5, "b")
    nodes = ask().nodes
    origins.absorb([EpochUse(VIEW, nodes[4], "a"), EpochUse(VIEW, nodes[2], "a"), EpochUse(VIEW, nodes[6], "gone")])
    assert origins.find_changed(ask(), first).keys() == {1, 5, 7, 9}
    assert origins.find_changed(ask(), second).keys() == {1, 3, 7, 9}


def test_the_oldest_are_dropped_and_each_message_is_told_once() -> None:
    origins, most, empty = make_origins(epoch := make("a")), 4096, ReasoningOrigins().weight
    note(origins, 3, "a")
    note(origins, 5, "a")
    for i in range(most - 1):
        origins.note(EpochUse(VIEW, b"%d" % i, "a"))
    assert origins.find_changed(ask(), epoch).keys() == {1, 3, 7, 9}
    assert origins.note_removed([b"%d" % i for i in range(most)]) == most
    weight = origins.weight
    assert origins.note_removed([b"2"]) == 0
    assert origins.note_removed([b"new"]) == 1
    assert empty < origins.weight < weight
    assert origins.note_removed([b"2"]) == 1  # it is not known any more


def test_what_is_told_counts_messages() -> None:
    assert format_removed(1) == "removed the signed reasoning of 1 message, which is bound to another beginning"
    assert "of 2 messages" in format_removed(2)
