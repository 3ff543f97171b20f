"""A verdict that is taken over is the one that judging everything anew would come to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import MessageStructure
from proxy.wire.validity import (
    MessageRuns,
    Rules,
    Splice,
    Verdict,
    extend_history,
    extend_verdict,
    find_faults,
    judge_history,
    list_replaced,
    make_verdict,
)

USER, SAID, SYSTEM = MessageStructure("user"), MessageStructure("assistant"), MessageStructure("system")
PLAIN = Rules()
CUT = [Splice(1, 3, (USER,))]


def step(id: str) -> list[MessageStructure]:
    return [MessageStructure("assistant", (id,)), MessageStructure("tool", (), (id,))]


HISTORY = judge_history([USER, *step("a"), *step("b"), *step("c")])


def judge(history: MessageRuns, splices: list[Splice], rules: Rules = PLAIN) -> Verdict | None:
    shapes = [shape for run in history.runs for shape in run.shapes]
    assert find_faults(history, splices, rules) == ()
    return make_verdict(history, splices, rules, list_replaced(shapes, splices))


def go_on(more: list[MessageStructure], count: int = HISTORY.count, rules: Rules = PLAIN) -> Verdict | None:
    verdict = judge(HISTORY, CUT)
    assert verdict is not None
    return extend_verdict(verdict, extend_history(HISTORY, count, more), rules)


_ids = st.lists(st.sampled_from("abcdef"), max_size=2).map(tuple)
_reasoning = st.sampled_from([b"", b"r"])
_roles = st.sampled_from(["system", "user", "assistant", "tool"])
_messages = st.one_of(
    st.sampled_from("abcdefgh").map(step),
    st.builds(lambda *each: [MessageStructure(*each)], _roles, _ids, _ids, _reasoning),
    st.just([USER]),
)
_shapes = st.lists(_messages, max_size=6).map(lambda steps: [shape for each in steps for shape in each])


@given(_shapes, st.data(), st.booleans())
def test_what_lasts_has_no_fault(shapes: list[MessageStructure], data: st.DataObject, is_itemised: bool) -> None:
    rules = Rules(is_itemised)
    start = data.draw(st.integers(0, len(shapes)))
    stop = data.draw(st.integers(start, len(shapes)))
    splices = [Splice(start, stop, tuple(data.draw(st.one_of(st.just([USER]), _shapes))))]
    history = judge_history(shapes, is_itemised=is_itemised)
    if find_faults(history, splices, rules):
        return
    verdict = make_verdict(history, splices, rules, list_replaced(shapes, splices))
    known = [history]
    for _ in range(4):
        if verdict is None:
            return
        before = data.draw(st.sampled_from(known))
        history = extend_history(
            before, data.draw(st.integers(min(stop, before.count), before.count)), data.draw(_shapes)
        )
        lasting = extend_verdict(verdict, history, rules)
        if lasting is not None:
            assert find_faults(history, splices, rules) == ()
            verdict = lasting
        known.append(history)


def test_it_lasts_while_steps_follow_and_only_these_are_looked_at() -> None:
    first = go_on(step("d"))
    assert first is not None
    longer = extend_history(HISTORY, HISTORY.count, [*step("d"), *step("e"), USER, *step("f")])
    second = extend_verdict(first, longer, PLAIN)
    assert second is not None
    other = extend_history(HISTORY, HISTORY.count, [*step("a"), *step("e"), USER, *step("f"), *step("g")])
    assert extend_verdict(second, other, PLAIN) is None


@pytest.mark.parametrize(
    "more",
    [step("a"), [MessageStructure("assistant", ("a",))], [MessageStructure("tool", (), ("a",))]],
    ids=["step", "call", "result"],
)
def test_an_id_of_what_was_replaced_is_judged_with_everything(more: list[MessageStructure]) -> None:
    assert go_on(more) is None
    assert judge(extend_history(HISTORY, HISTORY.count, step("d")), CUT) is not None
    assert judge(extend_history(HISTORY, HISTORY.count, step("a")), CUT) is None


def test_it_does_not_last_for_a_history_that_parts_at_the_seam() -> None:
    assert go_on(step("d"), count=3) is None
    assert go_on([*step("d"), *step("e")], count=3) is None
    assert go_on([USER, *step("d")], count=6) is not None


def test_it_does_not_last_where_the_newest_word_of_the_user_is_another() -> None:
    history = judge_history([USER, *step("a"), *step("b"), USER, *step("c")])
    verdict = judge(history, [Splice(0, 1, (USER,), (0,))])
    assert verdict is not None
    assert extend_verdict(verdict, extend_history(history, 5, step("d")), PLAIN) is None
    assert extend_verdict(verdict, extend_history(history, 6, step("d")), PLAIN) is not None


@pytest.mark.parametrize(
    "rules", [Rules(is_alternating=True), Rules(markers=("5m",)), Rules(needs_json=True)], ids=lambda rules: repr(rules)
)
def test_what_only_the_whole_shows_is_not_taken_over(rules: Rules) -> None:
    assert go_on(step("d"), rules=rules) is None
    says = judge_history([MessageStructure("user", says_json=True), *step("a"), *step("b")])
    assert make_verdict(says, CUT, rules, frozenset()) is None


def test_nor_is_that_of_a_history_with_markers_or_without_words_of_ours() -> None:
    marked = [MessageStructure("assistant", ("d",), markers=("5m",)), MessageStructure("tool", (), ("d",))]
    assert go_on(marked) is None
    assert judge(HISTORY, []) is None
    assert judge(HISTORY, [Splice(1, 3)]) is None


def test_nor_is_that_of_a_history_that_ends_with_what_was_replaced_or_with_the_seam() -> None:
    assert judge(judge_history([USER, *step("a")]), CUT) is None
    short = judge_history([USER, *step("a"), *step("b")])
    verdict = judge(short, CUT)
    assert verdict is not None
    assert extend_verdict(verdict, short, PLAIN) is None
