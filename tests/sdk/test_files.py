"""Files of programs: small ones are sent whole, large ones as a reference that the log resolves."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy.assembly import Engine
from proxy.engine.recall.entries import EntryFinder
from proxy.engine.recall.scope import Relatives, Scope
from proxy.model.errors import Erased, NotFound, TooLarge
from proxy.model.parts import FileRefPart, TextPart, ToolPart
from proxy.model.results import FileHandleResult
from proxy.read.context import load_page
from proxy.sdk.engines import ENGINES
from proxy.sdk.errors import SessionClosedError
from proxy.sdk.files import MOST_BYTES, LargeFileHandler
from tests.sdk.conftest import Create
from tests.support.programs import ChatProvider, call, say
from tests.support.scripted import LIMIT

CODE = (
    "import os\n\n\nclass Parser:\n    def parse(self, text):\n        return text\n\n\n"
    + "value = 1  # filler\n" * 400
)
SMALL = {"files.inline_tokens": 1000}
PROSE = {**SMALL, "files.summary_model": "small"}
SENTENCE = "It parses text, and little else."
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def find_engine() -> Engine:
    """The engine of the only log."""
    (shared,) = ENGINES.open.values()
    return shared.engine


def find_log() -> Any:
    return find_engine().archive


def find_sentences(session: str) -> Mapping[str, str]:
    """The sentences about contents of a session."""
    return find_engine().context.controller.states.caches.sentences.peek(session) or {}


def read(result: FileHandleResult) -> FileRefPart:
    assert result.file_ref is not None
    assert (result.is_inline, result.inline_content) == (False, None)
    return result.file_ref


async def test_a_small_file_is_sent_whole(create: Create, tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_bytes(b"x = '\xc3\xa9\xff'\n")
    async with await create(SMALL) as session:
        found = await LargeFileHandler(session).handle_file(path)
        assert found == FileHandleResult(path=str(path), inline_content="x = 'é\ufffd'\n")
        assert found.is_inline


async def test_a_large_one_is_a_reference_that_the_log_resolves(create: Create, provider: ChatProvider) -> None:
    async with await create(SMALL) as session:
        files, log = LargeFileHandler(session), find_log()
        part = read(await files.handle_file("src/parser.py", content=CODE))
        assert (part.path, part.file_type) == ("src/parser.py", "python")
        assert part.token_count > 1000
        assert part.exploration_summary.splitlines()[:2] == ["imports os", "class Parser · lines 4-6"]
        page = await load_page(log, part.content_id, None)
        assert (page.session, page.text) == (session.id, CODE)
        assert read(await files.handle_file("src/parser.py", content=CODE)) == part
        assert len(await log.list_calls(session.id, 0, 9)) == 2
        other = read(await files.handle_file("src/other.py", content=CODE))
        assert other.content_id != part.content_id

        await session.send([TextPart("Look at this."), part])
        said = provider.said[-1]
        assert said.startswith(f"Look at this.\n\n[FILE: src/parser.py]\nref:{part.content_id} · python · ")
        assert "class Parser" in said
        assert "filler" not in said
        told = (await session.messages())[0].parts
        assert isinstance(told[0], TextPart)
        assert told[1:] == [part]


async def test_a_model_may_recall_a_file_of_its_own_session_alone(create: Create) -> None:
    async with await create(SMALL) as session, await create(SMALL) as other:
        part = read(await LargeFileHandler(session).handle_file("src/parser.py", content=CODE))
        entries, tenant = (
            EntryFinder(find_log(), find_engine().index),
            (await find_log().find_key(session.id)).tenant,
        )
        for own, is_found in ((session, True), (other, False)):
            scope = Scope(session=own.id, tenant=tenant, reach="branch", history=None)
            if is_found:
                entry = await entries.find(scope, Relatives((own.id,)), part.content_id)
                assert (entry.role, entry.path, entry.text) == ("file", "src/parser.py", CODE)
            else:
                with pytest.raises(NotFound, match="belongs to another branch or session"):
                    await entries.find(scope, Relatives((own.id,)), part.content_id)


async def test_a_file_goes_with_its_session(create: Create) -> None:
    async with await create(SMALL) as session, await create(SMALL):
        part = read(await LargeFileHandler(session).handle_file("src/parser.py", content=CODE))
        log = find_log()
        await find_engine().erasing.erase(session.id)
        with pytest.raises(Erased):
            await load_page(log, part.content_id)
        with pytest.raises(NotFound, match="there is no reference"):
            await load_page(log, "aaaaaaaaaa")


async def test_a_model_adds_a_sentence_once(create: Create, provider: ChatProvider) -> None:
    async with await create(PROSE) as session:
        files = LargeFileHandler(session)
        assert SENTENCE not in read(await files.handle_file("a.py", content=CODE)).exploration_summary
        assert provider.seen == []  # there is no credential before the first call
        await session.send("Hello.")
        provider.queue.append(say(f"{SENTENCE}\n"))
        for path in ("a.py", "b.py"):
            assert read(await files.handle_file(path, content=CODE)).exploration_summary.splitlines()[:2] == [
                SENTENCE,
                "imports os",
            ]
        assert [each["model"] for each in provider.seen] == ["m", "small"]
        assert "class Parser" in provider.said[1]
        assert [each.kind for each in await find_log().list_calls(session.id, 0, 9)] == [
            "recorded", "recorded", "managed", "auxiliary", "recorded",
        ]  # fmt: skip


@pytest.mark.parametrize("reply", [{"status": 500}, call(("c1", "ls", {})), say("word " * 400), say("")])
async def test_without_a_sentence_the_outline_is_enough(create: Create, provider: ChatProvider, reply: Any) -> None:
    upstreams = [{"base_url": provider.base_url, "api_key": "sk-own"}]
    async with await create({**PROSE, "upstreams": upstreams}) as session:
        provider.queue.append(reply)
        part = read(await LargeFileHandler(session).handle_file("a.py", content=CODE))
        assert part.exploration_summary.startswith("imports os")
        assert len(provider.seen) >= 1


async def test_what_cannot_be_kept_is_refused(create: Create, tmp_path: Path) -> None:
    session = await create({**SMALL, "store.record_cap_bytes": 4096})
    files = LargeFileHandler(session)
    with pytest.raises(TooLarge, match=r"store\.record_cap_bytes"):
        await files.handle_file("a.py", content=CODE)
    with pytest.raises(FileNotFoundError):
        await files.handle_file(tmp_path / "none.py")
    with (tmp_path / "long.py").open("wb") as sparse:
        sparse.truncate(MOST_BYTES + 1)
    with pytest.raises(TooLarge, match="Give a part of it"):
        await files.handle_file(tmp_path / "long.py")
    await session.close()
    with pytest.raises(SessionClosedError):
        await files.handle_file("a.py", content="x")


async def test_an_epoch_shows_the_sentence_about_a_large_output(create: Create, provider: ChatProvider) -> None:
    settings = {
        **PROSE,
        "upstreams": [{"name": "main", "base_url": provider.base_url, "cache": "prefix"}],
        "pricing": {name: {"input": 1.0} for name in ("m", "small")},
        "budget.ceiling_tokens": 8000,
        "models": {"m": {"window": 9000}},
        "compaction.spend_fraction": 1.0,
    }
    usage = {"prompt_tokens": 4000, "completion_tokens": 5, "total_tokens": 4005}
    provider.queue.append({**call(("c1", "read", {"path": "src/parser.py"})), "usage": usage})
    async with await create(settings) as session:
        await session.send("Read the parser.", tools=[TOOL])
        provider.queue += [say("Done.", usage=usage), say(SENTENCE, usage=usage)]
        await session.send([ToolPart("read", "c1", output=CODE)], tools=[TOOL])
        async with asyncio.timeout(LIMIT):
            while not find_sentences(session.id):  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        for n in range(8):
            await session.send(f"Step {n}: " + " ".join(f"w{n}{i}" for i in range(300)), tools=[TOOL])
        assert [each["model"] for each in provider.seen].count("small") == 1
        shown = [str(message["content"]) for each in provider.seen for message in each["messages"]]
        assert any(text.startswith("[FILE: ") and SENTENCE in text for text in shown)
