"""What clients write in the user's role is not the user's: examples, templates, files (shapes of four clients)."""

from collections.abc import Callable

import pytest

from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, ConversationIndex, index_conversation
from proxy.context.message_features import extract_features
from proxy.context.user_rules import list_rules
from proxy.context.verbatim import ClientMessages, find_client_messages
from proxy.model.epoch import Kept
from tests.support.coding_clients import TASKS, write_aider, write_cline, write_opencode, write_qwen_code
from tests.support.views import RawMessage, count, render, said, user, view

BUILDER = ContextBuilder(BuilderPolicy(), count)


def look(messages: list[RawMessage]) -> ConversationIndex:
    return index_conversation(view(messages, 6000), BuilderPolicy(), extract_features)


def list_user_texts(messages: list[RawMessage]) -> list[str]:
    """The texts of the user's turns."""
    seen = look(messages)
    return [seen.messages[place].message.text for i in seen.users for place in seen.steps[i].places]


@pytest.mark.parametrize("write", [write_aider, write_cline, write_opencode, write_qwen_code])
def test_only_the_user_s_own_sentences_are_rules(write: Callable[[int], list[RawMessage]]) -> None:
    assert {rule.text for rule in list_rules(look(write(6)))} == {"Never touch the lexer."}


@pytest.mark.parametrize("write", [write_aider, write_cline, write_opencode, write_qwen_code])
def test_the_first_turn_is_the_first_task(write: Callable[[int], list[RawMessage]]) -> None:
    first, *others = list_user_texts(write(6))
    assert TASKS[0] in first
    assert not any(text.startswith(("I have", "Called", "[ERROR]", "Change get_factorial")) for text in others)


@pytest.mark.parametrize("build", [BUILDER.build, BUILDER.minimal])
def test_of_aider_the_files_as_they_are_and_the_first_task_stay_and_the_examples_go(
    build: Callable[..., object],
) -> None:
    messages = write_aider(20)
    plan = BUILDER.build(view(messages, 8000)) if build == BUILDER.build else BUILDER.minimal(view(messages, 8000))
    sent = render(messages, plan)
    assert messages[-1] in sent and messages[-3] in sent and Kept(8) in plan.edits
    assert not any(message in sent for message in messages[:6])
    assert plan.tokens <= view(messages, 8000).budget.usable


def test_of_several_messages_that_stand_for_the_same_files_the_newest_stays() -> None:
    old, new = write_aider(3)[-3], write_aider(9)[-3]
    messages = [*write_aider(2)[:-3], old, said("Ok."), *write_aider(9)[8:]]
    seen = look(messages)
    kept = {seen.messages[place].message.text for i in seen.fixed for place in seen.steps[i].places}
    assert new["content"] in kept and old["content"] not in kept


def test_what_a_client_wrote_is_known_by_its_beginning() -> None:
    switched = "I switched to a new code base. Please don't."
    texts = {
        0: "Mend it.",
        2: switched,
        4: "Here are some READ ONLY files:",
        6: "I have *added these files: no",
        8: "Go.",
    }
    assert find_client_messages(texts) == ClientMessages(frozenset({0, 2, 4}), frozenset({4}))
    assert find_client_messages({0: "I switched the code base.", 1: "Called you."}) == ClientMessages()
    assert list_user_texts([user("Mend it."), said("So."), user(f"I say: {switched}")])[1].startswith("I say")
