"""What holds in a session: which epoch, what is pinned, what is owed."""

import asyncio
import sys
from collections.abc import Sequence

import msgspec
import pytest

from proxy.context.conversation import LiveSummary, PlanInputs
from proxy.context.epoch_decision import CacheCostAccount
from proxy.engine.context import session_context as module
from proxy.engine.context.epoch_planner import DraftedPlan, RenderedPlan
from proxy.engine.context.session_context import SessionContext
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Compacted, ContextPlan, Epoch, Kept, Original, Pin, StoredContext, Summary
from tests.support.contexts import BUDGET, HISTORY, ask, make_epoch
from tests.support.managing import MODEL, SESSION, make_subject
from tests.support.summaries import make_summary


def make_context(*epochs: Epoch) -> SessionContext:
    context = SessionContext()
    for epoch in epochs:
        context.add(epoch)
    return context


def test_without_epochs_none_holds() -> None:
    assert make_context().find(MODEL, ask()) is None


def test_the_newest_epoch_on_the_path_holds() -> None:
    first, second, deep = make_epoch("a", 2), make_epoch("b", 4), make_epoch("c", 3)
    context = make_context(first, second, deep)
    assert context.find(MODEL, ask()) is deep
    assert context.find(MODEL, ask(2)) is None


def test_one_that_leaves_hardly_anything_does_not_hold() -> None:
    context = SessionContext()
    context.add(first := make_epoch("a", 2), 4)
    context.add(second := make_epoch("b", 6), 9)
    found = [context.find(MODEL, ask(count)) for count in (10, 9, 7, 5, 4)]
    assert found == [second, first, first, first, None]
    context.choose(MODEL, ask(7), "b")
    assert context.find(MODEL, ask(7)) is second
    assert context.drop_oldest()
    assert context.find(MODEL, ask(9)) is None


def test_an_epoch_of_another_branch_or_view_does_not_hold() -> None:
    context = make_context(make_epoch("a", 4), make_epoch("b", 4, view="other"))
    branch = make_subject([*HISTORY[:3], {"role": "user", "content": "No."}, *HISTORY[4:]])
    assert context.find(MODEL, branch) is None
    assert context.find("third", ask()) is None
    found = context.find("other", ask())
    assert found is not None
    assert found.id == "b"


def test_an_epoch_that_stands_for_nothing_holds_everywhere() -> None:
    """What a revert to the client's own history is."""
    revert = make_epoch("r", 0, why="revert", rendered=())
    assert make_context(make_epoch("a", 2), revert).find(MODEL, ask(2)) is revert


def test_what_holds_next_is_the_newest_whatever_a_history_was_sent_under() -> None:
    context = make_context(make_epoch("a", 2))
    context.choose(MODEL, ask(8), "a")
    context.choose(MODEL, ask(6), "")
    context.add(second := make_epoch("b", 3))
    assert context.find(MODEL, ask(8), is_next=True) is context.find(MODEL, ask(6), is_next=True) is second
    assert context.find(MODEL, ask(6)) is None


def test_what_the_log_calls_unsent_is_but_for_what_memory_knows_of() -> None:
    context = SessionContext()
    context.add(make_epoch("b"))
    context.choose(MODEL, make_subject([]), "b")
    context.absorb(StoredContext((make_epoch("a"), make_epoch("b")), unsent=("a", "b")))
    assert context.unsent == {"a"}


def test_an_epoch_is_unsent_until_something_goes_out_under_it() -> None:
    context = make_context(make_epoch("a", 2))
    context.unsent.add("a")
    context.choose(MODEL, ask(6), "")
    assert context.unsent == {"a"}
    context.choose(MODEL, ask(8), "a")
    assert context.unsent == set()


def test_the_same_history_is_sent_under_the_same_epoch() -> None:
    first = make_epoch("a", 2)
    context = make_context(first)
    context.choose(MODEL, ask(8), "a")
    context.add(second := make_epoch("b", 4))
    assert context.find(MODEL, ask(8)) is first
    assert context.find(MODEL, ask(10)) is second


