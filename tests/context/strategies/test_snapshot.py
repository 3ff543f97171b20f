"""The strategy snapshot: what is kept of a conversation when memory takes the place of its turns."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, MemoryText, SnapshotPolicy, list_turn_starts
from proxy.context.strategies.snapshot import MEMORY_HEADER, choose_tail
from proxy.model.epoch import ContextPlan, Kept, Replaced, Written
from tests.support.views import RawMessage, act, call, count, render, result, said, see, splice, user, view, view_seen

POLICY = BuilderPolicy()
NO_TAIL = BuilderPolicy(snapshot=SnapshotPolicy(raw_tail_turns=0))
SHORT_TAIL = BuilderPolicy(snapshot=SnapshotPolicy(raw_tail_turns=1))
TEXT = "[MEMORY:EPISODIC]\n1) (turns 1 to 3)\n   ## Goal\n   - All was mended."


def plan(
    messages: Sequence[RawMessage],
    covered: int | None = None,
    *,
    ceiling: int = 8_000,
    policy: BuilderPolicy = POLICY,
    **changes: Any,
) -> ContextPlan:
    """A plan with memory of all messages but the newest turn, or of as many as given."""
    known = list_turn_starts([see(each) for each in messages])[-1] if covered is None else covered
    changes = {"strategy": "snapshot", "memory": MemoryText(TEXT, known), **changes}
    return ContextBuilder(policy, count).build(msgspec.structs.replace(view(messages, ceiling), **changes))


def turn(number: int, loops: int = 2, size: int = 100) -> list[RawMessage]:
    acts = [each for i in range(loops) for each in act(f"c{number}-{i}", f"run {number} {i}", f"out {number} " * size)]
    return [user(f"Do task {number}."), *acts, said(f"Task {number} is done.")]


def tasks(turns: int, loops: int = 2, size: int = 100) -> list[RawMessage]:
    return [each for number in range(turns) for each in turn(number, loops, size)]


def read_memory(made: ContextPlan) -> Written:
    ours = made.edits[0]
    assert isinstance(ours, Written) and ours.text.startswith(MEMORY_HEADER)
    return ours


def test_memory_stands_for_all_but_the_newest_turns() -> None:
    history = [*tasks(9), user("Do task 9.")]
    memory, *sent = render(history, plan(history, has_tool=False))
    assert sent == history[-25:]
    note, text = memory["content"].split("\n\n", 1)
    assert "; not the words of the user. 30 messages that stood here are stored. The user can search them" in note
    assert text == TEXT


def test_the_note_names_the_tool_if_the_model_has_it() -> None:
    assert "context_recall" in read_memory(plan([*tasks(9), user("Go on.")], has_tool=True)).text


def test_the_same_input_gives_the_same_bytes() -> None:
    history = [*tasks(9), user("Do task 9.")]
    assert msgspec.json.encode(plan(history)) == msgspec.json.encode(plan(history))


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 7])
def test_so_many_turns_before_the_current_one_stay(turns: int) -> None:
    history = [*tasks(9, size=10), user("Do task 9.")]
    sent = render(history, plan(history, policy=BuilderPolicy(snapshot=SnapshotPolicy(raw_tail_turns=turns))))
    assert [each["content"] for each in sent if each["role"] == "user"][1:] == [
        f"Do task {number}."
        for number in range(min(9 - turns, 8), 10)  # the two newest in any case
    ]


def test_fewer_turns_stay_where_they_do_not_fit() -> None:
    """Each turn has about 900 tokens; half of the soft mark are 2,328."""
    history = [*tasks(9, size=250), user("Do task 9.")]
    sent = render(history, plan(history))
    assert [each["content"] for each in sent if each["role"] == "user"][1:] == [
        "Do task 7.",
        "Do task 8.",
        "Do task 9.",
    ]


def test_a_turn_leaves_only_if_there_is_memory_of_it() -> None:
    history = [*tasks(9, size=10), user("Do task 9.")]
    made = plan(history, covered=13)
    assert (read_memory(made).stop, made.through) == (12, 12)
    assert render(history, made)[1:] == history[12:]
    assert "12 messages" in read_memory(made).text


def test_without_memory_the_context_is_cut_as_in_epochs() -> None:
    history = [*tasks(40), user("Do task 40.")]
    for made in (plan(history, memory=None), plan(history, covered=0)):
        assert made == plan(history, strategy="epochs")
        assert made.tokens < 6_000


def test_one_turn_that_is_the_session_is_cut_as_in_epochs() -> None:
    history = turn(0, loops=60)
    made = plan(history)
    assert made == plan(history, strategy="epochs")
    assert made.tokens <= view(history, 8_000).budget.high


def test_what_whole_turns_cannot_free_is_freed_within_the_newest() -> None:
    now = turn(9, loops=40)[:-1]
    history = [*tasks(9), *now]
    made = plan(history)
    memory = read_memory(made)
    assert memory.stop == 48  # the turn before the current one is told, too
    sent = render(history, made)
    assert sent[-len(now[-6:]) :] == now[-6:]
    told = [each["content"] for each in sent if each["role"] == "user"]
    assert [each for each in told if each.startswith("Do task")] == ["Do task 8.", "Do task 9."]
    ledgers = [each for each in made.edits[1:] if isinstance(each, Written)]
    assert ledgers and all(each.start >= 48 for each in ledgers)
    assert made.references and all(each.start >= 48 for each in made.references)
    assert made.tokens + 0 <= view(history, 8_000).budget.high
    assert made.tokens == sum(see(each).tokens for each in sent)


def test_the_ledger_of_the_newest_turn_goes_on_while_memory_is_the_same() -> None:
    """What precedes a new section stays, so that the provider's cache has it."""
    now = turn(9, loops=90)
    before = [*tasks(9), *now[:131]]
    first = plan(before, ceiling=16_000)
    after = [*tasks(9), *now[:173]]
    second = plan(after, ceiling=16_000, frozen=first)
    assert render(before, first)[:3] == render(after, second)[:3]
    anew = plan(after, ceiling=16_000)
    assert [each for each in anew.edits if isinstance(each, Written)] != [
        each for each in second.edits if isinstance(each, Written)
    ]
    moved = plan([*after, said("Done."), *turn(10, loops=60)[:-1]], ceiling=16_000, frozen=second)
    assert read_memory(moved).stop != read_memory(second).stop


