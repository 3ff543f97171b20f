"""Loops of a session, found in what its log has: on branches, across words of the user, and as they go on."""

import json
from collections.abc import Callable

from proxy.context.budget import BudgetPolicy
from proxy.engine.models import PriceList
from proxy.engine.ports import RequestBody
from proxy.model.card import Card
from proxy.model.exchange import Headers
from proxy.read.savings import SavingsInputs
from proxy.read.session_reports import SessionReports, load_loops
from proxy.read.timeline import Loop, tell_loop
from tests.support.compacting import Model, Workshop, say
from tests.support.engine import JSON, ScriptedResponse
from tests.support.managing import Message

USER: Message = {"role": "user", "content": "list it"}


def call(id: str, name: str = "bash", **given: object) -> Message:
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


class Repeating(Model):
    """A model that answers with the message that is next."""

    next: Message

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        assert isinstance(body, bytes)
        self.sent.append(body)
        answer = say(None, sent=10, finish="tool_calls", tool_calls=self.next["tool_calls"])
        return ScriptedResponse(answer, headers=JSON, ending="whole")


class Talk:
    """A session whose model repeats itself."""

    def __init__(self) -> None:
        self.model = Repeating()
        self.shop = Workshop(upstream=self.model, ceiling=100_000)
        self.messages: list[Message] = [USER]
        self.count = 0

    async def take(self, name: str = "bash", output: str = "a b", **given: object) -> None:
        self.count += 1
        self.model.next = call(f"c{self.count}", name, **given)
        await self.shop.ask(self.messages)
        self.messages += [self.model.next, {"role": "tool", "tool_call_id": f"c{self.count}", "content": output}]

    async def find(self, threshold: int = 3) -> list[Loop]:
        return await load_loops(self.shop.log, self.shop.session, threshold)


async def test_a_loop_is_marked_at_the_call_that_completes_it_and_counted_to_its_end() -> None:
    talk = Talk()
    await talk.take(cmd="pwd")
    for _ in range(5):
        await talk.take(cmd="ls")
    await talk.take(cmd="pwd")
    (loop,) = await talk.find()
    assert loop == Loop(4, 6, "bash", 5, has_same_output=True)
    assert (
        tell_loop(loop) == "bash was called 5 times in a row with the same arguments and the same output, up to call 6"
    )
    assert (await talk.find(5))[0].n == 6
    assert await talk.find(6) == []
    assert await talk.find(0) == []


async def test_words_of_the_user_in_between_make_it_none() -> None:
    talk = Talk()
    for _ in range(4):
        await talk.take(cmd="ls")
        talk.messages.append({"role": "user", "content": "Again, please."})
    assert await talk.find() == []


async def test_a_loop_is_found_on_a_branch_and_not_across_two() -> None:
    talk = Talk()
    await talk.take(cmd="pwd")
    before = list(talk.messages)
    await talk.take(cmd="ls")
    await talk.take(cmd="ls")
    talk.messages = [*before[:-1], {**before[-1], "content": "another output"}]
    await talk.take(cmd="ls")
    assert await talk.find() == []
    await talk.take(cmd="ls")
    await talk.take(cmd="ls")
    assert [(loop.n, loop.count) for loop in await talk.find()] == [(6, 3)]


async def test_the_timeline_has_its_mark_and_takes_up_what_came_since() -> None:
    talk = Talk()
    for _ in range(3):
        await talk.take(cmd="ls")
    prices = PriceList(lambda upstream, model: Card())
    now: Callable[[], int] = lambda: talk.shop.clock.now_ms() + 3_600_000  # noqa: E731
    reports = SessionReports(talk.shop.log, SavingsInputs(prices, BudgetPolicy(), now), 3)
    first = [mark for mark in (await reports.load_timeline(talk.shop.session)).marks if mark.kind == "loop"]
    assert [(mark.n, "3 times" in mark.text) for mark in first] == [(3, True)]
    await talk.take(cmd="ls")
    later = [mark for mark in (await reports.load_timeline(talk.shop.session)).marks if mark.kind == "loop"]
    assert [(mark.n, "4 times" in mark.text) for mark in later] == [(3, True)]
    without = SessionReports(talk.shop.log, SavingsInputs(prices, BudgetPolicy(), now))
    assert [mark for mark in (await without.load_timeline(talk.shop.session)).marks if mark.kind == "loop"] == []
