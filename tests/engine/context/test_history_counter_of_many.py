"""Many conversations at once: whatever is asked in whatever order, what is known is as if counted from scratch."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.lineage.chain import make_chain, read_messages
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter
from proxy.wire.body import count_shared, split_after
from proxy.wire.chat_completions import ChatCompletions
from tests.support.examples import examples
from tests.support.managing import SESSION, QuarterTokens, make_subject, spell
from tests.support.measuring import MeasuredBodies

Message = dict[str, Any]
FORM = ChatCompletions()


def call(number: int) -> Message:
    function = {"name": "read", "arguments": '{"path":"a"}'}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


messages = st.sampled_from([{"role": "user", "content": text} for text in ("hi", "go on", "x" * 90)]) | st.builds(
    lambda number, is_call: (
        call(number) if is_call else {"role": "tool", "tool_call_id": f"call_{number}", "content": "six"}
    ),
    st.integers(0, 2),
    st.booleans(),
)
_PLENTY = 1 << 30
_LARGE = {"user": "u" * 4096}  # a smaller body is not cached
HEADS: tuple[dict[str, Any], ...] = (_LARGE, {**_LARGE, "tools": [{"type": "function", "function": {"name": "read"}}]})
systems = st.sampled_from([[], [{"role": "system", "content": "You help."}]])


def spell_otherwise(message: Message, way: int) -> Message:
    """What a client may do to a message that stays the same message."""
    if way == 1:
        return {**message, "cache_control": {"type": "ephemeral"}}
    if way == 2 and message["role"] == "assistant":
        return {**message, "reasoning_content": "because " * 9}
    return message


def grow(before: ManagedRequest, content: bytes) -> ManagedRequest | None:
    """A request as reception makes it where it remembers the one before: it shares what it can."""
    shared = count_shared(content, before.split)
    split = split_after(content, FORM.items_key, before.split, shared) if shared else None
    if split is None:
        return None
    chain = make_chain(
        read_messages(FORM, split, before.chain, shared, before.chain.root), before.chain, before.chain.root
    )
    return msgspec.structs.replace(before, split=split, chain=chain)


def describe(path: MeasuredHistory) -> tuple[object, ...]:
    runs = [(run.structures, tuple(run.places), run.faults) for run in path.runs.runs]
    return list(path.nodes), list(path.structures), list(path.sums), runs, path.runs.starts, path.head, path.marked


class ManyPaths(RuleBasedStateMachine):
    """Requests of two sessions and two models."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.said: list[list[Message]] = [[]]
        self.last: dict[tuple[str, str], ManagedRequest] = {}
        self.paths = MeasuredBodies(TokenCounter(QuarterTokens()))
        self.most = 0

    @initialize(most=st.sampled_from([6_000, 20_000, _PLENTY]))
    def begin(self, most: int) -> None:
        self.most = most
        self.paths = MeasuredBodies(TokenCounter(QuarterTokens()), most)

    @rule(
        whose=st.integers(0, 9),
        kept=st.integers(0, 12),
        more=st.lists(messages, min_size=1, max_size=5),
        ways=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=4, max_size=4),
        head=st.sampled_from(HEADS),
        system=systems,
        session=st.sampled_from(["s1", "s1", "s2"]),
        model=st.sampled_from(["gpt-4o", "gpt-4o", "claude-3"]),
    )
    def ask(
        self,
        whose: int,
        kept: int,
        more: list[Message],
        ways: list[int],
        head: dict[str, Any],
        system: list[Message],
        session: str,
        model: str,
    ) -> None:
        """Go on from somewhere in a conversation, at whose end the client spells some messages anew."""
        before = self.said[whose % len(self.said)]
        said = [*before[:kept], *more]
        self.said.append(said)
        spelt = [*said[:-4], *map(spell_otherwise, said[-4:], ways[-len(said[-4:]) :])]
        key = session, model
        subject = make_subject([*system, *spelt], session=msgspec.structs.replace(SESSION, id=session), **head)
        subject = msgspec.structs.replace(subject, model=model)
        if key in self.last:
            subject = grow(self.last[key], spell([*system, *spelt], **head)) or subject
        self.last[key] = subject
        path = self.runner.run(self.paths.follow(subject))
        anew = self.runner.run(MeasuredBodies(TokenCounter(QuarterTokens())).follow(subject))
        assert describe(path) == describe(anew)
        known, shared = self.paths.find(subject)
        assert (known, shared) == (path, len(said)) or self.most < _PLENTY

    def teardown(self) -> None:
        self.runner.close()


@pytest.mark.no_cover
def test_whatever_is_asked_is_as_counted_from_scratch() -> None:
    run_state_machine_as_test(ManyPaths, settings=examples(25, stateful_step_count=20))
