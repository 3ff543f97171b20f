"""`palimpsest search`, `expand` of a hit, and `index`, on a log on disk; and beside a running server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.engine.ports import ALL_SESSIONS
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.log import Selection, SessionRow
from proxy.model.search import IndexHealth, SearchAnswer
from tests.cli.commands import call_on_disk, call_with
from tests.server.api.test_search import ENTRY, HIT
from tests.store.search.test_indexer import change, dump
from tests.support.fake_log import FakeLog
from tests.support.indexing import LogBuilder, ask_tool, say
from tests.support.searching import FakeIndex


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = LogBuilder(tmp_path / "log.db")
    log.call([say("Where is the zebra?")], ask_tool("bash", {"command": "ls\nzebra"}, text="Let me look."))
    log.close()
    return tmp_path


@pytest.fixture(autouse=True)
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are local ones, as in all commands."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_it_finds_without_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_on_disk(data, "search", "zebra") == 0
    told = capsys.readouterr().out
    assert "2025-10-09 17:53:21 +0900  s1 call 1  user message  sent\n    Where is the zebra?\n" in told
    assert "assistant arguments bash  sent\n    command: ls\n    zebra\n" in told
    assert call_on_disk(data, "search", "zebra", "--kind", "message", "--json") == 0
    hit, *_ = json.loads(capsys.readouterr().out)["hits"]
    assert hit["snippet"].strip() == "Where is the zebra?"
    assert call_on_disk(data, "expand", hit["reference"]) == 0
    assert capsys.readouterr().out == "Where is the zebra?"


def test_what_was_not_found_is_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_on_disk(data, "search", "okapi") == 0
    assert capsys.readouterr().out == "nothing was found\n"
    assert call_on_disk(data, "search", "zebra", "--since", "never") == 1
    assert "since is a date" in capsys.readouterr().err
    assert call_on_disk(data, "expand", "aaaaaaaaaa") == 1
    assert "there is no reference aaaaaaaaaa" in capsys.readouterr().err


def test_the_index_is_made_and_made_anew(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_on_disk(data, "index") == 0
    assert capsys.readouterr().out.startswith("the index is up to date (")
    change(data / "index.db", "INSERT INTO word(text) VALUES ('bogus')")
    assert call_on_disk(data, "index", "--rebuild", "--json") == 0
    assert json.loads(capsys.readouterr().out)["behind"] == 0
    assert "bogus" not in [word for (word,) in dump(data / "index.db")["word"]]


def run(index: FakeIndex, *arguments: str, **changes: object) -> int:
    """Run a command on an index that a test makes up."""
    return call_with(arguments, lambda settings: FakeLog(), open_index=lambda settings: index, **changes)


def refuse(*arguments: object, **options: object) -> IndexHealth:
    raise StoreUnavailable("index.db is being written by another process")


def test_beside_a_server_it_reads_what_that_has_indexed(capsys: pytest.CaptureFixture[str]) -> None:
    index = FakeIndex(SearchAnswer(hits=(HIT,), behind=3, is_complete=False))
    assert run(index, "search", "a zebra", "--limit", "5", "--tokens", "900", update_index=refuse) == 0
    told = capsys.readouterr()
    assert told.out == (
        "ref:abcdefgh23  2025-10-09 17:53:20 +0900  s1 call 3  tool output bash\n"
        "    a zebra \N{REPLACEMENT CHARACTER}\n\n"
        "3 newer records of the log could not be searched yet\n"
        "the search was ended by its time limit, or there is no index; there may be more\n"
    )
    assert told.err == ""
    assert (index.queries[0].text, index.queries[0].limit, index.queries[0].tokens) == ("a zebra", 5, 900)
    assert index.is_closed


def test_a_server_makes_its_index_anew(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def ask_server(settings: object, path: str, body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return 200, b'{"behind":7,"behind_seconds":1.0,"size":10,"is_rebuilding":true,"fault":""}'

    server = {"find_server": lambda settings: ("http://127.0.0.1:1",), "ask_server": ask_server}
    assert run(FakeIndex(), "index", "--rebuild", update_index=refuse, **server) == 0
    assert capsys.readouterr().out == "the index is 7 records behind the log (10 bytes)\n"
    assert asked == ["/index/rebuild"]
    index = FakeIndex(health=IndexHealth(fault="the disk is full"))
    assert run(index, "index", update_index=refuse, **server) == 0
    assert capsys.readouterr().out == "the index cannot be used: the disk is full\n"
    server["ask_server"] = lambda settings, path, body: (503, b"no")
    assert run(FakeIndex(), "index", "--rebuild", update_index=refuse, **server) == 1
    assert "the server did not make the index anew: no" in capsys.readouterr().err


def test_a_hit_is_expanded_beside_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FakeIndex(entry=ENTRY), "expand", "ref:abcdefgh23", "--page", "2") == 0
    assert capsys.readouterr().out == "rest"


def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def update(settings: object, tell: object, *, is_rebuilt: bool = False) -> IndexHealth:
        assert callable(tell)
        tell(IndexHealth(behind=1200))
        return IndexHealth()

    assert run(FakeIndex(), "index", update_index=update) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(FakeIndex(), "index", update_index=update) == 0
    assert "1200 records to index" in capsys.readouterr().err


def test_without_a_log_nothing_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(settings: object, tell: object, **_: object) -> IndexHealth:
        raise StoreUnavailable("there is no log; choose --data")

    class Missing(FakeLog):
        async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> list[SessionRow]:
            raise NotFound("there is no log; choose --data")

    assert call_with(["search", "x"], lambda settings: Missing(), update_index=refuse) == 1
    assert capsys.readouterr().err == "palimpsest: there is no log; choose --data\n"
