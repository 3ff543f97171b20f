"""What providers counted for the prompts of the strategy snapshot."""

from typing import Any

import msgspec
import pytest

from proxy.engine.models import PromptSizes
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch
from proxy.model.events import AnswerRead
from proxy.model.exchange import Usage
from tests.support.managing import make_history, make_subject


def ask(steps: int, exchange: str = "x1", **options: Any) -> ManagedRequest:
    return msgspec.structs.replace(make_subject(make_history(steps), exchange, **options), strategy="snapshot")


def open_epoch(id: str) -> Epoch:
    return Epoch(id, "s1", "v", "", b"", 1, "memory", "", 1, 1, 1, b"[]", ())


@pytest.fixture
def sizes() -> PromptSizes:
    sizes = PromptSizes()
    sizes.note_sent(ask(3), None)
    sizes.note_answer(AnswerRead("x1", 0, Usage(900, 5)))
    return sizes


def test_the_count_of_a_prompt_is_that_of_what_goes_on_with_it(sizes: PromptSizes) -> None:
    assert sizes.find(ask(4), "") == 900
    assert sizes.find(ask(3), "") is None, "it is the same one"
    assert sizes.find(ask(2), "") is None
    assert sizes.find(make_subject(make_history(4)), "") is None, "a view of another strategy"
    other = [
        *make_history(2),
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "Yes."},
        *make_history(3),
    ]
    assert sizes.find(msgspec.structs.replace(make_subject(other), strategy="snapshot"), "") is None


def test_a_count_holds_for_the_epoch_that_it_was_sent_under(sizes: PromptSizes) -> None:
    assert sizes.find(ask(4), "e1") is None
    sizes.note_sent(ask(4, "x2"), open_epoch("e1"))
    assert sizes.find(ask(5), "e1") is None
    sizes.note_answer(AnswerRead("x2", 0, Usage(100, 5)))
    assert (sizes.find(ask(5), "e1"), sizes.find(ask(5), "")) == (100, None)


def test_an_answer_without_a_count_changes_nothing(sizes: PromptSizes) -> None:
    sizes.note_sent(ask(4, "x2"), None)
    sizes.note_answer(AnswerRead("x2", 0, Usage()))
    assert sizes.find(ask(5), "") == 900
    sizes.note_answer(AnswerRead("x9", 0, Usage(5, 5)))
    assert sizes.find(ask(5), "") == 900


def test_the_last_round_of_an_answer_counts(sizes: PromptSizes) -> None:
    sizes.note_answer(AnswerRead("x1", 1, Usage(1_900, 5)))
    assert sizes.find(ask(4), "") == 1_900


def test_side_requests_say_nothing_of_their_view(sizes: PromptSizes) -> None:
    sizes.note_sent(ask(4, "x2", is_side=True), None)
    sizes.note_answer(AnswerRead("x2", 0, Usage(5_000, 5)))
    assert sizes.find(ask(5), "") == 900


def test_other_strategies_are_not_followed() -> None:
    sizes = PromptSizes()
    sizes.note_sent(make_subject(make_history(3)), None)
    sizes.note_answer(AnswerRead("x1", 0, Usage(900, 5)))
    assert sizes.find(make_subject(make_history(4)), "") is None
