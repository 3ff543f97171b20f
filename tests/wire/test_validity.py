"""Whether a rewritten history is as valid as the client's own, and how long that lasts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.verbatim import split_groups
from proxy.model.messages import MessageStructure
from proxy.wire.validity import (
    MessageRuns,
    RequestFault,
    Rules,
    Splice,
    Verdict,
    extend_history,
    extend_verdict,
    find_faults,
    find_marker_faults,
    judge_history,
    list_replaced,
    make_verdict,
)
from tests.support.valid_histories import WIRES, steps, structure, write

USER, SAID, SYSTEM = MessageStructure("user"), MessageStructure("assistant"), MessageStructure("system")
REMINDER = MessageStructure("system", reminder=b"1")
LEADING = MessageStructure("system", is_leading=True)
wires = st.sampled_from(WIRES)


def call(*ids: str, reasoning: bytes = b"") -> MessageStructure:
    return MessageStructure("assistant", ids, reasoning=reasoning)


def answer(*ids: str) -> MessageStructure:
    return MessageStructure("tool", (), ids)


def judge(wire: str, structures: list[MessageStructure]) -> MessageRuns:
    return judge_history(structures, is_itemised=wire == "responses")


def rules(wire: str = "") -> Rules:
    return Rules(is_itemised=wire == "responses")


def list_own(history: MessageRuns) -> set[RequestFault]:
    """What the guard finds wrong with a history itself: everything is new against an empty one."""
    nothing = judge_history([], is_itemised=history.is_itemised)
    return set(
        find_faults(nothing, [Splice(0, 0, tuple(each for run in history.runs for each in run.structures))], rules())
    )


@given(wires, steps, st.sets(st.integers(0, 20)))
def test_whole_groups_can_go_without_a_new_fault(wire: str, plan: list[str | int], gone: set[int]) -> None:
    structures = structure(wire, *write(wire, plan))
    groups = split_groups(structures)
    newest = max(i for i, each in enumerate(structures) if each.role == "user")
    chosen = [
        g for i, g in enumerate(groups[:-1]) if i in gone and g.start != newest and structures[g.start].role != "system"
    ]
    splices = [Splice(g.start, g.stop, (USER,) if i == 0 else ()) for i, g in enumerate(chosen)]
    assert find_faults(judge(wire, structures), splices, rules(wire)) == ()


@given(wires, steps, st.data())
def test_a_group_that_is_cut_is_found(wire: str, plan: list[str | int], data: st.DataObject) -> None:
    structures = structure(wire, *write(wire, plan))
    bound = [i for i, each in enumerate(structures) if each.calls or each.results or each.reasoning]
    place = data.draw(st.sampled_from(bound))
    assert find_faults(judge(wire, structures), [Splice(place, place + 1)], rules(wire)) != ()


@given(wires, steps, st.data())
def test_a_call_or_result_of_another_id_is_found(wire: str, plan: list[str | int], data: st.DataObject) -> None:
    structures = structure(wire, *write(wire, plan))
    place = data.draw(st.sampled_from([i for i, each in enumerate(structures) if each.calls or each.results]))
    old = structures[place]
    changed = MessageStructure(
        old.role, tuple(f"{c}x" for c in old.calls), tuple(f"{r}x" for r in old.results), old.reasoning
    )
    kinds = {
        fault.kind
        for fault in find_faults(judge(wire, structures), [Splice(place, place + 1, (changed,))], rules(wire))
    }
    assert {"missing", "misplaced", "orphan", "unanswered"} <= kinds


@given(wires, steps, st.data())
def test_a_message_sent_twice_or_moved_is_found(wire: str, plan: list[str | int], data: st.DataObject) -> None:
    structures = structure(wire, *write(wire, plan))
    place = data.draw(st.sampled_from([i for i, each in enumerate(structures) if each.calls or each.results]))
    twice = [Splice(place, place, (structures[place],))]
    first = next(i for i, each in enumerate(structures) if each.role != "system")
    moved = [Splice(first, first, (structures[place],)), Splice(place, place + 1)]
    for splices in (twice, moved):
        assert find_faults(judge(wire, structures), splices, rules(wire)) != ()


@given(wires, steps)
def test_what_agents_send_has_no_fault(wire: str, plan: list[str | int]) -> None:
    history = judge(wire, structure(wire, *write(wire, plan)))
    assert {fault for fault in list_own(history) if fault.kind != "instructions"} == set()


_ids = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
any_structures = st.lists(
    st.builds(
        MessageStructure,
        st.sampled_from(["system", "user", "assistant", "tool"]),
        _ids,
        _ids,
        st.sampled_from([b"", b"r"]),
    ),
    max_size=10,
)


@given(any_structures, st.integers(0, 10), any_structures, st.booleans())
def test_a_history_that_goes_on_is_judged_as_if_it_were_new(
    structures: list[MessageStructure], count: int, more: list[MessageStructure], is_itemised: bool
) -> None:
    count = min(count, len(structures))
    known = judge_history(structures, is_itemised=is_itemised)
    assert extend_history(known, count, more) == judge_history([*structures[:count], *more], is_itemised=is_itemised)


@given(any_structures, st.data(), st.booleans())
def test_sharing_runs_finds_what_judging_everything_anew_finds(
    structures: list[MessageStructure], data: st.DataObject, is_itemised: bool
) -> None:
    start = data.draw(st.integers(0, len(structures)))
    stop = data.draw(st.integers(start, len(structures)))
    again = data.draw(st.integers(stop, len(structures)))
    splices = [
        Splice(start, stop, tuple(data.draw(any_structures))),
        Splice(again, again, tuple(data.draw(any_structures))),
    ]
    whole = [
        *(Splice(i, i + 1, (each,)) for i, each in enumerate(structures[:start])),
        splices[0],
        *(Splice(i, i + 1, (structures[i],)) for i in range(stop, again)),
        splices[1],
        *(Splice(i, i + 1, (structures[i],)) for i in range(again, len(structures))),
    ]
    history = judge_history(structures, is_itemised=is_itemised)
    local = {"missing", "misplaced", "unanswered", "orphan", "duplicate", "userless", "beginning", "prefill"}
    found, expected = (
        [fault for fault in find_faults(history, each, Rules(is_itemised)) if fault.kind in local]
        for each in (splices, whole)
    )
    assert found == expected


@given(any_structures)
def test_what_the_client_sent_is_never_a_fault(structures: list[MessageStructure]) -> None:
    same = [
        Splice(i, i + 1, (each,)) for i, each in enumerate(structures) if each.role != "system" and each.role != "user"
    ]
    assert find_faults(judge_history(structures), same, Rules(is_alternating=True, needs_json=True)) == ()


CASES: dict[str, tuple[list[MessageStructure], list[Splice], Rules, RequestFault]] = {
    "userless": ([SYSTEM, USER, SAID, call("a"), answer("a")], [Splice(1, 2)], rules(), RequestFault("userless")),
    "beginning": ([USER, SAID, USER], [Splice(0, 1)], rules(), RequestFault("beginning", "assistant")),
    "beginning-tool": (
        [USER, call("a"), answer("a"), USER],
        [Splice(0, 2)],
        rules(),
        RequestFault("beginning", "tool"),
    ),
    "turn": (
        [USER, call("a", reasoning=b"x"), answer("a"), call("b"), answer("b")],
        [Splice(1, 3)],
        Rules(needs_thinking=True),
        RequestFault("turn"),
    ),
    "prefill": ([USER, SAID, USER], [Splice(2, 3)], rules(), RequestFault("prefill")),
    "pinned": ([USER, SAID, USER], [Splice(0, 1, (USER,))], rules(), RequestFault("protected", "", 0)),
    "newest": ([USER, SAID, USER], [Splice(2, 3, (SAID,))], rules(), RequestFault("protected", "", 2)),
    "newest with more": ([USER, SAID, USER], [Splice(1, 3, (USER,))], rules(), RequestFault("protected", "", 2)),
    "position": ([USER, LEADING, SAID, USER], [Splice(2, 3)], rules(), RequestFault("position", "", 1)),
    "position of ours": (
        [USER, LEADING, SAID, USER],
        [Splice(2, 2, (USER,))],
        rules(),
        RequestFault("position", "", 1),
    ),
    "system": ([SYSTEM, USER], [Splice(0, 1)], rules(), RequestFault("instructions", "gone", 0)),
    "reminder": (
        [USER, REMINDER, USER, MessageStructure("system", reminder=b"2"), USER],
        [Splice(1, 2)],
        rules(),
        RequestFault("instructions", "gone", 1),
    ),
    "newest reminder": (
        [USER, REMINDER, USER, REMINDER, USER],
        [Splice(3, 4)],
        rules(),
        RequestFault("instructions", "gone", 3),
    ),
    "ours": ([USER, USER], [Splice(0, 0, (SYSTEM,))], rules(), RequestFault("instructions", "ours", 0)),
    "flaw": (
        [USER, SAID, USER],
        [Splice(1, 2, (MessageStructure("assistant", flaws=("empty",)),))],
        rules(),
        RequestFault("flaw", "empty", 1),
    ),
    "duplicate": (
        [USER, call("a"), answer("a"), USER],
        [Splice(3, 3, (call("a"), answer("a")))],
        rules(),
        RequestFault("duplicate", "a"),
    ),
    "reasoning": (
        [USER, call("a", reasoning=b"r"), answer("a")],
        [Splice(1, 2, (call("a"),))],
        rules(),
        RequestFault("reasoning", "", 1),
    ),
    "item": (
        [USER, MessageStructure("assistant", reasoning=b"r"), SAID, USER],
        [Splice(2, 3)],
        rules("responses"),
        RequestFault("reasoning", "", 1),
    ),
    "alternation": (
        [USER, SAID, USER],
        [Splice(1, 2)],
        Rules(is_alternating=True),
        RequestFault("alternation", "user", 2),
    ),
    "alternation-calls": (
        [USER, call("a"), answer("a"), SAID, USER],
        [Splice(3, 4)],
        Rules(is_alternating=True),
        RequestFault("alternation", "user", 4),
    ),
    "json": (
        [MessageStructure("user", says_json=True), SAID, USER],
        [Splice(0, 1, (USER,))],
        Rules(needs_json=True),
        RequestFault("json"),
    ),
    "many": (
        [USER, SAID, USER],
        [Splice(1, 2, (MessageStructure("assistant", markers=("5m", "5m")),))],
        Rules(markers=("5m",) * 3),
        RequestFault("markers", "many"),
    ),
    "order": (
        [USER, SAID, USER],
        [Splice(1, 2, (MessageStructure("assistant", markers=("1h",)),))],
        Rules(markers=("5m",)),
        RequestFault("markers", "order"),
    ),
    "lost": (
        [USER, MessageStructure("assistant", markers=("5m",)), USER],
        [Splice(1, 2)],
        rules(),
        RequestFault("markers", "lost"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found(name: str) -> None:
    structures, splices, demands, fault = CASES[name]
    history = judge_history(structures, is_itemised=demands.is_itemised)
    assert fault in find_faults(history, splices, demands, [0] if name == "pinned" else ())


def test_the_newest_turn_may_become_shorter_unless_it_is_pinned() -> None:
    history = judge_history([USER, SAID, USER])
    assert find_faults(history, [Splice(2, 3, (USER,))], rules()) == ()
    assert find_faults(history, [Splice(2, 3, (USER,))], rules(), [2]) == (RequestFault("protected", "", 2),)


FINE: dict[str, tuple[list[MessageStructure], list[Splice], Rules]] = {
    "words of a turn without its thoughts": (
        [USER, MessageStructure("assistant", reasoning=b"r"), USER],
        [Splice(1, 2, (SAID,))],
        rules(),
    ),
    "a call counts in no alternation": (
        [USER, call("a"), answer("a"), SAID, USER],
        [Splice(1, 3)],
        Rules(is_alternating=True),
    ),
    "a marker that moves": (
        [USER, MessageStructure("assistant", markers=("5m",)), USER],
        [Splice(0, 1, (MessageStructure("user", markers=("5m",)),)), Splice(1, 2, (SAID,))],
        rules(),
    ),
    "a flaw of the client's own": (
        [USER, MessageStructure("assistant", flaws=("empty",)), USER],
        [Splice(1, 2, (MessageStructure("assistant", flaws=("empty",)),))],
        rules(),
    ),
    "a call of ours that a kept run answers": (
        [USER, call("a"), answer("a"), answer("b"), USER],
        [Splice(1, 1, (call("b"),))],
        rules("responses"),
    ),
    "thoughts that come to stand behind words": (
        [USER, SAID, USER, MessageStructure("assistant", reasoning=b"r"), call("a"), answer("a"), USER],
        [Splice(2, 3)],
        rules("responses"),
    ),
    "a longer retention first": (
        [USER, SAID, USER],
        [Splice(1, 2, (MessageStructure("assistant", markers=("5m",)),))],
        Rules(markers=("1h",)),
    ),
    "a leading message at the end": ([USER, SAID, USER, LEADING], [Splice(1, 2)], rules()),
    "a position of the client's own": ([USER, SAID, LEADING, USER], [Splice(1, 2)], rules()),
    "nothing": ([], [], rules()),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_no_fault(name: str) -> None:
    structures, splices, demands = FINE[name]
    assert find_faults(judge_history(structures, is_itemised=demands.is_itemised), splices, demands) == ()


def test_a_result_far_behind_its_call_is_missed_when_it_goes() -> None:
    history = judge_history([USER, call("a"), USER, answer("a"), USER])
    assert find_faults(history, [Splice(3, 4)], rules()) == (RequestFault("unanswered", "a"),)
    assert find_faults(history, [Splice(1, 2)], rules()) == (RequestFault("orphan", "a"),)


def test_runs_that_are_kept_are_shared() -> None:
    history = judge_history([USER, call("a"), answer("a"), USER, SAID])
    longer = extend_history(history, 5, [USER])
    assert all(one is other for one, other in zip(history.runs[:3], longer.runs, strict=False))


_bad: list[Callable[[], list[Splice]]] = [
    lambda: [Splice(2, 3), Splice(1, 2)],
    lambda: [Splice(0, 2), Splice(1, 3)],
    lambda: [Splice(2, 1)],
    lambda: [Splice(0, 9)],
    lambda: [Splice(-1, 0)],
]


@pytest.mark.parametrize("splices", _bad)
def test_splices_out_of_place_are_refused(splices: Callable[[], list[Splice]]) -> None:
    with pytest.raises(ValueError, match="no place"):
        find_faults(judge_history([USER, SAID, USER]), splices(), rules())


def test_calls_in_a_row_are_answered_one_by_one_except_as_items() -> None:
    ours = (call("a"), call("b"), answer("a"), answer("b"))
    chat, items = (judge_history([USER, SAID, USER], is_itemised=is_itemised) for is_itemised in (False, True))
    assert find_faults(chat, [Splice(1, 2, ours)], rules()) == (
        RequestFault("misplaced", "a", 1),
        RequestFault("missing", "a", 1),
    )
    assert find_faults(items, [Splice(1, 2, ours)], rules("responses")) == ()


def test_one_message_for_another_stands_in_its_place_and_several_in_the_first() -> None:
    assert [Splice(3, 5, (USER, SAID)).find_place(i) for i in range(2)] == [3, 4]
    assert [Splice(3, 4, (USER, SAID)).find_place(i) for i in range(2)] == [3, 3]


def test_a_run_that_is_cut_is_judged_again_though_nothing_joins_it() -> None:
    known = judge_history([USER, call("a"), answer("a"), USER])
    assert extend_history(known, 2, [USER]) == judge_history([USER, call("a"), USER])


PLAIN = Rules()
CUT = [Splice(1, 3, (USER,))]


def step(id: str) -> list[MessageStructure]:
    return [MessageStructure("assistant", (id,)), MessageStructure("tool", (), (id,))]


HISTORY = judge_history([USER, *step("a"), *step("b"), *step("c")])


def conclude(history: MessageRuns, splices: list[Splice], rules: Rules = PLAIN) -> Verdict | None:
    structures = [structure for run in history.runs for structure in run.structures]
    assert find_faults(history, splices, rules) == ()
    return make_verdict(history, splices, rules, list_replaced(structures, splices))


def go_on(more: list[MessageStructure], count: int = HISTORY.count, rules: Rules = PLAIN) -> Verdict | None:
    verdict = conclude(HISTORY, CUT)
    assert verdict is not None
    return extend_verdict(verdict, extend_history(HISTORY, count, more), rules)


_more_ids = st.lists(st.sampled_from("abcdef"), max_size=2).map(tuple)
_markers = st.lists(st.sampled_from(["5m", "1h"]), max_size=2).map(tuple)
_reasoning = st.sampled_from([b"", b"r"])
_roles = st.sampled_from(["system", "user", "assistant", "tool"])
_messages = st.one_of(
    st.sampled_from("abcdefgh").map(step),
    st.builds(lambda *each: [MessageStructure(*each)], _roles, _more_ids, _more_ids, _reasoning, _markers),
    st.just([USER]),
)
_shapes = st.lists(_messages, max_size=6).map(lambda steps: [structure for each in steps for structure in each])


@given(_shapes, st.data(), st.booleans())
def test_what_lasts_has_no_fault(structures: list[MessageStructure], data: st.DataObject, is_itemised: bool) -> None:
    rules = Rules(is_itemised)
    start = data.draw(st.integers(0, len(structures)))
    stop = data.draw(st.integers(start, len(structures)))
    splices = [Splice(start, stop, tuple(data.draw(st.one_of(st.just([USER]), _shapes))))]
    history = judge_history(structures, is_itemised=is_itemised)
    if find_faults(history, splices, rules):
        return
    verdict = make_verdict(history, splices, rules, list_replaced(structures, splices))
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
            assert set(find_faults(history, splices, rules)) == find_marker_faults(history, splices, rules)
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
    assert conclude(extend_history(HISTORY, HISTORY.count, step("d")), CUT) is not None
    assert conclude(extend_history(HISTORY, HISTORY.count, step("a")), CUT) is None


def test_it_does_not_last_for_a_history_that_parts_at_the_seam() -> None:
    assert go_on(step("d"), count=3) is None
    assert go_on([*step("d"), *step("e")], count=3) is None
    assert go_on([USER, *step("d")], count=6) is not None


def test_it_does_not_last_where_the_newest_word_of_the_user_is_another() -> None:
    history = judge_history([USER, *step("a"), *step("b"), USER, *step("c")])
    verdict = conclude(history, [Splice(0, 1, (USER,), (0,))])
    assert verdict is not None
    assert extend_verdict(verdict, extend_history(history, 5, step("d")), PLAIN) is None
    assert extend_verdict(verdict, extend_history(history, 6, step("d")), PLAIN) is not None


@pytest.mark.parametrize("rules", [Rules(is_alternating=True), Rules(needs_json=True)], ids=lambda rules: repr(rules))
def test_what_only_the_whole_shows_is_not_taken_over(rules: Rules) -> None:
    assert go_on(step("d"), rules=rules) is None
    says = judge_history([MessageStructure("user", says_json=True), *step("a"), *step("b")])
    assert make_verdict(says, CUT, rules, frozenset()) is None


def test_it_lasts_while_markers_move_and_these_are_judged_by_themselves() -> None:
    rules, marked = Rules(markers=("5m",)), MessageStructure("tool", (), ("d",), markers=("5m",))
    history = judge_history([MessageStructure("user", markers=("5m",)), *step("a"), *step("b"), *step("c")])
    own = list_replaced([structure for run in history.runs for structure in run.structures], CUT)
    verdict = make_verdict(history, CUT, rules, own)
    assert verdict is not None
    longer = extend_history(history, history.count, [step("d")[0], marked])
    assert extend_verdict(verdict, longer, rules) is not None
    assert extend_verdict(verdict, longer, Rules(markers=("1h",))) is None
    assert find_marker_faults(longer, CUT, rules) == set()
    assert find_marker_faults(longer, [Splice(0, 7)], rules) == set()
    assert find_marker_faults(history, [Splice(0, 7)], rules) == {RequestFault("markers", "lost")}
    late = [Splice(5, 7, (MessageStructure("user", markers=("1h",)),))]
    assert find_marker_faults(longer, late, rules) == {RequestFault("markers", "order")}
    assert find_marker_faults(longer, late, Rules()) == {RequestFault("markers", "order")}
    assert find_marker_faults(judge_history([USER, *step("a")]), [], rules) == set()


def test_nor_is_that_of_a_history_without_words_of_ours() -> None:
    assert conclude(HISTORY, []) is None
    assert conclude(HISTORY, [Splice(1, 3)]) is None


def test_nor_is_that_of_a_history_that_ends_with_what_was_replaced_or_with_the_seam() -> None:
    assert conclude(judge_history([USER, *step("a")]), CUT) is None
    short = judge_history([USER, *step("a"), *step("b")])
    verdict = conclude(short, CUT)
    assert verdict is not None
    assert extend_verdict(verdict, short, PLAIN) is None


def led(id: str) -> MessageStructure:
    return MessageStructure("assistant", ("c",), item_id=id)


THOUGHT = MessageStructure("assistant", reasoning=b"r")
BETWEEN = [USER, THOUGHT, call("a"), answer("a"), led("fc_1"), answer("c"), USER]
"""The outputs of one answer between its calls."""


def test_an_item_that_keeps_its_id_without_its_reasoning_is_a_fault() -> None:
    history = judge("responses", BETWEEN)
    gone = Splice(1, 4, (USER,))
    assert find_faults(history, [gone], rules("responses")) == ()  # what follows the plan is the planner's
    kept = [gone, Splice(5, 6, (answer("c"),))]
    assert find_faults(history, kept, rules("responses")) == (RequestFault("reasoning", "fc_1", 4),)
    detached = [gone, Splice(4, 5, (call("c"),)), *kept[1:]]
    assert find_faults(history, detached, rules("responses")) == ()
    assert find_faults(history, [Splice(3, 4, (answer("a"),)), *kept[1:]], rules("responses")) == ()
    joined = [Splice(0, 1, (USER,), whole=(0,)), *kept]
    assert find_faults(history, joined, rules("responses")) == (RequestFault("reasoning", "fc_1", 4),)


def test_an_item_of_an_unknown_kind_may_not_go() -> None:
    history = judge("responses", [USER, MessageStructure("assistant", stays="always"), USER, call("b"), answer("b")])
    assert find_faults(history, [Splice(1, 2)], rules("responses")) == (RequestFault("protected", "", 1),)
    assert find_faults(history, [Splice(3, 5)], rules("responses")) == ()


def test_markers_of_client_results_that_are_sent_with_a_restored_answer_count_where_the_client_has_them_now() -> None:
    marked = MessageStructure("user", markers=("5m",))
    restored = Splice(1, 3, (SAID, USER), marked=2)
    rules = Rules(markers=("5m",) * 3)
    assert find_marker_faults(judge_history([USER, SAID, marked]), [restored], rules) == set()
    assert find_marker_faults(judge_history([USER, SAID, USER, SAID, marked]), [restored], rules) == set()
    lost = judge_history([USER, MessageStructure("assistant", markers=("5m",)), USER])
    assert find_marker_faults(lost, [restored], rules) == {RequestFault("markers", "lost")}


def test_a_reminder_that_stands_again_later_may_go() -> None:
    history = judge_history([USER, REMINDER, USER, REMINDER, SAID, USER])
    assert not find_faults(history, [Splice(1, 2)], rules())
