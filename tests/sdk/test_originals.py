"""What was compacted for a turn, and how a program reads what is no longer sent."""

import json
from typing import Any

import pytest

from proxy.engine.models import PriceList
from proxy.model.errors import UpstreamRefused
from proxy.model.parts import TextPart, ToolPart
from proxy.model.results import CompactionResult, TurnResult
from proxy.read.memory import SendableDocument, load_sendable
from proxy.read.savings import SavingsInputs
from proxy.sdk.engines import ENGINES
from proxy.sdk.errors import MessageNotFoundError, PartNotFoundError
from proxy.sdk.files import LargeFileHandler
from proxy.sdk.session import Session
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, call, say

LEDGERS = {"budget.ceiling_tokens": 6_000, "budget.output_reserve": 500, "compaction.auto": False}
CODE = "def parse(text):\n    return text\n" * 400


def make_text(number: int) -> str:
    return f"turn {number}: " + f"look at the file of the host number {number} again. " * 40


async def send_until_compacted(session: Session, most: int = 40) -> list[TurnResult]:
    results = list[TurnResult]()
    while len(results) < most and not (results and results[-1].compaction_result):
        results.append(await session.send(make_text(len(results))))
    return results


async def load_context(session: Session) -> SendableDocument:
    """What the API shows of the session's context."""
    (shared,) = ENGINES.open.values()
    engine = shared.engine
    inputs = SavingsInputs(PriceList(engine.models.card, shared.settings.providers()), shared.settings.budget)
    log = engine.archive
    return await load_sendable(log, engine.context.memory.manual, session.id, inputs)


async def test_an_epoch_that_opens_with_a_message_is_its_compaction_result(
    create: Create, provider: ChatProvider
) -> None:
    provider.usage = None
    async with await create(LEDGERS) as session:
        *before, last = await send_until_compacted(session)
        assert before and not any(each.compaction_triggered or each.compaction_result for each in before)
        result = last.compaction_result
        assert last.compaction_triggered and result is not None
        assert (result.session_id, result.summary_message_id, result.level_used) == (session.id, None, 3)
        assert result.tokens_after < result.tokens_before and 5 < result.compacted_message_count < 2 * len(before)
        assert (await session.send("short")).compaction_result is None


async def test_a_summary_that_was_made_since_the_last_message_is_told_once(
    create: Create, provider: ChatProvider
) -> None:
    provider.usage = None
    upstream = {"base_url": provider.base_url, "cache": "prefix"}
    told = list[CompactionResult]()
    async with await create({**LEDGERS, "upstreams": [upstream]}) as session:
        session.subscribe("COMPACTION_COMPLETED", lambda event, payload: told.append(payload))
        for number in range(4):
            await session.send(make_text(number))
        await session.compact()
        result = (await session.send("and now?")).compaction_result
        assert told and result == told[-1]
        assert (await session.send("more")).compaction_result is None


async def test_a_message_is_given_back_whole_though_it_is_no_longer_sent(
    create: Create, provider: ChatProvider
) -> None:
    provider.usage = None
    async with await create(LEDGERS) as session:
        results = await send_until_compacted(session)
        assert make_text(2) not in json.dumps(provider.seen[-1])
        first, answer = (await session.messages())[4:6]
        found = await session.message(first.id)
        assert found == first
        assert [part.text for part in found.parts if isinstance(part, TextPart)] == [make_text(2)]
        assert await session.message(results[2].message_id) == answer
        for unknown in ("", "ab" * 16, first.id[:-1]):
            with pytest.raises(MessageNotFoundError, match="has no message"):
                await session.message(unknown)


async def test_a_message_of_results_has_these_with_their_calls(create: Create, provider: ChatProvider) -> None:
    provider.queue += [call(("c1", "add", {"a": 1}), ("c2", "add", {"a": 2}))]
    created = list[str]()
    async with await create() as session:
        session.subscribe("MESSAGE_CREATED", lambda event, payload: created.append(payload.message))
        await session.send("add", tools=[{"name": "add"}])
        await session.send([ToolPart("", "c1", output="one"), ToolPart("", "c2", output="two")])
        await session.event_bus.settle()
        known = {each.id for each in await session.messages()}
        left = [each for each in dict.fromkeys(created) if each not in known]
        found = [part for id in left for part in (await session.message(id)).parts]
        assert [(part.tool_call_id, part.input, part.output) for part in found if isinstance(part, ToolPart)] == [
            ("c1", {"a": 1}, "one"), ("c2", {"a": 2}, "two"),
        ]  # fmt: skip


async def test_a_session_without_a_message_has_none_to_give_back(create: Create) -> None:
    async with await create() as session:
        with pytest.raises(MessageNotFoundError):
            await session.message("ab" * 16)


async def test_what_a_reference_names_is_given_back(create: Create, provider: ChatProvider) -> None:
    provider.usage = None
    async with await create({**LEDGERS, "files.inline_tokens": 1000}) as session:
        part = (await LargeFileHandler(session).handle_file("a.py", content=CODE)).file_ref
        assert part is not None
        assert await session.original(part.content_id) == await session.original(f"ref:{part.content_id}")
        assert CODE in await session.original(part.content_id)
        await send_until_compacted(session)
        (shared,) = ENGINES.open.values()
        epochs = await shared.engine.archive.list_epochs(session.id)
        whole = "".join([await session.original(f"ref:{each.id}") for each in epochs[-1].originals])
        assert make_text(2) in whole
        for unknown in ("", "ref:aaaaaaaaaa", "what"):
            with pytest.raises(PartNotFoundError):
                await session.original(unknown)


async def test_a_file_is_never_taken_for_the_newest_turn(create: Create, load: Create, provider: ChatProvider) -> None:
    async with await create({"files.inline_tokens": 1000}) as session:
        (shared,) = ENGINES.open.values()
        log = shared.engine.archive

        async def look() -> tuple[Any, ...]:
            document, newest = await load_context(session), (await log.load_newest((session.id,)))[0]
            again = await load(session.id)
            told = (await again.context(), await again.messages(), again.model, again.token_usage)
            await again.close()
            return (document, newest, await log.count_later(session.id), *told)

        provider.queue.append(say("Well."))
        await session.send("a")
        before = await look()
        assert before[1].is_ended
        for number in range(2):
            assert (await LargeFileHandler(session).handle_file(f"{number}.py", content=CODE)).file_ref is not None
        assert await look() == before
        kept = await session.record("b", "c")
        assert [each.id for each in (await session.messages())[-2:]] == [
            kept.user_message_id, kept.assistant_message_id
        ]  # fmt: skip


@pytest.mark.parametrize("reply", [{"status": 500, "error": {"message": "no"}}, say("half", fault="overloaded")])
async def test_a_call_that_failed_is_no_part_of_what_is_to_be_sent(
    create: Create, provider: ChatProvider, reply: Any
) -> None:
    async with await create(system_prompt="Be brief.") as session:
        answered = await session.send("a")
        before = await load_context(session)
        provider.queue.append(reply)
        try:
            assert (await session.send("lost", on_part=lambda part: None)).finish_reason == "error"
        except UpstreamRefused:
            assert "status" not in reply or reply["status"] == 500
        document, built = await load_context(session), await session.context()
        assert json.loads(bytes(document.messages)) == built.messages  # type: ignore[arg-type]
        assert [each["content"] for each in built.messages] == ["Be brief.", "a", answered.text]
        assert (document.exchange, document.token_estimate) == (before.exchange, before.token_estimate)