def test_a_history_that_was_sent_as_it_is_stays_so() -> None:
    context = make_context()
    context.choose(MODEL, ask(8), "")
    context.add(epoch := make_epoch("a", 4))
    assert context.find(MODEL, ask(8)) is None
    assert context.find(MODEL, ask(10)) is epoch
    assert context.find("other", ask(8)) is None


def test_what_was_chosen_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CHOSEN", 2)
    context = make_context(make_epoch("a", 2), second := make_epoch("b", 2))
    for count in (5, 6, 5, 7):
        context.choose(MODEL, ask(count), "a")
    found = [context.find(MODEL, ask(count)) is second for count in (5, 6, 7)]
    assert found == [False, True, False]


def test_an_epoch_that_is_gone_is_no_choice() -> None:
    context = make_context(newest := make_epoch("b", 2))
    context.choose(MODEL, ask(), "a")
    assert context.find(MODEL, ask()) is newest


def test_pinned_messages_are_told_by_their_places() -> None:
    context, nodes = make_context(), ask().nodes
    assert context.list_pinned(nodes) == frozenset()
    for place, is_on in ((1, True), (3, True), (3, False), (5, True)):
        context.pin(Pin(SESSION.id, nodes[place], is_on, 1))
    assert context.list_pinned(nodes) == {1, 5}
    assert context.list_pinned(nodes[:4]) == {1}


def test_what_the_log_knows_goes_before_what_happened_since() -> None:
    nodes = ask().nodes
    context = make_context(make_epoch("b"), make_epoch("c"))
    context.pin(Pin(SESSION.id, nodes[1], False, 9))
    stored = StoredContext(
        (make_epoch("a"), make_epoch("b")), (Pin(SESSION.id, nodes[1], True, 1), Pin(SESSION.id, nodes[2], True, 1))
    )
    context.absorb(stored)
    assert [epoch.id for epoch in context.epochs] == ["a", "b", "c"]
    assert context.list_pinned(nodes) == {2}
    assert context.is_known
    assert context.weight == make_weighed(context)


def make_weighed(context: SessionContext) -> int:
    """What a context with the same epochs and pins weighs that was never anything else."""
    other = make_context(*context.epochs)
    for node in ask().nodes[1:3]:
        other.pin(Pin(SESSION.id, node, True, 1))
    return other.weight


def test_an_account_is_restored_from_the_epochs_of_its_path() -> None:
    context = SessionContext()
    chain = (
        make_epoch("a", tokens_after=43_000),
        make_epoch("other", view="other", tokens_after=7),
        make_epoch("b", parent="a", tokens_after=45_000),
    )
    context.absorb(StoredContext(chain, (), ((MODEL, 12.5), ("other", 3.0))))
    account = context.get_account(MODEL, "b", BUDGET).account
    assert (account.base, account.sent, account.owed, account.ineffective) == (45_000, 45_000, 12.5, 2)
    assert context.get_account(MODEL, "a", BUDGET).account.owed == 0.0
    assert context.get_account("other", "other", BUDGET).account.owed == 3.0
    assert context.get_account(MODEL, "b", BUDGET) is context.get_account(MODEL, "b", BUDGET)


def test_what_is_owed_belongs_to_the_newest_epoch_whoever_asks_first() -> None:
    context = SessionContext()
    context.absorb(StoredContext((make_epoch("a"),), (), ((MODEL, 12.5),)))
    assert context.get_account(MODEL, "", BUDGET).account.owed == 0.0
    assert context.get_account(MODEL, "a", BUDGET).account.owed == 12.5


def test_what_is_owed_is_added_to_what_was_owed_before_the_log_answered() -> None:
    context = SessionContext()
    standing = context.get_account(MODEL, "", BUDGET)
    standing.account = CacheCostAccount(owed=1.0, sent=70)
    context.absorb(StoredContext((), (), ((MODEL, 12.5),)))
    assert context.get_account(MODEL, "", BUDGET) is standing
    assert (standing.account.owed, standing.account.sent) == (13.5, 70)


