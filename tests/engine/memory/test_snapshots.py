"""The strategy snapshot from call to call: when memory is made, by whom, and what is sent then."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.epoch_admin import EpochAdmin
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.memory.memory import DIGEST_TAG
from proxy.engine.memory.path import load_path
from proxy.engine.memory.snapshots import count_covered
from proxy.engine.policy import Provider
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Headers
from proxy.model.memory import Remembered, StoredMemory
from tests.support.compacting import CHAT, FREE, WIRES, Workshop, fail, read_request
from tests.support.managing import MODEL, Message, make_history
from tests.support.remembering import make_turn, report_with_facts

SNAPSHOT: Headers = ((b"x-palimpsest-strategy", b"snapshot"),)
SYSTEM: Message = {"role": "system", "content": "You are an agent."}
HEAD = "[palimpsest ledger 7c1e5b: earlier turns, told from memory by a proxy"


def open_shop(summarise: Any = report_with_facts, *, policy: CompactionPolicy = FREE, **given: Any) -> Workshop:
    """An engine with memory. Its ceiling is 8,000 tokens, so that memory is made above 6,208."""
    return Workshop(summarise, policy=policy, **given)


class Client:
    """An agent that sends its whole history with each call."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.history: list[Message] = [SYSTEM]
        self.sent: list[list[Message]] = []

    async def ask(self, headers: Headers = (), **members: Any) -> list[Message]:
        self.sent.append(await self.shop.ask(self.history, (*SNAPSHOT, *headers), **members))
        return self.sent[-1]

    async def take_turns(self, first: int, last: int, *, steps: int = 2, size: int = 1500) -> None:
        """A call for each step of some turns, and then the answer to each turn."""
        for n in range(first, last):
            turn = make_turn(n, f"Do task {n}.", steps, size)
            for start, stop in pairwise([0, *range(1, len(turn), 2)]):
                self.history += turn[start:stop]
                await self.ask()
            self.history.append(turn[-1])

    def list_begun(self) -> list[list[Message]]:
        """What was sent where it does not go on with what was sent before."""
        return [after for before, after in pairwise(self.sent) if after[: len(before)] != before]


def list_users(messages: Sequence[Message]) -> list[str]:
    return [each["content"] for each in messages if each["role"] == "user" and each["content"].startswith("Do ")]


def read_memory(sent: Sequence[Message]) -> str:
    (ours,) = [each["content"] for each in sent if str(each["content"]).startswith(HEAD)]
    return str(ours)


async def load(shop: Workshop) -> StoredMemory:
    return cast(StoredMemory, await shop.log.load_memory(shop.session))


async def check_covered(shop: Workshop) -> None:
    """Nothing has left that memory was not made of."""
    path = await load_path(shop.log, shop.session)
    covered = count_covered(await load(shop), path.nodes)
    starts = {turn.start for turn in path.turns}
    for epoch in shop.epochs:
        ours = json.loads(epoch.edits)[0]
        assert ours[0] == "Written"
        assert ours[3] <= covered
        assert ours[3] in starts


async def test_a_context_grows_until_its_prompt_fills_the_budget_and_begins_anew_from_memory() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 20)
    begun = client.list_begun()
    assert len(begun) == len(shop.epochs) >= 3
    assert {(each.why, each.view) for each in shop.epochs} == {("memory", "gpt-4o (snapshot)")}
    for system, ours, *rest in begun:
        start = client.history.index(rest[0])
        assert (system, ours["role"], rest) == (SYSTEM, "user", client.history[start : start + len(rest)])
        assert "\n\n[MEMORY:EPISODIC]\n1) (turn" in ours["content"]
        assert "\n[MEMORY:SEMANTIC]\n- (" in ours["content"]
        assert len(list_users(rest)) >= 2
    assert all(len(json.dumps(sent)) // 4 < 8_000 for sent in client.sent)
    await check_covered(shop)


async def test_models_report_on_whole_turns_behind_answers() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 24)
    entries = [entry for _, entry in (await load(shop)).entries]
    users = [place for place, each in enumerate(client.history[1:]) if each["role"] == "user"]
    assert len(entries) == len(shop.model.asked) >= 2
    assert all(entry.start in users and entry.stop in users for entry in entries)
    assert all(DIGEST_TAG not in entry.tags for entry in entries)
    assert "The parser stays recursive descent" in read_memory(client.sent[-1])


@pytest.mark.parametrize(("count", "is_due"), [(9_000, True), (6_208, False), (10, False)])
async def test_the_count_of_the_provider_decides(count: int, is_due: bool) -> None:
    """By our own count there are 6,900 tokens or, where the provider counts more, 2,900."""
    shop = open_shop()
    client = Client(shop)
    shop.model.count = lambda body: 10
    await client.take_turns(1, 6, size=2_600 if count != 9_000 else 1_000)
    shop.model.count = lambda body: count
    for text in ("Do task 6.", "Do task 7."):
        assert not shop.epochs
        client.history.append({"role": "user", "content": text})
        await client.ask()
        client.history.append({"role": "assistant", "content": "Done."})
    assert [each.why for each in shop.epochs] == ["memory"] * is_due
    await check_covered(shop)


