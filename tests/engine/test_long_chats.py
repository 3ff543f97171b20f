"""Very long chats: what a call costs does not grow with them. Work is counted, not timed."""

import json
from typing import Any

import pytest

from proxy.context.conversation import PlanRequest
from proxy.engine.policy import EnginePolicy
from proxy.engine.token_counter import TokenCounter
from proxy.model.epoch import ContextPlan
from tests.support.managed import ManagedEngine, OwnBuilder, answer
from tests.support.managing import Message, QuarterTokens, make_subject
from tests.support.measuring import MeasuredBodies

_PAIRS, _CALLS = 300, 200
_MOST_READ = 28  # by all plans, for each message that is new
_SAID = {"role": "assistant", "content": "well"}


class CountingBuilder(OwnBuilder):
    """Counts the messages that all plans together have read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def build(self, view: PlanRequest) -> ContextPlan:
        self.read += len(view.messages)
        return super().build(view)


def say(pairs: int, words: int) -> list[Message]:
    """A chat of so many questions and answers, and one more question."""
    asked: list[Message] = [{"role": "user", "content": f"{n} " + "some words " * words} for n in range(pairs + 1)]
    return [each for question in asked for each in (question, _SAID)][:-1]


def report_use(body: bytes) -> dict[str, Any]:
    """Tell what an upstream would count for a body, most of it read from its cache."""
    tokens = len(body) // 4
    cached = {"prompt_tokens": tokens, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": tokens - 64}}
    return {"choices": [{"message": _SAID, "finish_reason": "stop"}], "usage": cached}


@pytest.mark.parametrize(("words", "ceiling"), [(2, 12_000), (4, 16_000), (8, 24_000)])
async def test_planning_reads_no_more_than_a_bounded_number_of_messages_for_each_that_is_new(
    words: int, ceiling: int
) -> None:
    """Where all that users said stays an epoch saves nothing for hundreds of calls, at any of which it would pay."""
    builder = CountingBuilder()
    engine = ManagedEngine(builder=builder, ceiling=ceiling)
    chat = say(_PAIRS + _CALLS, words)
    for n in range(_PAIRS, _PAIRS + _CALLS):
        body = chat[: 2 * n + 1]
        engine.upstream.prepare(answer(json.dumps(report_use(json.dumps(body).encode())).encode()))
        await engine.send(body)
        await engine.wait_for_ahead()
    assert engine.failures == []
    assert 0 < builder.read <= _MOST_READ * 2 * _CALLS


async def test_the_history_of_ten_thousand_messages_is_kept_so_that_the_next_call_reads_what_is_new() -> None:
    paths = MeasuredBodies(
        TokenCounter(QuarterTokens()), EnginePolicy().cache_bytes // 4 * 3
    )  # as the resolver gives it
    asked = make_subject(say(5_000, 2))
    await paths.follow(asked)
    assert paths.find(asked)[1] == len(asked.nodes) == 10_001