def test_an_epoch_opened_before_the_log_answered_owes_nothing_of_the_one_before_it() -> None:
    context = make_context(make_epoch("b"))
    context.absorb(StoredContext((make_epoch("a"),), (), ((MODEL, 12.5),)))
    assert context.get_account(MODEL, "b", BUDGET).account.owed == 0.0


def test_epochs_that_follow_each_other_in_a_circle_are_traced_once() -> None:
    context = make_context(make_epoch("a", parent="b"), make_epoch("b", parent="a"), make_epoch("c", parent="lost"))
    assert context.get_account(MODEL, "b", BUDGET).account.base == 2000
    assert context.get_account(MODEL, "c", BUDGET).account.base == 2000
    assert context.get_epoch("lost") is None


def test_of_models_without_end_those_used_last_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ACCOUNTS", 3)
    context = SessionContext()
    for view in ("a", "b", "c", "a", "d"):
        context.protected[view] = 1
        context.reported.add(view)
        context.unshortened[view] = (1, b"")
        context.get_account(view, "", BUDGET).before = ()
    assert set(context.protected) == context.reported == set(context.unshortened) == {"a", "c", "d"}
    assert context.get_account("a", "", BUDGET).before == ()
    assert context.get_account("b", "", BUDGET).before is None


def test_a_view_that_still_stands_keeps_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ACCOUNTS", 1)
    context = make_context(make_epoch("a"))
    context.protected[MODEL] = 7
    context.get_account(MODEL, "", BUDGET)
    context.get_account(MODEL, "a", BUDGET)
    assert context.protected == {MODEL: 7}


def draft(through: int, content: bytes = b"{}") -> RenderedPlan:
    return RenderedPlan(ContextPlan(through, (), (), 10), (content,))


def note_draft(
    context: SessionContext,
    subject: ManagedRequest,
    outcome: RenderedPlan | Exception | None,
    epoch: Epoch | None = None,
) -> "asyncio.Future[RenderedPlan]":
    drafting: asyncio.Future[RenderedPlan] = asyncio.get_running_loop().create_future()
    drafted = DraftedPlan(subject.model, subject.nodes, epoch, PlanInputs(BUDGET), drafting, 5)
    context.note_drafted(drafted)
    if isinstance(outcome, RenderedPlan):
        drafting.set_result(outcome)
    elif outcome is not None:
        drafting.set_exception(outcome)
    return drafting


def is_due(
    context: SessionContext,
    subject: ManagedRequest,
    epoch: Epoch | None = None,
    inputs: PlanInputs = PlanInputs(BUDGET),  # noqa: B008 - a value that nothing changes
) -> bool:
    return context.is_draft_due(subject, epoch, inputs)


async def test_a_plan_that_a_request_waited_for_in_vain_is_there_for_the_next_one() -> None:
    context = SessionContext()
    assert (context.find_drafted(ask(), None), context.drafting) == (None, None)
    drafting = note_draft(context, ask(8), None)
    assert (context.find_drafted(ask(), None), context.drafting) == (None, drafting)
    drafting.set_result(made := draft(5))
    assert context.drafting is None
    found = context.find_drafted(ask(), None)
    assert found is not None
    assert found.drafting.result() is made


async def test_a_plan_serves_requests_under_its_epoch_that_go_on_from_its_own() -> None:
    context, epoch = SessionContext(), make_epoch("a")
    note_draft(context, ask(8), draft(5), epoch)
    apart = make_subject([{"role": "user", "content": "A title, please."}])
    for other in (apart, make_subject(HISTORY[:1]), msgspec.structs.replace(ask(), model="other"), ask(5)):
        assert context.find_drafted(other, epoch) is None
    assert context.find_drafted(ask(6), None) is None
    assert context.find_drafted(ask(6), epoch) is not None


