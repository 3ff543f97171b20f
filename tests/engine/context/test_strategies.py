"""The strategy of a request: who asks for it, and what is sent from call to call."""

import json
from itertools import pairwise
from typing import Any

import pytest

from proxy.context.budget import ModelPolicy
from proxy.engine.context.tool_offers import TOOL_TOKENS
from proxy.engine.policy import EnginePolicy
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import STRATEGIES, Epoch, name_view, read_view
from tests.support.managing import Message
from tests.support.talking import Talk

TURNS = (b"x-palimpsest-strategy", b"turns")


def make_turn(number: int, loops: int = 2) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": f"Do task {number}."}]
    for i in range(loops):
        id = f"call_{number}_{i}"
        function = {"name": "bash", "arguments": json.dumps({"command": f"run {number} {i}"})}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": id, "content": f"output {number} {i} " * 20},
        ]
    return messages


class Client:
    """An agent that sends its whole history with each call, a call for each step of each turn."""

    def __init__(self, talk: Talk, *headers: tuple[bytes, bytes]) -> None:
        self.talk, self.headers = talk, headers
        self.history: list[Message] = [{"role": "system", "content": "You are an agent."}]

    async def ask(self, **members: Any) -> list[Message]:
        """One call. Return the messages that the upstream got."""
        await self.talk.ask(self.history, *self.headers, **members)
        sent: list[Message] = json.loads(self.talk.upstream.bodies[-1])["messages"]
        return sent

    async def take_turn(self, number: int, loops: int = 2) -> list[list[Message]]:
        """The calls of a turn. Return what was sent for each."""
        prompt, *steps = make_turn(number, loops)
        self.history.append(prompt)
        sent = [await self.ask()]
        for i in range(0, len(steps), 2):
            self.history += steps[i : i + 2]
            sent.append(await self.ask())
        self.history.append({"role": "assistant", "content": f"Task {number} is done."})
        return sent


async def test_each_prompt_begins_a_context_that_only_grows_within_the_turn() -> None:
    talk = Talk(ceiling=None)
    client = Client(talk, TURNS)
    for number in range(6):
        sent = await client.take_turn(number)
        for before, after in pairwise(sent):
            assert after[: len(before)] == before
        if number:
            system, words, act, seen, prompt = sent[0]
            assert (words["content"], prompt["content"]) == (f"Do task {number - 1}.", f"Do task {number}.")
            assert (system["role"], act["role"], seen["content"]) == (
                "system",
                "assistant",
                f"output {number - 1} 1 " * 20,
            )
    assert len(talk.upstream.bodies) == 18
    assert talk.opened == 5
    epochs = (await talk.log.load_context(talk.session)).epochs
    assert {(each.why, each.view) for each in epochs} == {("turn", "gpt-4o (turns)")}
    await talk.close()


async def test_the_same_history_is_sent_as_before_and_after_a_restart() -> None:
    talk = Talk(ceiling=None)
    client = Client(talk, TURNS)
    for number in range(3):
        await client.take_turn(number)
    client.history.pop()
    sent = await client.ask()
    assert await client.ask() == sent
    await talk.reopen()
    assert await client.ask() == sent
    client.history += make_turn(3)[:1]
    assert [each["content"] for each in await client.ask() if each["role"] == "user"] == ["Do task 2.", "Do task 3."]
    await talk.close()


async def test_strategies_have_views_of_their_own() -> None:
    talk = Talk(ceiling=None)
    client = Client(talk, TURNS)
    for number in range(3):
        await client.take_turn(number)
    client.headers = ()
    assert await client.ask() == client.history
    client.headers = (TURNS,)
    assert len(await client.ask()) == len(client.history) - 9
    await talk.close()


async def test_a_revert_holds_until_the_high_mark() -> None:
    talk = Talk(ceiling=None)
    client = Client(talk, TURNS)
    for number in range(3):
        await client.take_turn(number)
    client.history += make_turn(3)[:1]
    await talk.care.revert(talk.session, talk.opened)
    assert len(await client.ask()) > 5
    for each in make_turn(3, 40)[1:]:
        client.history.append({**each, "content": "word " * 4000} if each["role"] == "tool" else each)
    await client.ask()
    assert talk.was_opened
    await talk.close()


@pytest.mark.parametrize(
    ("model", "strategy"), [("local-7b", "turns"), ("local-70b", "epochs"), ("gpt-4o", "turns"), ("other", "turns")]
)
def test_the_first_pattern_of_a_model_that_matches_counts(model: str, strategy: str) -> None:
    turns, epochs = ModelPolicy("turns"), ModelPolicy("epochs")
    stated = {"local-*b": ModelPolicy(window=9000), "local-70b": epochs, "local-7*b": turns, "local-*": epochs}
    policy = EnginePolicy(strategy="turns", models=stated)
    assert policy.find_strategy(model) == strategy


@pytest.mark.parametrize("model", ["gpt-4o", "a (b)", "m (turns"])
def test_a_view_names_model_and_strategy(model: str) -> None:
    for strategy in STRATEGIES:
        assert read_view(name_view(model, strategy)) == (model, strategy)


async def _find_nothing(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
    return "Nothing was found."


async def test_a_context_is_cut_once_what_leaves_has_more_tokens_than_the_tool_that_comes() -> None:
    talk = Talk(ceiling=None, run=_find_nothing)
    client = Client(talk, TURNS)
    sizes = []
    for number in range(12):
        client.history.append({"role": "user", "content": f"Do task {number}."})
        sent = await client.ask()
        sizes.append((len(sent), len(client.history)))
        client.history.append({"role": "assistant", "content": f"Task {number} is done: " + "word " * 30})
    cut = [number for number, (sent, own) in enumerate(sizes) if sent < own]
    assert cut == list(range(cut[0], 12))
    words = sum(len(str(each["content"]).split()) for each in client.history[1 : 2 * cut[0] - 1])
    assert TOOL_TOKENS / 2 < words < TOOL_TOKENS, "a word is a token or more"
    await talk.close()
