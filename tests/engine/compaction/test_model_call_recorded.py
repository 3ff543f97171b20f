"""Calls of our own in the real log: it grows with what is new, and shows them for what they are."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from proxy.engine.compaction.model_call import ModelResponse
from proxy.engine.conversations.bodies import build_manifest
from proxy.model.exchange import Opening
from proxy.model.log import Record
from proxy.model.manifest import make_manifest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.summary_request import OutputLimit, write_warm
from tests.support.engine import JSON, LIMIT, ScriptedResponse, ScriptedUpstream
from tests.support.managing import SESSION, make_history, make_subject
from tests.support.model_calls import Setup

ANSWER = b'{"choices":[{"message":{"content":"Goal: x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}'


async def ask_warm(setup: Setup) -> tuple[bytes, list[Record]]:
    """The body of a warm question behind a request that is in the log already, and what it left to record."""
    subject = make_subject(make_history(50), max_tokens=7)
    body = write_warm(ChatCompletions(), subject.split, "Report.", OutputLimit(100))
    assert body is not None
    async with asyncio.timeout(LIMIT):
        asked = setup.make_call(body=body, extends=subject)
        assert isinstance(await setup.caller.call(asked, is_manual=True), ModelResponse)
        assert await setup.engine.tasks.finish(LIMIT)
    return body, [record for each in setup.engine.archive.appended for record in each.records]


def open_request(setup: Setup) -> Opening:
    """The client's own request, as reception records it."""
    subject = make_subject(make_history(50), max_tokens=7)
    body, _ = build_manifest(SESSION.tenant, subject.split, subject.chain, None, 0)
    opening = setup.engine.archive.opening
    return replace(opening, exchange="x0", kind="managed", body=body)


def read_all(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def record(archive: SqliteArchive, *records: Record) -> None:
    async with asyncio.timeout(LIMIT):
        assert await archive.append(*records)


async def test_no_key_is_anywhere_in_it(tmp_path: Path) -> None:
    setup = Setup(ScriptedUpstream(answer=ScriptedResponse(ANSWER, headers=JSON, ending="whole")))
    _, records = await ask_warm(setup)
    archive = open_sqlite(StorePolicy(tmp_path / "log.db", durability="full"), asyncio.get_running_loop())
    await record(archive, replace(open_request(setup), body=make_manifest(b"{}")), *records)
    await archive.close()
    assert b"sk-a-secret" not in read_all(tmp_path)
    assert "sk-a-secret" not in repr(records)