async def test_a_plan_that_failed_serves_no_request() -> None:
    context = SessionContext()
    note_draft(context, ask(8), ValueError("no plan"))
    assert context.find_drafted(ask(8), None) is None


async def test_a_plan_is_due_behind_a_longer_request_and_the_one_before_is_no_longer_made() -> None:
    context = SessionContext()
    assert is_due(context, ask(8))
    first = note_draft(context, ask(8), None)
    assert is_due(context, ask(9))
    assert not is_due(context, ask(8))
    second = note_draft(context, ask(9), draft(5))
    assert (first.cancelled(), second.cancelled()) == (True, False)


async def test_a_plan_lasts_until_a_share_of_its_messages_is_new() -> None:
    """So all plans of a conversation take time linear in it, and one that takes longer than a call comes to its end."""
    context, known = SessionContext(), 640
    said = [{"role": "user", "content": f"word {n}"} for n in range(known + 60)]
    own = make_subject(said[:known])
    drafting = note_draft(context, own, None)
    due = [n for n in range(60) if is_due(context, make_subject(said[: known + n]))]
    assert due == [*range(3, 60)]
    drafting.set_result(draft(5))
    assert [n for n in range(60) if is_due(context, make_subject(said[: known + n]))] == due
    assert is_due(context, own, make_epoch("a"))
    assert is_due(context, own, inputs=PlanInputs(BUDGET, pinned=frozenset([3])))
    assert is_due(context, make_subject([*said[: known - 1], {"role": "user", "content": "another branch"}]))
    note_draft(context, own, draft(0))  # which replaces nothing
    assert [n for n in range(60) if is_due(context, make_subject(said[: known + n]))] == [*range(33, 60)]
    note_draft(context, own, ValueError("no plan"))
    assert [n for n in range(3) if is_due(context, make_subject(said[: known + n]))] == [1, 2]


async def test_while_a_call_opens_an_epoch_no_plan_of_another_replaces_the_one_that_it_waits_for() -> None:
    context = SessionContext()
    async with context.opening:
        assert not is_due(context, ask(9))
    assert is_due(context, ask(9))


async def test_a_plan_does_not_hold_the_request_that_it_was_made_for() -> None:
    context, request = SessionContext(), ask()
    holders = sys.getrefcount(request), sys.getrefcount(request.split)
    note_draft(context, request, draft(5))
    assert (sys.getrefcount(request), sys.getrefcount(request.split)) == holders


async def test_what_a_context_holds_is_weighed() -> None:
    context, weights = SessionContext(), [0]

    def note() -> None:
        weights.append(context.weight)
        assert weights[-1] > weights[-2]

    note()
    context.add(make_epoch("a"))
    note()
    assert weights[-1] - weights[-2] >= 1000
    context.choose(MODEL, ask(), "a")
    note()
    context.pin(Pin(SESSION.id, ask().chain.tip, True, 1))
    note()
    standing = context.get_account(MODEL, "a", BUDGET)
    note()
    standing.before = ask().nodes
    note()
    note_draft(context, ask(), draft(5))
    note()
    assert weights[-1] - weights[-2] < len(ask().split.content)
    note_draft(context, ask(), large := draft(5, b"x" * 9_000))
    note()
    assert weights[-1] - weights[-2] == large.weight - draft(5).weight > 9_000
    context.add(make_epoch("b", originals=(Original("r", (b"d" * 32,) * 5, "chat_completions", 0),)))
    note()
    assert weights[-1] - weights[-2] > 1300


async def test_one_epoch_opens_at_a_time() -> None:
    context, order = SessionContext(), list[str]()

    async def open_one(name: str) -> None:
        async with context.opening:
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(open_one("a"), open_one("b"))
    assert order == ["a", "a", "b", "b"]


