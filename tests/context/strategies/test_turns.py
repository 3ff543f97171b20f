"""The strategy turns: what is kept of a conversation when a prompt begins a turn."""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage, TurnsPolicy
from proxy.context.strategies.turns import find_prompt
from proxy.model.epoch import Kept, Written
from proxy.wire import FORMATS
from tests.support.views import RawMessage, act, call, count, render, result, said, see, splice, user, view, view_seen

POLICY = BuilderPolicy()


def plan(messages: Sequence[RawMessage], ceiling: int = 100_000, policy: BuilderPolicy = POLICY, **changes: Any) -> Any:
    asked = msgspec.structs.replace(view(messages, ceiling), strategy="turns", **changes)
    return ContextBuilder(policy, count).build(asked)


def send(messages: Sequence[RawMessage], ceiling: int = 100_000, policy: BuilderPolicy = POLICY) -> list[RawMessage]:
    return render(messages, plan(messages, ceiling, policy))


def turn(number: int, loops: int = 2, size: int = 40) -> list[RawMessage]:
    acts = [each for i in range(loops) for each in act(f"c{number}-{i}", f"run {number} {i}", f"out {number} " * size)]
    return [user(f"Do task {number}."), *acts, said(f"Task {number} is done.")]


def tasks(turns: int, loops: int = 2) -> list[RawMessage]:
    return [each for number in range(turns) for each in turn(number, loops)]


def test_a_turn_has_the_words_before_it_and_the_newest_complete_loop() -> None:
    past = tasks(5)
    now = [user("Do task 5."), *act("c5", "look", "seen")]
    assert send([*past, *now]) == [user("Do task 4."), *act("c4-1", "run 4 1", "out 4 " * 40), *now]


def test_the_size_does_not_depend_on_what_lies_before_the_turn() -> None:
    now = [user("Go on.")]
    sizes = {len(send([*tasks(turns), *now])) for turns in (2, 10, 300)}
    assert sizes == {4}


@pytest.mark.parametrize(("turns", "kept"), [(1, []), (2, [2]), (3, [1, 2])])
def test_so_many_turns_of_the_users_words_are_sent(turns: int, kept: list[int]) -> None:
    sent = send([*tasks(3), user("Go on.")], policy=BuilderPolicy(turns=TurnsPolicy(user_turns=turns)))
    said_by_user = [each["content"] for each in sent if each["role"] == "user" and "palimpsest" not in each["content"]]
    assert said_by_user == [*(f"Do task {number}." for number in kept), "Go on."]


def test_a_note_stands_where_the_assistant_would_be_first() -> None:
    past = [*tasks(3), user("Thanks."), said("You are welcome.")]
    note, *sent = send([*past, user("Go on.")])
    assert sent == [*act("c2-1", "run 2 1", "out 2 " * 40), user("Thanks."), user("Go on.")]
    assert note["role"] == "user"
    assert "15 messages that stood here are stored" in note["content"]
    assert count(note["content"]) <= 60
    asked = plan([*past, user("Go on.")], has_tool=True).edits[0]
    assert isinstance(asked, Written)
    assert asked.text.endswith("Search them with context_recall.]")
    assert count(asked.text) <= 60


def test_a_loop_without_a_result_is_none() -> None:
    open_call = [user("Do it."), call("c9", "wait")]
    sent = send([*tasks(2), *open_call, user("Never mind.")])
    assert sent[0] == user("Do task 1.") or "palimpsest" in sent[0]["content"]
    assert [each for each in sent if each.get("tool_calls")] == [call("c1-1", "run 1 1")]


def test_a_loop_is_looked_for_in_the_newest_messages_only() -> None:
    chat = [each for number in range(12) for each in (user(f"Question {number}?"), said("An answer."))]
    now = [*tasks(1), *chat, user("And now?")]
    assert send(now) == [user("Question 11?"), user("And now?")]
    assert len(send(now, policy=BuilderPolicy(turns=TurnsPolicy(scan_messages=40)))) == 5


def test_a_turn_stays_whole_below_the_high_mark() -> None:
    long = [user("Do all."), *(each for i in range(30) for each in act(f"d{i}", f"step {i}", "x" * 400))]
    assert send([*tasks(4), *long])[-len(long) :] == long


