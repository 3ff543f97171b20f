"""A request with all that is known of it: what is sent, and what of that was sent before."""

from typing import Any

import msgspec
import pytest

from proxy.context.budget import Budget, TokenRatio
from proxy.context.epoch_decision import CacheCostAccount
from proxy.context.pricing import make_tariff
from proxy.context.provider_cache import CacheModel
from proxy.engine.context.history_counter import HistoryCounter, estimate_protected, find_kept
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.session_context import SessionContext
from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter
from proxy.model.card import UNPRICED
from proxy.model.epoch import Epoch
from tests.support.contexts import BUDGET, HISTORY, ask, make_epoch
from tests.support.managing import MODEL, Message, QuarterTokens, make_history, make_subject

FROZEN = 50
DEPTH = 4


async def follow(subject: ManagedRequest) -> MeasuredHistory:
    return await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)


async def make_case(epoch: Epoch | None = None, context: SessionContext | None = None, **fields: Any) -> RequestState:
    subject, context = ask(), context or SessionContext()
    case = RequestState(
        request=subject,
        context=context,
        epoch=epoch,
        epoch_account=context.get_account(MODEL, epoch.id if epoch is not None else "", BUDGET),
        epoch_tokens=FROZEN if epoch is not None else 0,
        history=await follow(subject),
        changed={},
        kept=None,
        budget=BUDGET,
        tariff=make_tariff(UNPRICED, CacheModel()),
        ratio=TokenRatio(1.5),
        protected=70,
        now=130.0,
    )
    return msgspec.structs.replace(case, **fields)


async def test_without_an_epoch_the_clients_own_request_is_sent() -> None:
    case = await make_case()
    assert case.tokens == case.client_tokens == case.history.tokens


async def test_an_epoch_stands_for_the_first_messages() -> None:
    case = await make_case(make_epoch("a", DEPTH))
    assert case.tokens == case.client_tokens - case.history.count(0, DEPTH) + FROZEN


async def make_bound_case(epoch: Epoch | None = None, **fields: Any) -> RequestState:
    """One whose assistant has 400 characters of bound reasoning in each message."""
    case = await make_case(epoch, **fields)
    structures = [
        msgspec.structs.replace(each, signed=400 if each.role == "assistant" else 0) for each in case.history.structures
    ]
    signed = tuple(place for place, each in enumerate(structures) if each.signed)
    request = msgspec.structs.replace(case.request, model="claude-fable-5-2")
    history = msgspec.structs.replace(case.history, structures=structures, signed=signed)
    return msgspec.structs.replace(case, request=request, history=history)


def make_low_budget(tokens: int) -> Budget:
    """A budget of which an epoch leaves so many tokens."""
    return Budget(None, 0, 2 * tokens, tokens, 0.5)


async def test_reasoning_that_is_not_sent_does_not_count() -> None:
    case = await make_bound_case(make_epoch("a", DEPTH), changed={5: b"", 7: b""})
    assert case.tokens == case.client_tokens - case.history.count(0, DEPTH) + FROZEN - 200
    assert case.list_bound() == [9, 11]
    other = msgspec.structs.replace(case, request=msgspec.structs.replace(case.request, model=MODEL))
    assert other.list_bound() == []


async def test_what_stays_behind_an_epoch_loses_its_reasoning_which_has_the_price_of_output() -> None:
    case = await make_bound_case()
    count, output = len(case.history.sums), case.tariff.prices.rates.output
    assert case.list_bound() == [1, 3, 5, 7, 9, 11]
    tail = case.history.count(9, count)  # so many tokens stay at most
    small = msgspec.structs.replace(case, budget=make_low_budget(tail), protected=0)
    assert small.facts.lost == 200 * output
    assert msgspec.structs.replace(small, changed={9: b""}).facts.lost == 100 * output
    assert msgspec.structs.replace(small, budget=make_low_budget(10**6)).facts.lost == 600 * output
    assert (await make_case()).facts.lost == 0.0


async def test_within_a_turn_is_where_the_last_message_is_no_persons() -> None:
    case = await make_bound_case()
    assert case.facts.is_in_loop
    assert not msgspec.structs.replace(case, changed=dict.fromkeys(case.list_bound(), b"")).facts.is_in_loop
    *others, last = case.history.structures
    asked = msgspec.structs.replace(case.history, structures=[*others, msgspec.structs.replace(last, role="user")])
    assert not msgspec.structs.replace(case, history=asked).facts.is_in_loop
    assert not (await make_case()).facts.is_in_loop


async def test_each_epoch_has_its_own_account() -> None:
    case = await make_case(epoch := make_epoch("a", DEPTH))
    case.find_account(None).account = CacheCostAccount(sent=1)
    case.find_account(epoch).account = CacheCostAccount(sent=2)
    assert (case.account.sent, (await make_case(context=case.context)).account.sent) == (2, 1)
    assert (case.view, case.to_model_tokens(100)) == (MODEL, 150)