async def test_our_own_count_decides_where_the_provider_gives_none() -> None:
    shop = open_shop()
    shop.model.count = lambda body: None
    client = Client(shop)
    await client.take_turns(1, 24)
    assert len(shop.epochs) >= 2 and {each.why for each in shop.epochs} == {"memory"}
    assert all(6_208 < each.tokens_before < 7_760 for each in shop.epochs)
    assert any(DIGEST_TAG not in entry.tags for _, entry in (await load(shop)).entries)
    await check_covered(shop)


@pytest.mark.parametrize("summarise", [fail, lambda body: None, lambda body: b"{}"])
async def test_without_a_report_in_time_turns_leave_with_a_digest(summarise: Any) -> None:
    shop = open_shop(summarise, policy=CompactionPolicy(spend_fraction=100.0, hard_wait_seconds=0.01))
    client = Client(shop)
    calls = shop.call

    async def ask(messages: Any, headers: Any = (), **members: Any) -> Any:
        await calls(messages, headers, **members)
        return json.loads(shop.model.sent[-1])["messages"]

    shop.ask = ask  # type: ignore[method-assign]
    await client.take_turns(1, 24)
    assert shop.model.asked and len(shop.epochs) >= 2
    assert all(DIGEST_TAG in entry.tags for _, entry in (await load(shop)).entries)
    assert "Do task 1." in read_memory(client.list_begun()[0])
    for job in list(shop.jobs.list_at("main")):
        job.task.cancel()
    await shop.settle()
    await check_covered(shop)


async def test_the_next_request_waits_for_a_report() -> None:
    """Nothing is given time beside the calls but the waiting itself."""
    shop = open_shop()
    client = Client(shop)
    call = shop.call

    async def ask(messages: Any, headers: Any = (), **members: Any) -> Any:
        await call(messages, headers, **members)
        return json.loads(shop.model.sent[-1])["messages"]

    shop.ask = ask  # type: ignore[method-assign]
    await client.take_turns(1, 24)
    assert len(shop.epochs) >= 2
    first = (await load(shop)).entries[0][1]
    assert DIGEST_TAG not in first.tags
    assert first.summary.splitlines()[1].strip() in read_memory(client.list_begun()[0])
    await shop.settle()


async def test_what_is_learned_of_a_models_tokens_holds_for_all_its_views() -> None:
    shop = open_shop()
    shop.model.count = lambda body: len(body)
    await Client(shop).take_turns(1, 6)
    assert shop.controller.states.models.counter.find_ratio("main", MODEL).value > 2


async def test_no_model_is_asked_where_that_is_not_wanted_and_memory_is_made_without() -> None:
    shop = open_shop(policy=CompactionPolicy(auto=False, spend_fraction=100.0))
    client = Client(shop)
    await client.take_turns(1, 14)
    assert not shop.model.asked and shop.epochs
    assert all(DIGEST_TAG in entry.tags for _, entry in (await load(shop)).entries)
    await check_covered(shop)


async def test_a_local_server_is_not_asked_beside_its_calls() -> None:
    shop = open_shop(provider=Provider(host="127.0.0.1", cache="local"))
    await Client(shop).take_turns(1, 14)
    assert not shop.model.asked and shop.epochs
    await check_covered(shop)


async def test_the_same_history_is_sent_as_before_and_after_a_restart() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 9)
    client.history.append({"role": "user", "content": "Do task 9."})
    sent, opened = await client.ask(), len(shop.epochs)
    assert await client.ask() == sent
    again = open_shop(after=shop)
    client.shop = again
    assert await client.ask() == sent
    assert len(again.epochs) == opened
    client.history.append({"role": "assistant", "content": "Done."})
    await client.take_turns(10, 20)
    assert len(again.epochs) > opened
    await check_covered(again)


async def test_what_the_provider_counted_before_a_restart_is_estimated() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 6, size=3_100)
    again = open_shop(after=shop)
    client.shop = again
    client.history.append({"role": "user", "content": "Do task 6."})
    await client.ask()
    assert again.epochs


async def test_a_revert_holds_until_the_high_mark() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 6)
    while not shop.epochs:
        await client.take_turns(6, 7, steps=1)
    gate = DurabilityWaiter(shop.log, 5_000)
    admin = EpochAdmin(shop.controller.states, shop.log, gate, shop.bus, shop.ids)
    await admin.revert(shop.session, 1)
    opened = len(shop.epochs)
    client.history.append({"role": "user", "content": "Do task 9."})
    assert await client.ask() == client.history
    assert len(shop.epochs) == opened
    client.history.append({"role": "assistant", "content": "Done."})
    await client.take_turns(10, 14, size=3_000)
    assert [each.why for each in shop.epochs][opened:][0] == "hard"


