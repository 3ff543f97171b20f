"""A draft is what the builder plans, spelled for the upstream, with all that its references stand for."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import LiveSummary, PlanInputs, PlanRequest
from proxy.engine.context.epoch_planner import compute_plan, list_originals, read_plan, reduce_epoch
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.context.rewriter import find_problem, list_splices
from proxy.engine.policy import Provider
from proxy.engine.token_counter import TokenCounter
from proxy.model.epoch import Compacted, ContextPlan, Edit, Epoch, Kept, Original, Reference, Replaced, Written
from proxy.model.manifest import compute_digest
from proxy.wire import FORMATS
from tests.support.contexts import make_epoch
from tests.support.managed import OwnBuilder
from tests.support.managing import Message, QuarterTokens, make_history, make_planner, make_subject

BUDGET = make_budget(1_000_000, None, None, BudgetPolicy(ceiling_tokens=8_000))
HISTORY = make_history(22, 1600)
CHAT: Sequence[Message] = [
    {"role": role, "content": f"{word} {n}. " + f"{word} " * 120}
    for n in range(60)
    for role, word in (("user", "why"), ("assistant", "therefore"))
][:-1]

MIXED: Sequence[Message] = [
    *HISTORY[:14],
    *CHAT[1:5],
    {"role": "assistant", "content": "so"},
    *CHAT[6:7],
    *HISTORY[14:34],
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "go on"},
    *HISTORY[34:],
]


class Drafted(NamedTuple):
    """A plan, what it renders to, and what its references stand for."""

    plan: ContextPlan
    rendered: tuple[bytes, ...]
    originals: tuple[Original, ...]


async def draft(
    builder: ContextBuilder | None = None,
    messages: Sequence[Message] = HISTORY,
    secret: bytes = b"secret",
    provider: Provider | None = None,
    **options: Any,
) -> "Drafted":
    subject = make_subject(messages, **options.pop("members", {}))
    path = await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)
    planner = make_planner(builder, {"main": provider} if provider else {}, secret)
    draft = planner.draft_minimal if options.pop("is_minimal", False) else planner.draft
    known, inputs = options.pop("known", {}), PlanInputs(BUDGET, options.pop("frozen", None))
    made = await draft(subject, path, inputs, **options)
    is_alternating = bool(provider and provider.strict_alternation)
    rules = FORMATS[subject.wire].read_rules(subject.split, subject.chain.preamble.count, is_alternating=is_alternating)
    splices = list_splices(subject.wire, made.plan.edits, made.rendered, path.structures, made.plan.through)
    assert find_problem(path, splices, rules) == ""
    return Drafted(made.plan, made.rendered, list_originals(made.plan, subject, known))


async def test_the_same_conversation_gives_the_same_bytes() -> None:
    first, second = await draft(), await draft()
    assert first == second
    assert first.plan.rung == "plan"
    assert len(first.rendered) == len(first.plan.edits)
    other = await draft(secret=b"another")
    assert {each.id for each in other.originals}.isdisjoint(each.id for each in first.originals)
    assert (await draft(is_minimal=True)).plan.rung == "minimal"


async def test_the_builder_sees_what_is_told_hangs_together_and_was_counted() -> None:
    views: list[PlanRequest] = []

    def look(view: PlanRequest, build: Any) -> ContextPlan:
        views.append(view)
        plan: ContextPlan = build(view)
        return plan

    await draft(OwnBuilder(look), HISTORY[:6])
    (view,) = views
    assert [seen.message.role for seen in view.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert view.messages[1].structure.calls == view.messages[2].structure.results
    assert view.messages[2].tokens > 400 > view.messages[0].tokens > 0
    assert (view.budget, view.frozen, view.head > 0) == (BUDGET, None, True)
    named = [view.name(0, 1, 0), view.name(0, 1, 5), view.name(1, 2, 0), view.name(0, 2, 0)]
    assert len(set(named)) == 4
    assert named[0] == view.name(0, 1, 0)


async def test_a_reference_stands_for_the_raw_messages() -> None:
    def refer(view: PlanRequest, build: Any) -> ContextPlan:
        reference = Reference("abc", 1, 3, 7)
        return ContextPlan(3, (Kept(0), Written("a ledger of abc", 1, 3)), (reference,), 10)

    made = await draft(OwnBuilder(refer))
    raws = make_subject(HISTORY).list_raws()
    digests = (compute_digest(raws[1]), compute_digest(raws[2]))
    assert made.originals == (Original("abc", digests, "chat_completions", 1, 7),)


async def test_a_reference_that_has_its_messages_keeps_them_as_they_were_spelt() -> None:
    first = await draft()
    respelt = [dict(reversed(list(message.items()))) for message in HISTORY]
    again = await draft(messages=respelt)
    assert [each.id for each in again.originals] == [each.id for each in first.originals]
    assert again.originals != first.originals
    known = {each.id: each for each in first.originals[1:]}
    assert (await draft(messages=respelt, known=known)).originals == (again.originals[0], *first.originals[1:])


async def test_the_plan_that_stands_is_read_again_for_the_next_one() -> None:
    views: list[PlanRequest] = []

    def look(view: PlanRequest, build: Any) -> ContextPlan:
        views.append(view)
        plan: ContextPlan = build(view)
        return plan

    first = await draft()
    stood = Epoch(
        *("x1", "s1", "gpt-4o", "", b"n", first.plan.through, "hard", "x1", 1, 9_000, 2_000),
        msgspec.json.encode(first.plan.edits),
        first.rendered,
        first.originals,
    )
    await draft(OwnBuilder(look), frozen=stood)
    assert views[0].frozen == read_plan(stood)
    assert read_plan(stood) == ContextPlan(first.plan.through, first.plan.edits, first.plan.references, 2_000)


async def test_whatever_goes_wrong_is_raised() -> None:
    def fail(*_: Any) -> ContextPlan:
        raise RuntimeError("the builder is out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        await draft(OwnBuilder(fail))


@pytest.mark.parametrize(
    ("place", "sent"), [({"base": 5}, 5), ({"base": 5, "relation": "branch"}, None), ({"base": 0}, None)]
)
async def test_what_was_sent_before_is_told_of_what_goes_on_from_it(place: Any, sent: int | None) -> None:
    views: list[PlanRequest] = []

    def look(view: PlanRequest, build: Any) -> ContextPlan:
        views.append(view)
        plan: ContextPlan = build(view)
        return plan

    await draft(OwnBuilder(look), members=place)
    assert [view.sent for view in views] == [sent]


JSON: dict[str, Any] = {"members": {"response_format": {"type": "json_object"}}}
SAID = [*HISTORY[:3], {**HISTORY[3], "content": HISTORY[3]["content"] + " as JSON"}, *HISTORY[4:]]


async def test_the_word_that_an_output_format_wants_is_said_by_the_ledger_where_it_would_go() -> None:
    plain, asked = await draft(messages=SAID), await draft(messages=SAID, **JSON)
    assert b"json" not in b"".join(plain.rendered).lower()
    changed = [(old, new) for old, new in zip(plain.rendered, asked.rendered, strict=True) if old != new]
    assert [new.replace(b"\\n[This conversation asks for its answers as JSON.]", b"") for _, new in changed] == [
        old for old, _ in changed
    ]
    assert len(changed) == 1


SAYING = {"role": "user", "content": "Go on, as JSON."}


@pytest.mark.parametrize("messages", [HISTORY, [*SAID, SAYING], [SAYING, *SAID[2:]]])
async def test_the_word_is_said_by_nobody_else_where_it_stays_or_never_was(messages: Sequence[Message]) -> None:
    assert (await draft(messages=messages, **JSON)).rendered == (await draft(messages=messages)).rendered


async def test_where_there_is_no_ledger_nobody_can_say_the_word() -> None:
    def bury(view: PlanRequest, build: Any) -> ContextPlan:
        return ContextPlan(3, (Kept(0), Kept(1), Replaced(2, "gone", "tombstone")), (), 10)

    with pytest.raises(AssertionError, match="json"):
        await draft(OwnBuilder(bury), SAID, **JSON)


KINDS = [
    (HISTORY, "user", False),
    (HISTORY, "user", True),
    (HISTORY, "assistant", False),
    (HISTORY, "assistant", True),
    (CHAT, "user", False),
    (CHAT, "user", True),
    (CHAT, "assistant", False),
    (CHAT, "assistant", True),
    (MIXED, "user", True),
    (MIXED, "assistant", True),
]


@pytest.mark.parametrize(("messages", "role", "is_strict"), KINDS)
async def test_plans_are_valid_for_every_kind_of_template(
    messages: Sequence[Message], role: Any, *, is_strict: bool
) -> None:
    provider = Provider(summary_role=role, strict_alternation=is_strict)
    made = await draft(messages=messages, provider=provider)
    assert 0 < made.plan.through <= len(messages)
    ours = next(json.loads(raw) for raw in made.rendered if b"palimpsest ledger" in raw)
    assert ours["role"] == ("user" if is_strict else role)
    sections = sum(isinstance(edit, Written) for edit in made.plan.edits)
    assert 1 <= sum(b"palimpsest ledger" in raw for raw in made.rendered) <= sections  # adjacent ones may be joined


_BLOCK = '{"role":"assistant","content":[{"type":"compaction","content":"c","signature":"s"}]}'
_COMPACTED = Compacted("told", 0, 2, "p", _BLOCK, 9)

LEADING: list[tuple[tuple[Edit, ...], tuple[Edit, ...]]] = [
    ((Written("w", 0, 2), Kept(0), Kept(1)), (Kept(0), Written("w", 0, 2), Kept(1))),
    (
        (Written("w", 0, 2), Replaced(0, "so", "shortened"), Kept(1)),
        (Replaced(0, "so", "shortened"), Written("w", 0, 2), Kept(1)),
    ),
    ((Kept(0), Written("w", 1, 3)), (Kept(0), Written("w", 1, 3))),
    (
        (Written("r", 0, 2, "r"), Written("w", 0, 2), Kept(0), Kept(1)),
        (Kept(0), Written("r", 0, 2, "r"), Written("w", 0, 2), Kept(1)),
    ),
]


@pytest.mark.parametrize(("planned", "sent"), LEADING)
async def test_a_ledger_of_the_assistants_stands_behind_the_users_first_words(
    planned: tuple[Edit, ...], sent: tuple[Edit, ...]
) -> None:
    def plan(view: PlanRequest, build: Any) -> ContextPlan:
        return ContextPlan(3, planned if planned[-1] != Kept(1) else (*planned, Kept(2)), (), 10)

    messages = [*HISTORY[:4], {"role": "user", "content": "Go on."}, *HISTORY[4:]]
    made = await draft(OwnBuilder(plan), messages, provider=Provider(summary_role="assistant"))
    assert made.plan.edits[: len(sent)] == sent
    assert (await draft(OwnBuilder(plan), messages)).plan.edits[: len(planned)] == planned


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_providers_own_compaction_is_only_for_an_upstream_that_takes_it(*, is_taken: bool) -> None:
    reports = (LiveSummary("a", "told of a", 0, 2, 9), LiveSummary("p", "told of p", 0, 3, 9, _BLOCK))
    planner = make_planner(providers={"main": Provider(has_compaction=is_taken)})
    subject = make_subject(HISTORY)
    history = await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)
    job = planner.make_job(subject, history, PlanInputs(BUDGET, reports=reports))
    assert job.inputs.reports == (reports if is_taken else reports[:1])
    assert planner.takes_compactions(subject) == is_taken


async def test_nothing_is_moved_before_it() -> None:
    edits = (_COMPACTED, Written("w", 0, 2), Kept(0))
    planner = make_planner(providers={"main": Provider(summary_role="assistant", has_compaction=True)})
    subject = make_subject(HISTORY)
    history = await HistoryCounter(TokenCounter(QuarterTokens())).follow(subject)
    job = planner.make_job(subject, history, PlanInputs(BUDGET))
    made = compute_plan(job, OwnBuilder(lambda view, build: ContextPlan(2, edits, (), 10)))
    assert (made.plan.edits, made.rendered[0]) == (edits, _BLOCK.encode())


def test_an_epoch_is_rendered_the_same_without_it() -> None:
    edits = (_COMPACTED, Kept(0), Written("w", 1, 2))
    epoch = msgspec.structs.replace(
        make_epoch("e", 2), edits=msgspec.json.encode(edits), rendered=(_BLOCK.encode(), b"{}", b"[]")
    )
    made = reduce_epoch(make_subject(HISTORY), epoch, "uncompacted", ())
    assert made is not None
    assert (made.plan.edits, made.rendered, made.plan.through) == (edits[1:], (b"{}", b"[]"), 2)
    bare = msgspec.structs.replace(epoch, edits=msgspec.json.encode(edits[1:]))
    assert reduce_epoch(make_subject(HISTORY), bare, "uncompacted", ()) is None
