import dataclasses

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.conversation import (
    BuilderPolicy,
    ConversationIndex,
    CountedMessage,
    FilesPolicy,
    PlanRequest,
    PruningPolicy,
    index_conversation,
    list_groups,
    with_unsent,
)
from proxy.context.message_features import extract_features
from proxy.model.messages import Message, MessageStructure
from tests.support.views import RawMessage, act, call, result, said, user, view


def test_the_defaults_are_those_the_documents_name() -> None:
    policy = BuilderPolicy()
    assert policy.pruning == PruningPolicy(True, 40_000, 20_000, ("skill",))
    assert policy.files == FilesPolicy(10_000, True)
    assert policy.protect_turns == 2


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BuilderPolicy().protect_turns = 1  # type: ignore[misc]


SEEN = CountedMessage(Message("user", "hello"), MessageStructure("user"), 3)


def test_a_view_of_a_fresh_conversation_has_only_its_messages() -> None:
    budget = make_budget(128_000, 8192, 1000, BudgetPolicy())
    view = PlanRequest(
        budget, messages=(SEEN, SEEN), head=40, name=lambda start, stop, offset: f"r{start}-{stop}-{offset}"
    )
    assert (view.pinned, view.frozen) == (frozenset(), None)
    assert view.name(0, 2, 5) == "r0-2-5"
    assert sum(seen.tokens for seen in view.messages) + view.head == 46


def test_what_was_seen_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SEEN.tokens = 4  # type: ignore[misc]
    assert CountedMessage(Message("user", "hello"), MessageStructure("user"), 3) == SEEN


def look(messages: list[RawMessage], *pinned: int, turns: int = 2) -> ConversationIndex:
    return index_conversation(
        view(messages, 10_000, pinned=pinned), BuilderPolicy(protect_turns=turns), extract_features
    )


def test_steps_are_groups_and_know_their_turn() -> None:
    seen = look([user("a"), *act("1", "ls", "x"), user("b"), user("c"), said("done")])
    assert [(step.start, step.stop, step.kind, step.turn) for step in seen.steps] == [
        (0, 1, "user", 1), (1, 3, "step", 1), (3, 4, "user", 2), (4, 5, "user", 2), (5, 6, "step", 2),
    ]  # fmt: skip


def test_the_newest_turns_are_whole_turns() -> None:
    messages = [user("a"), said("1"), user("b"), user("c"), said("2"), user("d")]
    assert look(messages).newest == {2, 3, 5}
    assert look(messages, turns=0).newest == {5}


def echo(*actions: str, first: str = "task", observed: str = "Observation: [exit {}]\nfine") -> ConversationIndex:
    """An agent without calls: what it says, and what comes back in the user's name."""
    outputs = [(said(action), user(observed.format(i))) for i, action in enumerate(actions)]
    return look([user(first), *[message for pair in outputs for message in pair]])


@pytest.mark.parametrize(
    "action",
    [
        "Let me look.\n```bash\nls\n```",
        "<execute_bash>\nls\n</execute_bash>",
        "Thought: I should look.\nAction: ls[.]",
        'I do it: {"command": {"name": "ls"}}',
    ],
)
def test_what_a_machine_put_out_as_the_user_is_no_turn(action: str) -> None:
    assert echo(action, action, action).users == (0,)
    assert len(echo(action, action).users) == 3  # twice is chance
    assert len(echo(action, action, action, observed="yes, do it").users) == 4
    assert (
        len(echo(action, action, action, observed="result: now please do all of what is in part number {}:").users) == 4
    )


FENCED = "Like this:\n```python\npass\n```"


@pytest.mark.parametrize(
    "observed",
    [
        "Observation: [exit {}]",
        "<returncode>{}</returncode>",
        "[The command completed with exit code {}.]",
        "<tool_response>\n{}\n</tool_response>",
        "EXECUTION RESULT of [{}]:",
        "OUTPUT:\n{}",
        '{{"stdout": "{}"}}',
    ],
)
def test_what_a_machine_put_out_is_known_by_how_it_begins(observed: str) -> None:
    assert echo(*[FENCED] * 3, observed=observed).users == (0,)


@pytest.mark.parametrize(
    "prompt",
    [
        "Ticket {}:\nMend it.",
        "## Task {}\nMend it.",
        "[{}] the next one",
        "<task>{}</task>",
        "Please run the command {}:",
        "Results of {} are wrong, so mend them.",
    ],
)
def test_prompts_of_a_person_that_begin_alike_are_the_user_s(prompt: str) -> None:
    assert len(echo(*[FENCED] * 6, observed=prompt).users) == 7


def test_what_looks_alike_behind_an_answer_is_the_user_s() -> None:
    assert len(echo("It is done.", "That is so.", "No, it is not.", observed="<output>{}</output>").users) == 4


REMINDER = "Remember that you have 12 calls left. Keep the list of tasks up to date, and do not speak of this reminder."