@pytest.mark.parametrize("wire", WIRES)
async def test_all_wires(wire: str) -> None:
    shop = open_shop(wire=wire)
    client = Client(shop)
    await client.take_turns(1, 24)
    assert len(shop.epochs) >= 2
    assert {each.why for each in shop.epochs} == {"memory"}
    assert "[MEMORY:EPISODIC]" in read_memory(client.sent[-1])
    await check_covered(shop)


@pytest.mark.parametrize("provider", [Provider(strict_alternation=True), Provider(summary_role="assistant")])
async def test_roles_alternate_or_are_as_the_settings_say(provider: Provider) -> None:
    shop = open_shop(provider=provider)
    client = Client(shop)
    await client.take_turns(1, 12)
    assert shop.epochs
    for sent in client.list_begun():
        roles = [each["role"] for each in sent[1:]]
        assert roles[0] == "user"
        assert ("user", "user") not in pairwise(roles) or not provider.strict_alternation
        place = next(i for i, each in enumerate(sent) if HEAD in json.dumps(each["content"]))
        assert sent[place]["role"] == ("user" if provider.strict_alternation else "assistant")
        assert place + 1 < len(sent)


async def test_memory_in_the_role_of_the_assistant_stands_between_the_two_prompts_that_stay() -> None:
    shop = open_shop(provider=Provider(summary_role="assistant"))
    client = Client(shop)
    await client.take_turns(1, 5, size=6_000)
    begun = client.list_begun()
    assert [each["role"] for each in begun[0]] == ["system", "user", "assistant", "user"]
    assert HEAD in begun[0][2]["content"]
    for sent in begun:
        assert sent[-1]["role"] != "assistant"
        assert sent[1]["role"] == "user"


async def test_pinned_messages_stay() -> None:
    shop = open_shop()
    client = Client(shop)
    client.history.append({"role": "user", "content": "Never forget the number 4711."})
    await client.ask(((b"x-palimpsest-pin", b"true"),))
    client.history.append({"role": "assistant", "content": "I will not."})
    await client.take_turns(2, 24)
    assert len(shop.epochs) >= 2
    assert all(client.history[1] in sent for sent in client.sent)


async def test_one_turn_that_is_the_session_is_cut_in_itself() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 2, steps=40)
    assert len(shop.epochs) >= 2
    assert not (await load(shop)).entries
    assert all(len(json.dumps(sent)) // 4 < 8_000 for sent in client.sent)


async def test_turns_stay_in_view_while_the_log_takes_no_memory() -> None:
    shop = open_shop(fail)

    async def refuse(*given: object) -> None:
        raise StoreUnavailable("full")

    shop.worker.keep_for_memory = refuse  # type: ignore[method-assign,assignment]
    shop.worker.remember = refuse
    client = Client(shop)
    await client.take_turns(1, 12)
    assert shop.epochs and not (await load(shop)).entries
    assert all(HEAD not in json.dumps(sent) for sent in client.sent)
    assert all(f"Do task {n}." in json.dumps(client.sent[-1]) for n in range(1, 12)), "the ledger tells all of it"


async def test_memory_that_cannot_be_read_replaces_nothing() -> None:
    shop = open_shop()

    async def refuse(session: str) -> StoredMemory:
        raise StoreUnavailable("locked")

    shop.log.load_memory = refuse
    client = Client(shop)
    await client.take_turns(1, 12)
    assert shop.epochs
    assert all(HEAD not in json.dumps(sent) for sent in client.sent)


def test_memory_covers_a_path_up_to_the_first_gap() -> None:
    nodes = [bytes([place]) for place in range(9)]

    def remember(start: int, stop: int, last: int) -> tuple[int, Remembered]:
        return start, Remembered("s", start, stop, bytes([last]), 1, 1, 1, 1, "a", 1)

    entries = (remember(5, 9, 8), remember(0, 3, 2), remember(2, 4, 3), remember(4, 6, 0))
    assert count_covered(StoredMemory(entries), nodes) == 4


async def test_other_strategies_are_shown_no_memory() -> None:
    shop = open_shop()
    history = make_history(40, 1_200)
    for stop in range(4, len(history) + 1, 2):
        await shop.ask(history[:stop])
    assert shop.epochs and HEAD not in json.dumps(read_request(CHAT, shop.model.sent[-1]))


async def test_what_a_person_has_retracted_is_not_made_again() -> None:
    shop = open_shop()
    client = Client(shop)
    await client.take_turns(1, 14)
    (first, *_) = (await load(shop)).entries
    await shop.remembered.order(shop.session, "retract", f"ep_{first[1].number:04}")
    await client.take_turns(14, 24)
    spans = [(entry.start, entry.stop) for _, entry in (await load(shop)).entries]
    assert len(set(spans)) == len(spans)
    assert f"1) (turns {first[1].first_turn} to" not in read_memory(client.sent[-1])
    await check_covered(shop)