def test_a_turn_that_has_left_does_not_come_back_to_be_cut() -> None:
    now = turn(9, loops=40)[:-1]
    first = plan([*tasks(9), *now[:1]], policy=NO_TAIL)
    assert read_memory(first).stop == 54
    history = [*tasks(9), *now]
    assert read_memory(plan(history, frozen=first)).stop == 54
    assert read_memory(plan(history, covered=53, frozen=first)).stop == 48, "the log has lost the newest memory"


def test_a_plan_of_another_kind_carries_no_memory_on() -> None:
    history = [*tasks(9), *turn(9, loops=40)[:-1]]
    with_memory = plan(history)
    assert plan(history, covered=0, frozen=with_memory) == plan(history, covered=0)
    without = plan(history, covered=0)
    assert plan(history, frozen=without) == plan(history)
    longer = tasks(60)
    early = plan([*longer[:54], user("Go on.")], ceiling=32_000, policy=NO_TAIL)
    assert plan(longer, memory=None, ceiling=16_000, frozen=early) == plan(longer, memory=None, ceiling=16_000)


def test_pinned_messages_stay() -> None:
    history = [*tasks(9), user("Go on.")]
    made = plan(history, pinned=frozenset({1}))
    kept = [edit.place for edit in made.edits if isinstance(edit, Kept)]
    assert kept == [1, 2], "a call stays with its result"
    assert "28 messages" in read_memory(made).text
    cut = plan([*tasks(9), *turn(9, loops=40)[:-1]], pinned=frozenset({1, 60}))
    kept = [edit.place for edit in cut.edits if isinstance(edit, Kept)]
    assert kept[:2] == [1, 2] and 60 in kept


