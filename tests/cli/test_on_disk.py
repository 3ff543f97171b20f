"""The reading commands on a real log, while a writer holds it open."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.config import load_settings
from proxy.model.exchange import Opening, Outcome, Reading, Round, SessionKey, Timings, Usage
from proxy.model.manifest import make_manifest
from proxy.running import note_address
from proxy.store.sqlite.archive import open_sqlite
from tests.cli.commands import call_on_disk

REQUEST = b'{"model": "m", "messages": [{"role": "user", "content": "caf\\u00e9"}]}'
RECEIVED = b'{"choices":[{"message":{"role":"assistant","content":"hi"}}],"usage":{}}'
KEY = SessionKey("5e55i0n", b"t" * 16, "openai", "agent-7")


OPENING = Opening(
    exchange="e1",
    session=KEY,
    kind="managed",
    wire="chat_completions",
    mode="manage",
    model="m",
    method="POST",
    target="/v1/chat/completions",
    headers=(),
    body=make_manifest(REQUEST),
    opened_ms=1_700_000_000_000,
)


async def write_exchange(data: Path, ask: Callable[[], None]) -> None:
    """Record one exchange, then ask in another thread while the log is still open for writing."""
    archive = open_sqlite(load_settings(None, {"data": data}).store_policy(), asyncio.get_running_loop())
    outcome = Outcome("e1", 0, 200, (), "complete", RECEIVED, len(RECEIVED), b"", Timings(1, 2, 3))
    reading = Reading("e1", 0, RECEIVED, Usage(input=3, output=1), "stop", "")
    try:
        assert await archive.append(OPENING, Round("e1", 0, "openai", None), outcome, reading)
        await archive.list_sessions()  # who reads here sees all; another process might be milliseconds behind
        await asyncio.to_thread(ask)
    finally:
        await archive.close()


async def test_the_log_is_read_while_it_is_written(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def check() -> None:
        assert call_on_disk(tmp_path, "sessions", "--json") == 0
        [session] = json.loads(capfdbinary.readouterr().out)
        assert (session["id"], session["calls"], session["sent_tokens"]) == (KEY.id, 1, 3)
        for part, content in (("request", REQUEST), ("sent", REQUEST), ("received", RECEIVED)):
            assert call_on_disk(tmp_path, "show", "5e", "1", "--raw", part) == 0
            assert capfdbinary.readouterr().out == content
        assert call_on_disk(tmp_path, "export", "5e", "--openai") == 0
        exported = json.loads(capfdbinary.readouterr().out)
        assert [message["content"] for message in exported] == ["caf\u00e9", "hi"]
        assert call_on_disk(tmp_path, "verify") == 0
        assert b"1 exchanges, 1 rounds" in capfdbinary.readouterr().out

    await write_exchange(tmp_path, check)


async def test_a_backup_is_a_log_of_its_own(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()

    def check() -> None:
        assert call_on_disk(tmp_path, "backup", str(copy / "log.db")) == 0
        assert call_on_disk(tmp_path, "backup", str(copy / "log.db")) == 1
        assert b"exists" in capfdbinary.readouterr().err

    await write_exchange(tmp_path, check)
    assert await asyncio.to_thread(call_on_disk, copy, "show", "5e", "1", "--raw", "request") == 0
    assert capfdbinary.readouterr().out == REQUEST


async def test_after_a_crash_what_is_only_in_the_journal_is_read(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The data directory is copied in the moment in which a kill would have left it."""
    crashed = tmp_path / "crashed"

    def check() -> None:
        shutil.copytree(tmp_path / "data", crashed)

    (tmp_path / "data").mkdir()
    archive = open_sqlite(
        replace(load_settings(None, {"data": tmp_path / "data"}).store_policy(), journal_batch_ms=60_000),
        asyncio.get_running_loop(),
    )
    archive.append(OPENING, Round("e1", 0, "openai", None))
    await asyncio.to_thread(check)
    await archive.close()
    assert await asyncio.to_thread(call_on_disk, crashed, "show", "5e", "1", "--raw", "request") == 0
    assert capfdbinary.readouterr().out == REQUEST
    assert not (crashed / "log.db.journal").exists()
    assert await asyncio.to_thread(call_on_disk, crashed, "verify") == 0


def test_without_a_log_the_command_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_on_disk(tmp_path / "nowhere", "sessions") == 1
    told = capsys.readouterr().err
    assert told.startswith("palimpsest: ")
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()


async def test_prices_that_only_the_server_was_given_count_for_commands_too(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pricing = {"m": {"input": 1_000_000, "output": 2_000_000}}

    def spend() -> float | None:
        capfdbinary.readouterr()
        assert call_on_disk(tmp_path, "sessions", "--json") == 0
        [session] = json.loads(capfdbinary.readouterr().out)
        money: float | None = session["spent"]["money"]
        return money

    def check() -> None:
        assert spend() is None
        with note_address(load_settings(None, {"data": tmp_path, "pricing": pricing}), 1):
            assert spend() == pytest.approx(3 * 1 + 1 * 2)
        assert spend() == pytest.approx(5), "the server has ended, and its log is judged as before"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PALIMPSEST_PRICING", '{"m": {"input": 2000000, "output": 3000000}}')
            assert spend() == pytest.approx(3 * 2 + 1 * 3), "what the command is told comes first"
        with note_address(load_settings(None, {"data": tmp_path}), 1):
            assert spend() is None

    await write_exchange(tmp_path, check)
