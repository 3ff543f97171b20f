"""One report: who is asked, what becomes of each answer, and what there is when nobody gave one."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.context.compaction.spans import MessageRange
from proxy.context.pricing import Cost
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.job import SummaryJob
from proxy.engine.compaction.model_prompt import expect_input
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.policy import Provider
from proxy.engine.request_resolver import Route
from proxy.model.epoch import Summary
from proxy.model.errors import UpstreamUnreachable
from proxy.model.events import AuxiliaryEnded
from proxy.model.exchange import Opening, Usage
from tests.support.compacting import FREE, REPORT, Reply, Workshop, fail, give_report, in_time, record_usage, say
from tests.support.engine import FakeArchive, ScriptedUpstream
from tests.support.managing import SESSION, make_history, make_subject
from tests.support.summaries import make_summary

HISTORY = make_history(22, 1600)
SHORT = "GOAL:\n- Mend the tests.\nFILES:\n- src/module_1.py\nNEXT:\n- The rest is pending.\n"
_PLENTY = Usage(100_000_000, 0)
TOOL = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]


def answer(*replies: Reply) -> Callable[[bytes], Reply]:
    """One after the other."""
    left = iter(replies)
    return lambda body: next(left)


def free(**changes: Any) -> CompactionPolicy:
    return replace(FREE, **changes)


class Draft:
    """A report that is wanted in a workshop, in a session that has spent enough."""

    def __init__(self, *replies: Reply, policy: CompactionPolicy = FREE, **options: Any) -> None:
        summarise = answer(*replies) if replies else give_report
        self.shop = Workshop(summarise, policy, archive=FakeArchive(is_instant=True), **options)
        self.key: CallCredential | None = CallCredential(self.shop.model, b"/v1/chat/completions", ())
        self.is_poor = False
        self.renewals = -1

    async def renew(self) -> bool:
        """Whether it is still ours to make; for so many questions."""
        self.renewals -= 1
        return self.renewals != -1

    async def plan(self, **changes: Any) -> SummaryJob:
        request = await self.shop.read_state(HISTORY)
        index = await self.shop.worker.index_conversation(request)
        work = SummaryJob(request, index, MessageRange(0, 29, request.state.history.count(0, 29)), ("bbbbbbbbbb",))
        return msgspec.structs.replace(work, **changes)

    async def make(self, *, is_needed: bool = False, **changes: Any) -> Summary | None:
        work = await self.plan(**changes)
        if not self.is_poor:
            record_usage(self.shop.summarizer.health.budget, "s1", _PLENTY)
        summarizing = self.shop.summarizer.summarize(work, self.key, self.renew, is_needed=is_needed)
        made: Summary | None = await in_time(summarizing)
        return made

    async def get(self, **changes: Any) -> Summary:
        made = await self.make(**changes)
        assert made is not None
        return made

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.shop.model.asked]

    @property
    def ways(self) -> list[str]:
        """How each call was made."""
        return ["compact" if each["messages"][0]["content"].startswith("You write") else "warm" for each in self.asked]


async def test_a_good_answer_is_a_report_of_the_first_level() -> None:
    draft = Draft()
    made = await draft.get()
    subject = make_subject(HISTORY)
    assert (made.level, made.kind, made.is_provisional, made.reason) == (1, "leaf", False, "")
    assert (made.session, made.start, made.stop, made.last) == ("s1", 0, 29, subject.nodes[28])
    assert (made.model, made.exchange, made.wire) == ("gpt-4o", "x1", "chat_completions")
    assert made.files == ("bbbbbbbbbb",)
    assert len(made.digests) == 29
    assert made.tokens < made.covered
    assert f"ref:{made.id}" in made.text.split("\n")[0]
    assert "2023-11-14 22:13 UTC" in made.text
    assert draft.ways == ["warm"]
    (opening,) = draft.shop.log.of(Opening)
    assert (made.calls, opening.kind) == ((opening.exchange,), "auxiliary")


async def test_what_is_no_good_is_asked_for_in_the_short_form() -> None:
    draft = Draft(say("I am sorry, I cannot."), say(SHORT))
    made = await draft.get()
    assert (made.level, made.is_provisional) == (2, True)
    assert made.reason == "gpt-4o: level 1: a refusal"
    assert len(made.calls) == 2
    assert draft.ways == ["warm", "warm"]


async def test_the_short_form_can_be_switched_off() -> None:
    draft = Draft(say(""), policy=free(level2=False))
    assert (await draft.get()).level == 3
    assert len(draft.asked) == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (say(""), "level 1: empty"),
        (say("word " * 5000), "the response is longer than it may be"),
        (say("Nothing of the kind."), "no section that was asked for"),
        (say(None, refusal="I will not."), "I will not."),
        (fail(b""), "status 500: broken"),
        (UpstreamUnreachable("no way"), "gpt-4o: no way"),
    ],
)
async def test_where_no_model_gives_any_it_is_put_together_without(reply: Reply, reason: str) -> None:
    draft = Draft()
    draft.shop.model.summarise = lambda body: fail(body) if reason.startswith("status") else reply
    made = await draft.get()
    assert (made.level, made.is_provisional, made.model) == (3, True, "")
    assert reason in made.reason
    assert made.calls == tuple(opening.exchange for opening in draft.shop.log.of(Opening))
    assert "put together on" in made.text
    assert made.files == ("bbbbbbbbbb",)


async def test_a_call_of_a_tool_is_asked_for_in_another_way() -> None:
    draft = Draft(say(None, tool_calls=TOOL), say(REPORT))
    made = await draft.get()
    assert (made.level, made.reason) == (1, "gpt-4o: it called a tool")
    assert draft.ways == ["warm", "compact"]


async def test_what_is_too_long_as_it_was_sent_is_asked_in_a_transcript() -> None:
    error = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    refusal = fail(b"")
    refusal.status = 400
    refusal.pieces.clear()
    refusal.feed(json.dumps(error).encode(), ending="whole")
    draft = Draft(refusal, say(REPORT))
    assert (await draft.get()).level == 1
    assert draft.ways == ["warm", "compact"]


async def test_other_failures_are_not_tried_in_another_way() -> None:
    draft = Draft(fail(b""), fail(b""))
    await draft.get()
    assert draft.ways == ["warm", "warm"]


async def test_a_model_that_thinks_for_too_long_is_asked_once_more_with_more_room() -> None:
    draft = Draft(say("", finish="length"), say(REPORT))
    work = await draft.plan()
    body = work.request.body.replace(b'"messages"', b'"max_tokens": 70, "messages"', 1)
    request = msgspec.structs.replace(work.request, body=body)
    made = await draft.get(request=request)
    assert (made.level, len(made.calls)) == (1, 2)
    target = work.compute_target(1, 8192)
    limit = target + 40 * (target // 100) + 8192
    assert [each["max_tokens"] for each in draft.asked] == [limit, 2 * limit]


async def test_a_model_without_words_is_not_asked_for_fewer() -> None:
    draft = Draft(say("", finish="length"))
    made = await draft.get()
    assert (made.level, made.reason) == (3, "gpt-4o: reasoning took all its tokens")
    assert len(draft.asked) == 1


async def test_without_money_for_more_room_it_is_speechless_all_the_same() -> None:
    draft = Draft(say("", finish="length"))
    draft.shop.model.summarise = lambda body: _spend_all(draft)
    work = await draft.plan()
    body = work.request.body.replace(b'"messages"', b'"max_tokens": 70, "messages"', 1)
    made = await draft.get(request=msgspec.structs.replace(work.request, body=body))
    assert made.level == 3
    assert "reasoning took all its tokens" in made.reason
    assert "compaction.spend_fraction" in made.reason
    breakers = draft.shop.summarizer.health.breakers
    assert breakers.get("main", "gpt-4o").failures == 1


def _spend_all(draft: Draft) -> bytes:
    spent = draft.shop.summarizer.health.budget.price("main", "gpt-4o", msgspec.structs.replace(_PLENTY, input=10**12))
    draft.shop.summarizer.health.budget.settle("s1", "a0", Cost(), spent)
    return say("", finish="length")


async def test_what_misses_something_is_made_again() -> None:
    draft = Draft(say("## Completed\n- All was looked at.\n## Remaining\n- Nothing.\n## Discoveries\n- None.\n"))
    made = await draft.get()
    assert (made.level, made.is_provisional, made.reason) == (1, True, "gpt-4o: left out its goal")


async def test_whom_nobody_may_ask_is_not_asked() -> None:
    draft = Draft()
    draft.is_poor = True
    assert await draft.make() is None
    needed = await draft.get(is_needed=True)
    assert (needed.level, needed.calls, draft.asked) == (3, (), [])
    assert "compaction.spend_fraction" in needed.reason


async def test_without_a_key_nobody_can_be_asked() -> None:
    draft = Draft()
    draft.key = None
    assert await draft.make() is None
    assert (await draft.get(is_needed=True)).reason.startswith("no model was asked: ")
    assert draft.asked == []


async def test_without_a_key_those_are_asked_that_are_asked_with_one_of_ours_and_no_others() -> None:
    other = ScriptedUpstream("other")
    policy = free(model="theirs", fallback_models=("small",), may_receive=("other",))
    draft = Draft(policy=policy, provider=Provider(has_own_key=True), others=[other])
    draft.shop.summarizer.routes = [Route(draft.shop.model), Route(other, models=("theirs",))]
    draft.key = None
    request = await draft.shop.read_state(HISTORY, headers=((b"authorization", b"Bearer sk-client"),))
    subject = msgspec.structs.replace(request.state.request, upstream=draft.shop.model)
    case = msgspec.structs.replace(request.state, request=subject)
    made = await draft.get(request=msgspec.structs.replace(request, state=case))
    assert (made.level, made.model, other.calls) == (1, "small", [])
    assert made.reason.startswith("no model was asked: ")
    (call,) = draft.shop.model.calls
    assert b"authorization" not in dict(call.headers)


async def test_other_models_are_asked_in_their_order_and_never_warm() -> None:
    draft = Draft(fail(b""), say(REPORT), policy=free(fallback_models=("small", "tiny")))
    made = await draft.get()
    assert (made.level, made.model) == (1, "small")
    assert [each["model"] for each in draft.asked] == ["gpt-4o", "small"]
    assert draft.ways == ["warm", "compact"]


async def test_a_model_that_was_cold_twice_is_asked_in_a_transcript() -> None:
    draft = Draft()
    for _ in range(2):
        draft.shop.summarizer.health.cache_hits.record_call(
            "main", "gpt-4o", 1.0, msgspec.structs.replace(_PLENTY, input=100, cached=0)
        )
    await draft.get()
    assert draft.ways == ["compact"]


async def test_strict_templates_are_asked_as_they_need_it() -> None:
    draft = Draft(provider=Provider(strict_alternation=True))
    await draft.get()
    assert draft.ways == ["compact"]  # behind a tool's answer the user may not speak


async def test_a_model_that_takes_nothing_is_passed_over() -> None:
    draft = Draft(policy=free(model="tiny"), window=800)
    made = await draft.get(is_needed=True)
    assert (made.level, draft.asked) == (3, [])


async def test_reports_are_merged() -> None:
    parents = tuple(
        msgspec.structs.replace(make_summary(id, 10 * i, 10 * i + 10, tokens=2000), text=REPORT, files=(id + 9 * "a",))
        for i, id in enumerate("ab")
    )
    draft = Draft()
    made = await draft.get(parents=parents, span=MessageRange(0, 20, 900), references=("baaaaaaaaa", "aaaaaaaaaa"))
    assert (made.kind, made.parents, made.digests, made.covered) == ("condensed", ("a", "b"), (), 4000)
    assert draft.ways == ["compact"]
    job = await draft.plan(parents=parents, span=MessageRange(0, 20, 900))
    without = await draft.shop.summarizer.write_without_model(job)
    assert (without.level, without.kind, without.parents) == (3, "condensed", ("a", "b"))
    assert "The parts up to here were looked at." in without.text
    assert without.files == ("aaaaaaaaaa", "baaaaaaaaa", "bbbbbbbbbb")


async def test_a_model_that_merges_badly_is_asked_for_reports_all_the_same() -> None:
    parents = tuple(
        msgspec.structs.replace(make_summary(id, 10 * i, 10 * i + 10, tokens=2000), text=REPORT)
        for i, id in enumerate("ab")
    )
    draft = Draft(say("Sorry, what?"), say("Sorry, what?"))
    for asked in (2, 2):
        made = await draft.get(parents=parents, span=MessageRange(0, 20, 900), is_needed=True)
        assert (made.level, len(draft.asked)) == (3, asked)
    assert "its merged summaries were rejected lately" in made.reason
    draft.shop.model.summarise = give_report
    assert (await draft.get()).level == 1


NO_REPORT = [say("Sorry, what?"), say("", finish="length"), say(None, tool_calls=TOOL), say("far too long " * 20_000)]


@pytest.mark.parametrize("reply", NO_REPORT)
async def test_an_instruction_that_leads_to_nothing_is_held_against_its_session_and_no_model(reply: Reply) -> None:
    policy = replace(FREE, prompt="Write a poem.")
    draft = Draft(*[reply] * 8, policy=policy)
    for _ in range(3):
        made = await draft.get(is_needed=True)
        assert made.level == 3
    assert "its summaries by this instruction were rejected lately" in made.reason
    asked, breakers = len(draft.asked), draft.shop.summarizer.health.breakers
    assert breakers.allows("main", "gpt-4o")
    assert (breakers.get("main", "gpt-4o").failures, asked <= 4) == (0, True)
    draft.shop.model.summarise = give_report
    record_usage(draft.shop.summarizer.health.budget, "s2", _PLENTY)
    elsewhere = await draft.shop.read_state(HISTORY, session=msgspec.structs.replace(SESSION, id="s2"))
    assert (await draft.get(request=elsewhere)).level == 1


async def test_a_prompt_that_a_hook_may_have_changed_is_held_against_its_session_too() -> None:
    policy = replace(FREE, prompt_hook="mine.change")
    draft = Draft(*[say("Sorry, what?")] * 4, policy=policy, hook=lambda instruction, level, raws: "Write a poem.")
    for _ in range(2):
        await draft.get(is_needed=True)
    assert draft.shop.summarizer.health.breakers.get("main", "gpt-4o").failures == 0


async def test_a_model_that_is_broken_is_left_alone_whatever_it_was_asked() -> None:
    draft = Draft(*[fail(b"")] * 4, policy=replace(FREE, prompt="Write a poem."))
    for _ in range(3):
        made = await draft.get(is_needed=True)
    assert "failed lately" in made.reason
    assert draft.shop.summarizer.health.breakers.get("main", "gpt-4o").failures == 2


async def test_a_fault_of_ours_is_no_failed_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(answer: Any, task: Any, frame: Any) -> Any:
        raise RuntimeError("not now")

    draft = Draft()
    monkeypatch.setattr("proxy.engine.compaction.summarizer.check_summary", broken)
    made = await draft.get()
    assert (made.level, made.reason) == (3, "RuntimeError: not now")


@pytest.mark.parametrize(("renewals", "asked"), [(0, 0), (1, 1), (2, 2)])
async def test_what_is_no_longer_ours_to_make_is_left_to_others(renewals: int, asked: int) -> None:
    draft = Draft(say(""), say(""), policy=free(fallback_models=("another",)))
    draft.renewals = renewals
    assert await draft.make(is_needed=True) is None
    assert len(draft.asked) == asked


async def test_what_others_make_by_now_is_not_put_together_either() -> None:
    draft = Draft()
    draft.key = None
    assert (await draft.get(is_needed=True)).level == 3
    draft.renewals = 0
    assert await draft.make(is_needed=True) is None


async def test_each_call_is_told_of() -> None:
    draft = Draft(say(""), say(SHORT))
    made = await draft.get(supersedes=("old",))
    ended = [event.exchange for event in draft.shop.events if isinstance(event, AuxiliaryEnded)]
    assert tuple(ended) == made.calls
    assert made.supersedes == ("old",)


async def test_whether_a_report_can_be_paid_for_is_known_of_the_sessions_own_model() -> None:
    for model, is_affordable in (("", False), ("small", True)):
        shop = Workshop(policy=CompactionPolicy(model=model))
        request = await shop.read_state(HISTORY)
        assert shop.summarizer.may_ask(request) == is_affordable
        record_usage(shop.summarizer.health.budget, "s1", _PLENTY)
        assert shop.summarizer.may_ask(request)


async def test_a_report_is_as_long_as_the_share_of_its_session_allows() -> None:
    draft = Draft(policy=CompactionPolicy())
    budget, work = draft.shop.summarizer.health.budget, await draft.plan()
    draft.is_poor = True
    given = expect_input(work, is_warm=True)
    needed = budget.price("main", "gpt-4o", msgspec.structs.replace(given, output=500))
    record_usage(budget, "s1", Usage(round(20 * needed.tokens), 0))
    assert (await draft.get()).level == 1
    (asked,) = draft.asked
    assert "at most 375 tokens" in asked["messages"][-1]["content"]
    assert work.compute_target(1, 8192) > 500