def test_of_steps_that_stay_for_words_of_the_system_outputs_leave() -> None:
    """Formats exist in which such words, and what the model does then, are one group."""
    system: RawMessage = {"role": "system", "content": "The date is the 3rd."}
    history = [*tasks(2), user("Mend it."), system, *act("led", "cat", "long line\n" * 400), *tasks(6), user("Go on.")]
    seen = [see(each) for each in history]
    place = history.index(system)
    leading = msgspec.structs.replace(seen[place].structure, is_leading=True)
    seen[place] = msgspec.structs.replace(seen[place], structure=leading)
    for turns in (4, 0):
        asked = msgspec.structs.replace(
            view_seen(seen, 8_000), strategy="snapshot", memory=MemoryText(TEXT, len(history) - 1)
        )
        made = ContextBuilder(BuilderPolicy(snapshot=SnapshotPolicy(raw_tail_turns=turns)), count).build(asked)
        kept, called, output = made.edits[1:4]
        assert (kept, called) == (Kept(place), Kept(place + 1))
        assert isinstance(output, Replaced)
        assert (output.place, output.kind) == (place + 2, "tombstone")
        assert [each.id for each in made.references if f"ref:{each.id}" in output.text]
        sent = render(history, made)
        assert made.tokens == sum(see(each).tokens for each in sent)


def test_as_text_the_newest_turns_are_part_of_our_message() -> None:
    history = [*tasks(9), user("Do task 9.")]
    made = plan(history, policy=BuilderPolicy(snapshot=SnapshotPolicy(tail="text")))
    memory, now = render(history, made)
    assert now == user("Do task 9.")
    recent = memory["content"].partition("[RECENT TURNS]\n")[2]
    assert recent.startswith("Turn 6:\n  User: Do task 5.\n  Tool call: shell ")
    assert [line for line in recent.splitlines() if line.startswith("Turn")] == [f"Turn {n}:" for n in range(6, 10)]
    assert recent.endswith("  Assistant: Task 8 is done.")
    assert "30 messages" in memory["content"]
    alone = plan(history, policy=BuilderPolicy(snapshot=SnapshotPolicy(tail="text", raw_tail_turns=0)))
    assert "[RECENT TURNS]" not in read_memory(alone).text


def test_as_text_a_large_current_turn_stands_behind_no_others() -> None:
    history = [*tasks(9), *turn(9, loops=40)[:-1]]
    made = plan(history, policy=BuilderPolicy(snapshot=SnapshotPolicy(tail="text")))
    assert read_memory(made).stop == 54
    assert made.tokens <= view(history, 8_000).budget.high


def test_turns_stay_whole_where_a_group_spans_their_border() -> None:
    """A user speaks while a call is open."""
    loop = [user("Run it."), call("late", "run"), user("Is it done?"), result("late", "done"), said("Yes.")]
    history = [*tasks(5), *loop]
    made = plan([*history, user("Good.")], policy=SHORT_TAIL)
    assert render([*history, user("Good.")], made)[1:4] == history[31:34]


def test_a_late_output_in_the_newest_turn_keeps_its_call_in_the_ledger_of_all() -> None:
    """Items of the API Responses may be answered turns later. Call and output stay or go together."""
    history = [*tasks(3), user("Run it."), call("late", "run"), said("It runs."), *turn(8)]
    later = [each for i in range(40) for each in act(f"d{i}", "go", "x" * 400)]
    history += [user("Go on."), result("late", "done"), *later]
    seen = [see(each) for each in history]
    place = history.index(call("late", "run"))
    seen[place] = msgspec.structs.replace(
        seen[place], structure=msgspec.structs.replace(seen[place].structure, stays="unanswered")
    )
    memory = MemoryText(TEXT, history.index(user("Go on.")))
    asked = msgspec.structs.replace(view_seen(seen, 8_000), strategy="snapshot", memory=memory)
    made = ContextBuilder(BuilderPolicy(snapshot=SnapshotPolicy(raw_tail_turns=1)), count).build(asked)
    assert made == ContextBuilder(POLICY, count).build(msgspec.structs.replace(asked, strategy="epochs"))
    kept = plan(history[: place + 9], policy=NO_TAIL)
    assert kept.through


