"""Memory as files: compacted turns go to the archive, and a mirror keeps the files current."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from proxy.engine.memory.files import FILES, MemoryMirror, load_files
from proxy.model.events import ExchangeRecorded
from tests.support.compacting import Workshop
from tests.support.remembering import make_memory, report_with_facts, talk

TEXTS = ("Never push to main. Fix the parser.", "Now the lexer.", "And the docs.")


def read(files: Mapping[str, bytes], name: str) -> list[Any]:
    return [json.loads(line) for line in files[name].splitlines()]


async def test_compacted_turns_are_in_the_archive_file_and_each_line_is_an_object() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    await talk(shop, TEXTS)
    session, before = await load_files(shop.log, shop.session[:8])
    assert session == shop.session and tuple(before) == FILES
    assert len(read(before, "raw_traces.jsonl")) == 18 and before["raw_traces_archive.jsonl"] == b""
    await make_memory(shop).compact(shop.session, ["turn_0001"])
    _, after = await load_files(shop.log, shop.session)
    assert after["raw_traces_archive.jsonl"] + after["raw_traces.jsonl"] == before["raw_traces.jsonl"]
    assert {each["turn_id"] for each in read(after, "raw_traces_archive.jsonl")} == {"turn_0001"}
    (episode,) = read(after, "episodic.jsonl")
    assert set(episode) == {"id", "ts", "turn_ids", "summary", "tags", "salience"}
    first = read(after, "semantic.jsonl")[0]
    assert set(first) == {"id", "ts", "fact", "tags", "confidence", "salience", "kind", "nodes", "supersedes"}
    await make_memory(shop).memory.order(shop.session, "reset")
    _, again = await load_files(shop.log, shop.session)
    assert again == before


class Mirrored:
    """A mirror, what it has written, and what it will do later."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.written: list[Mapping[str, bytes]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.problem: OSError | None = None
        self.times = iter(range(0, 1000, 2))
        shop.jobs.call_later = lambda seconds, run: self.later.append((seconds, run))
        self.mirror = MemoryMirror(
            log=shop.log,
            write=self.write,
            jobs=shop.jobs,
            now=lambda: float(next(self.times)),
        )

    def write(self, session: str, files: Mapping[str, bytes]) -> None:
        if self.problem is not None:
            raise self.problem
        self.written.append(files)

    async def run(self) -> None:
        """Do what is to be done now."""
        waiting, self.later = self.later, []
        for _, work in waiting:
            work()
        await self.shop.settle()


async def test_a_mirror_follows_calls_and_changes() -> None:
    shop = Workshop(report_with_facts, ceiling=100_000)
    made = Mirrored(shop)
    shop.bus.subscribe(ExchangeRecorded, made.mirror.note_exchange)
    memory = make_memory(shop)
    memory.memory.listeners.append(made.mirror.note_change)
    await talk(shop, TEXTS)
    assert [seconds for seconds, _ in made.later] == [1.0]  # three calls, once
    await made.run()
    assert len(read(made.written[-1], "raw_traces.jsonl")) == 18
    await memory.compact(shop.session)
    await made.run()
    assert read(made.written[-1], "episodic.jsonl") and len(made.written) == 2


async def test_what_changes_meanwhile_is_written_later_and_seldom_where_it_takes_long() -> None:
    shop = Workshop(ceiling=100_000)
    await talk(shop, TEXTS)
    made = Mirrored(shop)
    made.mirror.note_change(shop.session)
    (_, start), *_ = made.later
    made.later.clear()
    start()
    made.mirror.note_change(shop.session)
    assert made.later == []
    await shop.settle()
    assert [seconds for seconds, _ in made.later] == [40.0]
    await made.run()
    assert len(made.written) == 2


async def test_a_failure_is_logged_once_and_a_session_without_a_conversation_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Workshop(ceiling=100_000)
    await talk(shop, TEXTS)
    made = Mirrored(shop)
    made.problem = OSError("no space left")
    for _ in range(2):
        made.mirror.note_change(shop.session)
        await made.run()
    assert [record.message for record in caplog.records if "memory.mirror" in record.message] == [
        "the memory of sessions cannot be written to files, the log has it; check memory.mirror: no space left"
    ]
    made.problem = None
    made.mirror.note_change(shop.session)
    made.mirror.note_change("nobody")
    await made.run()
    assert len(made.written) == 1
