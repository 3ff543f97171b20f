"""What counts as bound reasoning, and which of it a request has."""

from typing import NamedTuple

import pytest

from proxy.context.verbatim import OWN, estimate_reasoning, list_foreign, may_bind_reasoning


class Said(NamedTuple):
    """A message with a role."""

    role: str
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def read(roles: str) -> list[Said]:
    """A message for each letter."""
    return [Said({"u": "user", "a": "assistant", "t": "tool"}[role]) for role in roles]


@pytest.mark.parametrize(
    ("models", "may_bind"),
    [
        (("claude-fable-5-2", "anthropic/claude-opus-5.5", "claude-sonnet-5-5-20261001", "claude-haiku-5-5"), True),
        (("us.anthropic.claude-mythos-5-1-v1:0", "claude-fable-6", "claude-opus-10", "somebody/new-model"), True),
        (
            ("claude-opus-5", "claude-sonnet-5-20260301", "claude-fable-5", "claude-haiku-4-5", "claude-3-7-sonnet"),
            False,
        ),
        (("anthropic/claude-sonnet-4.5", "claude-opus-4-8", "claude-instant-1", "google/gemini-3-pro"), False),
        (("gpt-5.6", "openai/o4-mini", "deepseek/deepseek-v4", "qwen3-coder", "x-ai/grok-5"), False),
    ],
)
def test_reasoning_may_be_bound_unless_a_model_is_known_not_to_check_it(
    models: tuple[str, ...], *, may_bind: bool
) -> None:
    assert {model: may_bind_reasoning(model) for model in models} == dict.fromkeys(models, may_bind)


@pytest.mark.parametrize(
    ("roles", "start", "rendering", "foreign"),
    [
        ("uatataua", 0, OWN, [3, 5]),  # made under e1, where one was made before and one behind it
        ("uatataua", 0, "e1", [1, 7]),
        ("uatataua", 4, "e1", [7]),
        ("uatataua", 4, "e2", [5, 7]),
        ("aua", 0, "e1", [0, 2]),
        ("", 0, "e1", []),
    ],
)
def test_a_request_has_what_was_made_under_its_own_rendering(
    roles: str, start: int, rendering: str, foreign: list[int]
) -> None:
    origins = {3: "e1", 5: "e1"}
    assert list(list_foreign(read(roles), start, rendering, lambda at: origins.get(at, OWN))) == foreign


@pytest.mark.parametrize(("start", "foreign"), [(0, [1, 2, 6]), (2, [2, 6]), (3, [6]), (5, [6])])
def test_messages_of_the_assistant_in_a_row_are_one_answer(start: int, foreign: list[int]) -> None:
    origins = {1: "e1", 4: OWN, 6: "e1"}
    asked: list[int] = []
    found = list_foreign(read("uaauaua"), start, OWN, lambda at: asked.append(at) or origins[at])  # type: ignore[func-returns-value]
    assert list(found) == foreign
    assert set(asked) <= set(origins)


def test_tokens_of_reasoning_are_estimated_by_its_length() -> None:
    assert [estimate_reasoning(characters) for characters in (0, 3, 400)] == [0, 0, 100]