def test_a_place_with_too_much_behind_it_is_passed_over() -> None:
    sizes = {0: 1000, 10: 700, 20: 400, 30: 100}
    weigh = sizes.__getitem__
    assert choose_tail([0, 10, 20, 30], weigh, 1000, 4).start == 20
    assert choose_tail([0, 10, 20, 30], weigh, 1000, 0).start == 30
    assert choose_tail([0, 10, 20, 30], weigh, 10_000, 2).start == 10
    assert choose_tail([0, 10, 20, 30], weigh, 10_000, 2, covered=5).start == 0
    cut = choose_tail([0, 10, 20, 30], weigh, 100, 4)
    assert (cut.start, cut.is_whole) == (20, False)
    assert choose_tail([0, 10, 20, 30], weigh, 100, 0).start == 30
    assert not choose_tail([], weigh, 100, 4).start


def test_a_conversation_without_messages_is_left_alone() -> None:
    assert plan([], covered=0).through == 0


@pytest.mark.parametrize("seed", range(40))
def test_any_history_is_sent_without_orphans_and_in_its_order(seed: int) -> None:
    pick = random.Random(seed)
    history: list[RawMessage] = []
    for number in range(pick.randrange(1, 14)):
        history += turn(number, pick.randrange(4), pick.choice((1, 40, 800)))[: pick.randrange(1, 12)]
        if history[-1].get("tool_calls"):
            history.append(result(history[-1]["tool_calls"][0]["id"], "late"))
    history.append(user("Now."))
    starts = [*list_turn_starts([see(each) for each in history]), len(history)]
    covered = pick.choice(starts[:-1])
    pins = frozenset(pick.sample(range(len(history)), min(len(history), pick.randrange(3))))
    policy = BuilderPolicy(
        snapshot=SnapshotPolicy(raw_tail_turns=pick.randrange(5), tail="text" if pick.random() < 0.3 else "messages")
    )
    made = plan(history, covered, ceiling=pick.choice((4_000, 8_000)), pinned=pins, policy=policy)
    sent = render(history, made)
    asked = [each["id"] for message in sent for each in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert sorted(asked) == sorted(answered)
    assert sent[-1] == user("Now.")
    assert all(history[place] in sent for place in pins)
    if isinstance(made.edits[0] if made.edits else None, Written) and "memory" in made.edits[0].text:  # type: ignore[union-attr]
        assert read_memory(made).stop <= max(covered, starts[-2] if policy.snapshot.tail == "text" else 0)
    splice(made, view(history, 8_000))


def test_the_two_newest_user_turns_stay_whatever_is_between_them() -> None:
    history = [*tasks(5), *turn(8, 9, 250), user("Do task 9.")]
    sent = render(history, plan(history))
    assert [each["content"] for each in sent if each["role"] == "user"][1:] == ["Do task 8.", "Do task 9."]


def test_of_a_long_second_newest_turn_what_fits_stays() -> None:
    long = user("Keep the order of the columns. " + "Some words of prose that go on. " * 900 + "Then stop.")
    history = [*tasks(4), long, *turn(7, 9, 250)[1:], user("Do task 9.")]
    made = plan(history)
    sent = render(history, made)
    kept = [each["content"] for each in sent if each["role"] == "user"][1:]
    assert len(kept) == 2 and kept[0].startswith("Keep the order of the columns.") and "Then stop." in kept[0]
    assert len(kept[0]) < len(long["content"]) / 2
    assert made.tokens == sum(see(each).tokens for each in sent)


@pytest.mark.parametrize("place", [0, 2, 5])
def test_rules_in_turns_that_leave_are_shown_beside_memory(place: int) -> None:
    rules = ["HARD CONSTRAINT: the report has no more than nine columns.", "All times must be in UTC."]
    history = tasks(9)
    starts = [at for at, each in enumerate(history) if each["role"] == "user"]
    for at, rule in enumerate(rules):
        history[starts[place + at]] = user(f"Do this. {rule}")
    text = read_memory(plan([*history, user("Do task 9.")], policy=SHORT_TAIL)).text
    assert all(text.count(rule) == 1 for rule in rules)
    known = plan(
        [*history, user("Do task 9.")],
        policy=SHORT_TAIL,
        memory=MemoryText(f"{TEXT}\n- (constraint) {rules[1]}", len(history)),
    )
    assert read_memory(known).text.count(rules[1]) == 1
