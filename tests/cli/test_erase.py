"""`palimpsest erase`, through a server and without one."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from proxy.config import Settings
from proxy.model.erasing import SessionErasure
from tests.cli.commands import call_with
from tests.support.fake_log import FakeLog

FOUND = SessionErasure("abc1", False, 3, 12, 3456, 70, ("def2",), ("kid3",), ("later4",))
DONE = msgspec.structs.replace(FOUND, is_done=True, is_overwritten=True, at_ms=5, left_files=("log.db.journal.aside",))


def run(*arguments: str, **changes: Any) -> int:
    return call_with(["erase", *arguments], lambda settings: FakeLog(), **changes)


async def erase_offline(settings: Settings, session: str, *, is_done: bool) -> SessionErasure:
    return DONE if is_done else FOUND


def test_it_says_what_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("abc", "--dry-run", erase_session=erase_offline) == 0
    out = capsys.readouterr().out
    assert out.startswith("would erase the content of session abc1: 3 calls, 12 contents, 3,456 bytes in the log\n")
    assert "kept      70 bytes that other sessions have, too: def2" in out
    assert "kid3" in out and "later4" in out and "palimpsest export abc1 -o DIR" in out


def test_nobody_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("abc", erase_session=erase_offline) == 1
    assert "say --yes" in capsys.readouterr().err


def test_it_erases(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("abc", "--yes", erase_session=erase_offline) == 0
    out = capsys.readouterr().out
    assert out.startswith("erased the content of session abc1") and "log.db.journal.aside may have calls" in out
    assert run("abc", "--yes", "--json", erase_session=erase_offline) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=SessionErasure) == DONE


def test_it_goes_through_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, str, Mapping[str, str]]] = []

    def ask(settings: Settings, path: str, *, method: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        asked.append((method, path, query))
        return 200, msgspec.json.encode(FOUND if query else DONE)

    assert run("abc", "--yes", ask_server=ask, find_server=lambda settings: ("http://127.0.0.1:1",)) == 0
    assert asked == [("DELETE", "/sessions/abc", {"dry_run": "true"}), ("DELETE", "/sessions/abc1", {})]
    refusal = b'{"error":{"message":"palimpsest: session abc1 is in use"}}'
    assert run("abc", "--yes", "--port", "1", ask_server=lambda *_, **__: (409, refusal)) == 1
    assert "session abc1 is in use" in capsys.readouterr().err