def test_at_the_high_mark_the_oldest_loops_of_the_turn_leave_and_its_prompt_stays() -> None:
    long = [user("Do all."), *(each for i in range(60) for each in act(f"d{i}", f"step {i}", "x" * 4000))]
    history = [*tasks(3), *long]
    made = plan(history, 32_000)
    sent = render(history, made)
    assert sent[:2] == [user("Do task 2."), user("Do all.")]
    assert "are stored" in sent[2]["content"]
    assert sent[-2:] == long[-2:]
    assert sent[3:] == long[-len(sent[3:]) :]
    assert made.tokens <= view(history, 32_000).budget.compute_low_mark(made.protected)


def test_a_turn_that_cannot_be_cut_by_loops_is_cut_as_any_context() -> None:
    """One output is larger than all that may be sent."""
    history = [*tasks(3), user("Read it."), *act("d1", "cat", "line of text\n" * 20_000)]
    made = plan(history, 16_000)
    assert made.tokens <= view(history, 16_000).budget.high


def test_without_words_of_the_user_the_context_is_cut_as_any() -> None:
    history = [each for i in range(80) for each in act(f"d{i}", f"step {i}", "x" * 4000)]
    assert find_prompt([see(each) for each in history]) is None
    assert 0 < plan(history, 32_000).tokens <= view(history, 32_000).budget.high


def test_pinned_messages_stay() -> None:
    history = [*tasks(4), user("Go on.")]
    made = plan(history, pinned=frozenset({1}))
    kept = [edit.place for edit in made.edits if isinstance(edit, Kept)]
    assert kept[:2] == [1, 2], "a call stays with its result"


def test_adjacent_words_of_the_user_are_one_prompt() -> None:
    now = [user("Look at this."), user("And mend it.")]
    history = [*tasks(2), *now]
    assert send(history)[-2:] == now
    assert find_prompt([see(each) for each in history]) == len(history) - 2


def test_words_that_a_client_makes_begin_no_turn() -> None:
    """Agents without tool calls send what came of an action in the user's role."""
    acted = [
        each
        for i in range(6)
        for each in (said(f"```bash\nls {i}\n```"), user(f"Observation:\n<returncode>0</returncode> file_{i}"))
    ]
    history = [user("Mend it."), *acted]
    assert find_prompt([see(each) for each in history]) == 0


def test_a_note_stands_before_items_that_are_nobodys() -> None:
    """Whoever checks what a request begins with looks behind them."""
    acted: list[RawMessage] = [
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "reasoning", "id": "r1", "summary": [], "encrypted_content": "abc"},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "run", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]
    talk = [{"role": role, "content": text} for role, text in (("user", "Thanks."), ("assistant", "Welcome."))]
    items = [{"role": "user", "content": "Do it."}, *acted, *talk, {"role": "user", "content": "Go on."}]
    decoded = [FORMATS["responses"].decode_message(json.dumps(each).encode()) for each in items]
    seen = [CountedMessage(each.message, each.structure, 10) for each in decoded]
    asked = msgspec.structs.replace(view_seen(seen, 100_000), strategy="turns")
    edits = ContextBuilder(POLICY, count).build(asked).edits
    assert isinstance(edits[0], Written)
    assert edits[1:] == tuple(map(Kept, range(1, 6)))


@pytest.mark.parametrize("seed", range(30))
def test_any_history_is_sent_without_orphans_and_as_one_that_grows(seed: int) -> None:
    pick = random.Random(seed)
    history: list[RawMessage] = []
    for number in range(pick.randrange(1, 12)):
        history += turn(number, pick.randrange(4), pick.choice((1, 40, 2000)))[: pick.randrange(1, 12)]
        if history[-1].get("tool_calls"):
            history.append(result(history[-1]["tool_calls"][0]["id"], "late"))
    history.append(user("Now."))
    made = plan(history, 16_000)
    sent = render(history, made)
    asked = [each["id"] for message in sent for each in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert sorted(asked) == sorted(answered)
    assert sent[-1] == user("Now.")
    assert sent[0]["role"] == "user"
    splice(made, view(history, 16_000))