async def test_the_facts_are_those_of_the_case() -> None:
    case = await make_case(make_epoch("a", DEPTH), kept=7)
    case.find_account(case.epoch).account = CacheCostAccount(sent_at=100.0)
    facts = case.facts
    assert (facts.tokens, facts.budget, facts.tariff, facts.protected) == (case.tokens, BUDGET, case.tariff, 70)
    assert (facts.kept, facts.stable, facts.idle, facts.is_side) == (7, case.history.head.tokens, 30.0, False)
    side = msgspec.structs.replace(case, request=make_subject(HISTORY, is_side=True))
    assert side.facts.is_side


@pytest.mark.parametrize(("had", "has"), [(b"", b"{}"), (b"{}", b""), (b"{}", b"{}"), (b"", b"")])
async def test_an_epoch_that_changes_the_tools_is_priced_as_one_that_changes_all(had: bytes, has: bytes) -> None:
    case = await make_case(msgspec.structs.replace(make_epoch("a", DEPTH), tool=had))
    assert msgspec.structs.replace(case, tool=has).facts.stable == (case.history.head.tokens if had == has else 0)


async def test_who_knows_of_no_request_before_takes_it_as_gone_on_from() -> None:
    assert find_kept(await follow(ask()), None, FROZEN, DEPTH) is None


@pytest.mark.parametrize("count", [5, 9, len(HISTORY)])
async def test_a_request_that_has_all_of_the_last_one_goes_on_from_it(count: int) -> None:
    path = await follow(ask())
    assert find_kept(path, ask(count).nodes, FROZEN, DEPTH) is None


async def test_a_request_that_parts_from_the_last_one_keeps_what_they_share() -> None:
    path, before = await follow(ask(9)), ask(len(HISTORY)).nodes
    assert find_kept(path, before, 0, 0) == path.tokens
    assert find_kept(path, before, FROZEN, DEPTH) == path.tokens - path.count(0, DEPTH) + FROZEN
    branch = await follow(make_subject([*HISTORY[:7], {"role": "user", "content": "No, the other one, please."}]))
    assert find_kept(branch, before, FROZEN, DEPTH) == branch.head.tokens + FROZEN + branch.count(DEPTH, 6)


async def test_what_an_epoch_stands_for_is_kept_though_nothing_behind_it_is() -> None:
    parted = await follow(make_subject([*HISTORY[: DEPTH + 1], {"role": "user", "content": "No, the other one."}]))
    assert find_kept(parted, ask().nodes, FROZEN, DEPTH) == parted.head.tokens + FROZEN


async def test_of_another_conversation_only_the_head_is_kept() -> None:
    other = await follow(make_subject([HISTORY[0], {"role": "user", "content": "Something else."}]))
    assert find_kept(other, ask().nodes, 0, 0) == other.head.tokens


async def test_what_must_stay_is_about_the_newest_groups_and_users() -> None:
    history = make_history(6, size=400)
    path = await follow(make_subject(history))
    count = len(path.nodes)
    # three calls and their results, and the task, the only words of the user
    expected = path.head.tokens + path.count(count - 6, count) + path.count(0, 1)
    assert estimate_protected(path) == expected
    talk: list[Message] = [{"role": "user", "content": "word " * size} for size in (10, 20, 30, 40)]
    path = await follow(make_subject(talk))
    assert estimate_protected(path) == path.head.tokens + path.count(0, 4)  # one turn, which no model has answered


async def test_what_must_stay_has_whole_turns_of_the_user_before_the_newest_groups() -> None:
    """As the builder has them: what the user says in a row is one turn."""
    users: list[Message] = [{"role": "user", "content": "word " * size} for size in (10, 20, 30, 40)]
    said: Message = {"role": "assistant", "content": "So it is."}
    path = await follow(make_subject([users[0], said, users[1], said, *users[2:], *make_history(4)[2:]]))
    count = len(path.nodes)
    expected = path.head.tokens + path.count(count - 6, count) + path.count(2, 3) + path.count(4, 6)
    assert estimate_protected(path) == expected


async def test_what_must_stay_counts_groups_not_messages_with_calls() -> None:
    """Calls of one response may be messages of their own; with their results they are one group (BEHAVIOUR B14)."""
    calls = make_history(6, size=400)[2:]
    beside = [*calls[0:8:2], *calls[1:8:2]]  # four calls in a row, then their results
    path = await follow(make_subject([{"role": "user", "content": "word " * 40}, *beside, *calls[8:]]))
    assert estimate_protected(path) == path.tokens
    assert estimate_protected(path, frozenset({0})) == path.tokens


async def test_where_there_are_fewer_groups_the_rest_may_go() -> None:
    said: Message = {"role": "assistant", "content": "word " * 50}
    asked: Message = {"role": "user", "content": "And then?"}
    path = await follow(make_subject([*[asked, said] * 4, asked, *make_history(1)[2:]]))
    count = len(path.nodes)
    expected = path.head.tokens + path.count(6, 7) + path.count(count - 3, count)
    assert estimate_protected(path) == expected
    assert estimate_protected(path, frozenset({1})) == expected + path.count(1, 2)