def test_only_so_many_epochs_are_known_again_by_what_they_cover() -> None:
    context, items = SessionContext(), ask().chain.items
    epochs = [make_epoch(name, 4) for name in "abcdef"]
    for epoch in epochs:
        context.add(epoch)
        before = context.weight
        context.cover(epoch, items)
        context.cover(epoch, items)
    assert context.weight == before  # one more, and the oldest gone
    context.cover(make_epoch("z", 0), items)
    context.cover(make_epoch("y", 4, why="revert"), items)
    assert context.weight == before


def make_report(id: str, start: int, stop: int, nodes: Sequence[bytes], **changes: object) -> Summary:
    return msgspec.structs.replace(make_summary(id, start, stop), last=nodes[stop - 1], **changes)


def test_summaries_hold_where_all_their_messages_are() -> None:
    context, nodes = make_context(), ask().nodes
    branch = make_subject([*HISTORY[:3], {"role": "user", "content": "No."}, *HISTORY[4:]]).nodes
    shared, beyond = make_report("a", 0, 2, nodes), make_report("b", 2, 5, nodes)
    context.add_summary(shared)
    before = context.weight
    context.add_summary(beyond)
    assert context.weight > before
    assert context.list_summaries(nodes, MODEL) == [shared, beyond]
    assert context.list_summaries(branch, MODEL) == context.list_summaries(nodes[:4], MODEL) == [shared]
    assert (context.get_summary("b"), context.get_summary("c")) == (beyond, None)


def test_those_that_the_log_knows_come_first() -> None:
    context, nodes = make_context(), ask().nodes
    old, new = make_report("a", 0, 2, nodes), make_report("b", 0, 2, nodes)
    context.add_summary(new)
    context.absorb(StoredContext(summaries=(old,)))
    assert context.list_summaries(nodes, MODEL) == [new]


def test_what_was_made_of_messages_without_a_model_is_not_shown() -> None:
    context, nodes = make_context(), ask().nodes
    poor = make_report("a", 0, 2, nodes, level=3)
    merged = make_report("b", 2, 4, nodes, level=3, parents=("x", "y"), kind="condensed")
    short = make_report("c", 4, 5, nodes, level=2)
    for each in (poor, merged, short):
        context.add_summary(each)
    assert context.list_summaries(nodes, MODEL) == [poor, merged, short]
    assert context.list_reports(nodes, MODEL) == [LiveSummary("b", "b", 2, 4, 100), LiveSummary("c", "c", 4, 5, 100)]


def test_a_providers_own_compaction_is_for_the_model_that_made_it() -> None:
    context, nodes = make_context(), ask().nodes
    ours = make_report("a", 0, 2, nodes)
    theirs = make_report("p", 0, 4, nodes, model=MODEL, block="{}")
    for each in (ours, theirs):
        context.add_summary(each)
    assert (context.list_summaries(nodes, MODEL), context.list_summaries(nodes, "other")) == ([theirs], [ours])
    assert context.list_reports(nodes, MODEL) == [LiveSummary("p", "p", 0, 4, 100, "{}")]


def test_no_view_has_one_after_an_epoch_that_went_on_without() -> None:
    edits = msgspec.json.encode((Compacted("told", 0, 4, "p", "{}", 9), Kept(0)))
    with_it = msgspec.structs.replace(make_epoch("x"), edits=edits)
    without = msgspec.structs.replace(make_epoch("y"), why="uncompacted", parent="x")
    assert (with_it.is_compacted, without.is_compacted) == (True, False)
    context, nodes = make_context(), ask().nodes
    for id, model in (("p", MODEL), ("q", "other")):
        context.add_summary(make_report(id, 0, 4, nodes, model=model, block="{}"))
    context.absorb(StoredContext(epochs=(with_it, without)))
    assert context.given_up == {MODEL}
    context.absorb(StoredContext(given_up=("third",)))
    assert context.given_up == {MODEL, "third"}
    assert [[each.id for each in context.list_summaries(nodes, view)] for view in (MODEL, "other")] == [[], ["q"]]
