"""What models are asked, as bytes, and what an answer to that may be."""

import json
from typing import Any

import msgspec
import pytest

from proxy.context.compaction.prompts import SummaryOrder
from proxy.context.compaction.spans import MessageRange
from proxy.engine.compaction.job import SummaryJob
from proxy.engine.compaction.model_prompt import PromptBuilder, SummaryPrompt, compute_limit
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.text_jobs import TextJobs
from proxy.model.exchange import Opening, Usage
from proxy.wire.chat_completions import ChatCompletions
from tests.support.compacting import Workshop
from tests.support.managing import Message, make_history
from tests.support.summaries import make_summary

HISTORY = make_history(22, 1600)
CHAT = ChatCompletions()
PARENTS = (make_summary("one report", 0, 10), make_summary("another report", 10, 20))


def count(text: str) -> int:
    return -(-len(text) // 4)


def make(policy: CompactionPolicy | None = None, hook: Any = None) -> PromptBuilder:
    return PromptBuilder(policy or CompactionPolicy(), hook, TextJobs({"count": count}))


async def plan(messages: list[Message] = HISTORY, stop: int = 29, **members: Any) -> SummaryJob:
    workshop = Workshop()
    request = await workshop.read_state(messages, **members)
    index = await workshop.worker.index_conversation(request)
    return SummaryJob(request, index, MessageRange(0, stop, request.state.history.count(0, stop)))


def merge(work: SummaryJob) -> SummaryJob:
    return msgspec.structs.replace(work, parents=PARENTS, span=MessageRange(0, 20, 0))


def read(question: SummaryPrompt | None) -> dict[str, Any]:
    assert question is not None
    body: dict[str, Any] = json.loads(question.body)
    return body


async def test_a_warm_question_is_the_last_request_with_an_instruction_behind_it() -> None:
    work = await plan(max_tokens=50)
    question = await make().write_warm(work, 1, is_alternating=False)
    assert question is not None
    assert question.is_warm
    sent = work.request.body
    shared = next(i for i, (a, b) in enumerate(zip(sent, question.body, strict=False)) if a != b)
    assert shared >= sent.rindex(b"}]")
    *before, asked = read(question)["messages"]
    assert before == HISTORY
    assert asked["role"] == "user"
    assert "the 29 messages from the user's message that begins with “Mend the tests" in asked["content"]
    assert "not shown above" not in asked["content"]
    target = work.compute_target(1, 8192)
    facts = 40 * (target // 100)
    assert question.expected == Usage(work.request.tokens + 600, target + facts, work.request.tokens)
    assert (question.limit, question.most_characters) == (2 * target, 18 * target + 9 * facts)
    assert f"with at most {target // 100} lines" in asked["content"]


async def test_no_more_is_asked_for_than_may_be_spent() -> None:
    work = await plan()
    for question in (
        await make().write_warm(work, 1, most=400, is_alternating=False),
        await make().write_compact(work, 1, "m", None, most=400, form=CHAT),
    ):
        assert question is not None
        assert (question.expected.output, question.limit) == (380, 600)
        assert "at most 300 tokens" in question.body.decode()
        assert "at most 2 lines" in question.body.decode()


async def test_what_is_accepted_is_no_more_than_the_level_allows() -> None:
    assert [compute_limit(SummaryOrder("leaf", 1, most)) for most in (300, 5000)] == [600, 8192]


async def test_a_beginning_that_is_not_shown_is_told_in_a_transcript_unless_it_is_long() -> None:
    workshop = Workshop()
    for steps in range(15, 21):
        await workshop.ask(make_history(steps, 1600))
    request = await workshop.read_state(make_history(27, 1600), base=41, session=_find_key(workshop))
    shown, history = request.verbatim_from, request.state.history
    assert 10 < shown < 50
    index = await workshop.worker.index_conversation(request)
    few, many, none = (
        SummaryJob(request, index, MessageRange(start, 50, history.count(start, 50)))
        for start in (shown - 2, shown - 10, shown)
    )
    question = await make().write_warm(few, 1, is_alternating=False)
    assert question is not None
    asked = read(question)["messages"][-1]["content"]
    assert "The first 2 of them are not shown above." in asked
    assert f"[m{shown - 1} assistant]" in asked and f"[m{shown + 1} " not in asked
    output = index.messages[shown - 1].message.text
    assert output in asked and len(output) > 1000
    sent, told = map(request.state.to_model_tokens, (request.tokens, few.hidden.tokens))
    assert (question.expected.input, question.expected.cached) == (sent + told + 600, sent)
    assert await make().write_warm(many, 1, is_alternating=False) is None
    assert (
        "not shown above" not in read(await make().write_warm(none, 1, is_alternating=False))["messages"][-1]["content"]
    )


def _find_key(workshop: Workshop) -> Any:
    return workshop.log.of(Opening)[0].session


async def test_a_warm_question_is_not_asked_where_it_would_not_be_the_same_or_not_be_answered() -> None:
    work = await plan()
    assert await make().write_warm(merge(work), 1, is_alternating=False) is None
    assert await make().write_warm(await plan(tool_choice="required"), 1, is_alternating=False) is None
    broken = msgspec.structs.replace(work.request, body=b"[]")
    assert await make().write_warm(msgspec.structs.replace(work, request=broken), 1, is_alternating=False) is None


async def test_strict_templates_get_it_in_the_users_last_message() -> None:
    messages: list[Message] = [*HISTORY, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "On."}]
    asked = read(await make().write_warm(await plan(messages), 1, is_alternating=True))["messages"]
    assert len(asked) == len(messages)
    assert asked[-1]["content"].startswith("On.\n\n[This message was written by the proxy")


async def test_a_compact_question_has_a_transcript() -> None:
    work = await plan()
    question = await make().write_compact(work, 1, "other", 1_000_000, form=CHAT)
    body = read(question)
    assert question is not None
    assert not question.is_warm
    assert body["model"] == "other"
    target = work.compute_target(1, 8192)
    assert body["max_tokens"] == target + 40 * (target // 100) + 8192
    orders, text = (each["content"] for each in body["messages"])
    assert orders.startswith("You write a report on a part of a conversation")
    assert "[m1 user]\nMend the tests of the parser." in text
    assert text.count("claimed by a tool, not by the user") == 14
    assert question.expected == Usage(count(orders) + count(text), target + 40 * (target // 100))


async def test_the_short_form_is_asked_with_less_of_each_message() -> None:
    work = await plan()
    long, short = [await make().write_compact(work, level, "m", 1_000_000, form=CHAT) for level in (1, 2)]
    assert long is not None
    assert short is not None
    assert len(short.body) < len(long.body) / 2


async def test_reports_are_merged_from_their_texts() -> None:
    body = read(await make().write_compact(merge(await plan()), 1, "m", None, form=CHAT))
    assert body["messages"][0]["content"].startswith("You write one report in place of several")
    assert "[report 1]\none report\n\n[report 2]\nanother report" in body["messages"][1]["content"]
    long = make_summary("x" * 5000, 0, 20)
    work = msgspec.structs.replace(merge(await plan()), parents=(long,))
    texts = [
        read(await make().write_compact(work, level, "m", None, form=CHAT))["messages"][1]["content"]
        for level in (1, 2)
    ]
    assert [text.count("x") > 1000 for text in texts] == [True, False]


async def test_what_is_asked_fits_into_the_models_window() -> None:
    work, questions = await plan(), make()
    question = await questions.write_compact(work, 1, "m", 4000, form=CHAT)
    assert question is not None
    assert question.expected.input is not None
    assert question.expected.input < 4000 - 300
    assert await questions.write_compact(work, 1, "m", 800, form=CHAT) is None
    half = make(CompactionPolicy(input_fraction=0.375))
    assert half.compute_room(100_000, 0) == questions.compute_room(100_000, 0) // 2 == 37_500
    assert questions.compute_room(None, 0) == questions.compute_room(32_768, 0)
    assert make(CompactionPolicy(input_fraction=1.0)).compute_room(100_000, 1000) == 98_400


@pytest.mark.parametrize("level", [1, 2])
async def test_a_persons_words_stand_in_place_of_ours(level: Any) -> None:
    work, seen = await plan(), list[tuple[str, int, list[bytes]]]()

    def hook(prompt: str, level: int, raws: list[bytes]) -> str:
        seen.append((prompt, level, raws))
        return f"{prompt} In verse."

    own = await make(CompactionPolicy(prompt="Be brief."), hook).write_compact(work, level, "m", None, form=CHAT)
    assert "Be brief. In verse." in read(own)["messages"][0]["content"]
    ours = await make(hook=hook).write_warm(work, level, is_alternating=False)
    assert "In verse." in read(ours)["messages"][-1]["content"]
    assert [each[1] for each in seen] == [level, level]
    assert seen[0][0] == "Be brief."
    assert "third person" in seen[1][0]
    assert [json.loads(raw) for raw in seen[0][2]] == HISTORY[1:30]