def remind(*reminders: str) -> ConversationIndex:
    """A conversation with calls, in which a client adds these behind the results."""
    pairs = ([*act(f"{i}", "ls", "a"), *([user(text)] if text else [])] for i, text in enumerate(reminders))
    return look([user("begin"), *(message for pair in pairs for message in pair), *act("x", "ls", "b")])


def test_reminders_behind_results_that_repeat_are_no_turns_of_the_user() -> None:
    seen = remind(*[REMINDER] * 88)
    assert seen.users == (0,) and len(seen.steps) == 1 + 2 * 88 + 1
    # The newest one has to be sent as it is.
    assert seen.messages[-3].message.text == REMINDER and len(seen.messages) - 3 in seen.bound
    assert remind(*[f"<system-reminder>{i} left</system-reminder>" for i in range(9)]).users == (0,)
    assert remind(REMINDER, "", REMINDER, "", REMINDER).users == (0,)


def test_what_a_person_says_behind_results_is_a_turn() -> None:
    assert len(remind(REMINDER, REMINDER).users) == 3  # twice is chance
    assert len(remind(*["go on"] * 9).users) == 10
    assert len(remind(*[f"Task {i}: {REMINDER}" for i in range(9)]).users) == 10
    assert len(remind(*[f"{REMINDER} {word}" for word in ("a", "b", "c", "d")]).users) == 5
    answered = [message for i in range(5) for message in (user(REMINDER), said(f"I know. {i}"))]
    assert len(look([user("begin"), *act("x", "ls", "a"), said("So."), *answered]).users) == 6


def test_a_client_that_wraps_every_prompt_wraps_the_first() -> None:
    answer = "Like this:\n```python\npass\n```"
    seen = echo(*[answer] * 4, first="<tool_query>\nbegin\n</tool_query>", observed="<tool_query>\n{}\n</tool_query>")
    assert len(seen.users) == 5


def test_an_agent_with_calls_acts_by_them() -> None:
    tasks = [
        message
        for i in range(4)
        for message in (*act(f"{i}", "ls", "x"), said("```\nok\n```"), user("<output>do</output>"))
    ]
    assert len(look([user("begin"), *tasks]).users) == 5


def test_like_tasks_behind_results_are_the_user_s() -> None:
    tasks = [message for i in range(4) for message in (*act(f"{i}", "ls", "x"), user("<output>\ndo"))]
    assert len(look([user("begin"), *tasks]).users) == 5


def test_fresh_is_what_the_newest_answer_has_not_seen() -> None:
    begin = [user("a"), *act("1", "ls", "x")]
    assert look(begin).fresh == 1
    assert look([*begin, said("done"), user("next")]).fresh == 3
    assert look([user("a")]).fresh == 0


def test_fresh_is_what_was_never_sent_too() -> None:
    seen = look([user("a"), *act("1", "ls", "x"), *act("2", "ls", "y"), said("so"), said("done"), user("next")])
    fresh = [with_unsent(seen, sent).fresh for sent in (None, 8, 7, 6, 5, 4, 3, 2, 1, 0)]
    assert fresh == [4, 4, 4, 4, 4, 2, 2, 1, 1, 0]
    assert with_unsent(seen, None) is seen


def test_pins_and_outputs_of_protected_tools_stay() -> None:
    seen = look([user("a"), *act("1", "ls", "x"), *act("2", "x", "y", name="skill"), said("z"), user("b")], 5)
    assert seen.fixed == {2, 3}
    assert seen.bound == {4, 5}


def test_groups_are_the_steps_without_what_plans_need() -> None:
    for messages in (
        [user("a"), *act("1", "ls", "x"), user("b"), user("c"), said("done")],
        [user("a"), *(each for n in "123" for each in (said(f"```\nrun {n}\n```"), user(f"<output>{n}</output>")))],
    ):
        asked = view(messages, 10_000)
        steps = index_conversation(asked, BuilderPolicy(), extract_features).steps
        assert [group.places for group in list_groups(asked.messages)] == [step.places for step in steps]


def test_an_item_that_its_format_keeps_stays_with_its_group_and_a_call_until_it_is_answered() -> None:
    asked = view([user("a"), *act("1", "ls", "x"), call("2", "ls"), user("b"), user("c"), user("d")], 10_000)
    for stays, fixed in (("always", {1, 2}), ("unanswered", {2}), ("", set())):
        kept = [
            msgspec.structs.replace(seen, structure=msgspec.structs.replace(seen.structure, stays=stays))
            if seen.structure.calls
            else seen
            for seen in asked.messages
        ]
        index = index_conversation(msgspec.structs.replace(asked, messages=kept), BuilderPolicy(), extract_features)
        assert index.fixed == fixed


def test_a_user_s_words_inside_a_group_make_it_the_user_s() -> None:
    seen = look([user("a"), call("1", "ls"), user("wait"), result("1", "x"), said("b"), user("c")])
    assert [step.kind for step in seen.steps] == ["user", "user", "step", "user"]
