"""A history of which the client has cleared outputs is known again, and no other."""

import pytest

from proxy.engine.context.epoch_scope import ClearedOutputDetector, is_cleared
from tests.support.contexts import HISTORY, ask, make_epoch
from tests.support.managing import make_subject

BEFORE = ask().chain.items


def change(text: str, place: int = 3) -> list[dict[str, object]]:
    """The history with another text in one message, counted with the system's."""
    return [{**message, "content": text} if at == place else dict(message) for at, message in enumerate(HISTORY)]


def test_a_shorter_history_is_not_a_cleared_one() -> None:
    assert is_cleared(BEFORE, ask())
    assert not is_cleared(BEFORE, ask(len(HISTORY) - 1))


@pytest.mark.parametrize(
    "text", ["", " ", "[cleared]", "[Old tool result content cleared]", "<MASKED>", "(12 lines OMITTED)", "…"]
)
def test_an_output_of_which_nothing_is_left_is_cleared(text: str) -> None:
    assert is_cleared(BEFORE, make_subject(change(text)))


@pytest.mark.parametrize("text", ["The host is db7, as corrected.", "[cleared] " + "and these are new words " * 10])
def test_new_words_in_an_output_are_another_history(text: str) -> None:
    """Though they are fewer."""
    assert len(text) < len(HISTORY[3]["content"])
    assert not is_cleared(BEFORE, make_subject(change(text)))


@pytest.mark.parametrize("place", [1, 2])
def test_whatever_else_is_cleared_is_another_history(place: int) -> None:
    assert not is_cleared(BEFORE, make_subject(change("[cleared]", place)))


def test_an_output_of_another_call_is_not_a_cleared_one() -> None:
    other = [{**message, "tool_call_id": "another"} if at == 3 else message for at, message in enumerate(HISTORY)]
    assert not is_cleared(BEFORE, make_subject(other))


def test_it_is_known_of_what_an_epoch_stands_for() -> None:
    covers, epoch = ClearedOutputDetector(), make_epoch("a", 4)
    assert not covers.is_cleared(epoch, ask())
    covers.note(epoch, BEFORE)
    assert len(covers) == 4
    assert covers.is_cleared(epoch, make_subject(change("[cleared]")))
    assert covers.is_cleared(epoch, make_subject(change("Something else.", 7)))  # behind what it stands for
    assert not covers.is_cleared(epoch, make_subject(change("Something else.")))
