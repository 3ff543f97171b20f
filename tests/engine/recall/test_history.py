"""The messages that a request continues: steps as the ledger counts them, calls with their outputs."""

import json

import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.conversation import BuilderPolicy, CountedMessage, PlanRequest, index_conversation
from proxy.context.message_features import extract_features
from proxy.engine.recall.history import History
from proxy.wire import FORMATS
from tests.support.recalling import answer, ask, make_history, say

WORK = (
    say("user", "Fix the test"),
    ask("c1", "bash", "I look.", command="cat app.py"),
    answer("c1", "print(1)"),
    ask("c2", "bash", command="sed -i s/1/2/ app.py"),
    answer("c2", ""),
    say("assistant", "Done."),
    say("user", "Thanks"),
)


def test_steps_have_the_numbers_of_the_ledger() -> None:
    history = make_history(*WORK)
    form = FORMATS[history.wire]
    counted = [CountedMessage(form.parse_message(raw), form.parse_structure(raw), 1) for raw in WORK]
    view = PlanRequest(make_budget(None, None, None, BudgetPolicy()), messages=counted, head=0, name=lambda *_: "")
    index = index_conversation(view, BuilderPolicy(), extract_features)
    for number, step in enumerate(index.steps, 1):
        assert history.list_places(number) == step.places
        assert {history.find_step(place) for place in step.places} == {number}
    assert history.steps == len(index.steps)
    assert history.list_places(0) == history.list_places(99) == range(0)


def test_calls_have_their_outputs() -> None:
    first, second = make_history(*WORK).calls
    assert (first.call.name, first.place, first.output, first.answered) == ("bash", 1, "print(1)", 2)
    assert (second.output, second.answered) == ("", 4)
    assert make_history(*WORK).find_call(2) == first
    assert make_history(*WORK).find_call(1) is None


def test_an_output_belongs_to_the_newest_call_of_its_id() -> None:
    history = make_history(ask("c1", "a"), answer("c1", "one"), ask("c1", "b"), answer("c1", "two"), answer("c9", "?"))
    assert [(each.call.name, each.output) for each in history.calls] == [("a", "one"), ("b", "two")]


def test_the_outputs_of_one_message_are_told_apart() -> None:
    blocks = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"out {n}"} for n in (1, 2)]
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "run", "input": {"n": n}} for n in (1, 2)]
    raws = [{"role": "assistant", "content": uses}, {"role": "user", "content": blocks}]
    history = make_history(*(json.dumps(raw).encode() for raw in raws), wire="anthropic_messages")
    assert [each.output for each in history.calls] == ["out 1", "out 2"]


def test_of_several_items_with_one_node_the_first_has_it() -> None:
    history = History("responses", [b"a", b"a", b"b"], [say("user", "x")] * 3)
    assert history.places == {b"a": 0, b"b": 2}


def test_a_failure_is_known_by_its_output() -> None:
    history = make_history(ask("c1", "bash", command="x"), answer("c1", "bash: x: command not found"))
    assert history.calls[0].has_failed


def test_recent_words_are_those_of_the_last_three_steps() -> None:
    words = make_history(*WORK).recent_words
    assert "sed -i" in words and words.endswith("Thanks")
    assert "Fix the test" not in words
    assert make_history().recent_words == ""


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_a_history_can_be_cut(stop: int) -> None:
    assert len(make_history(*WORK).cut(stop)) == stop
