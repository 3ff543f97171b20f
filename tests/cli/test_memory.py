"""`palimpsest memory`, and `export --memory`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Settings
from proxy.store.sqlite.reader import SqliteReader
from tests.cli.commands import call_with
from tests.support.compacting import Workshop
from tests.support.kept_log import KeptLog
from tests.support.remembering import make_memory, report_with_facts, talk

TEXTS = ("Never push to main. Fix the parser.", "Now the lexer.", "And the docs.")


FORGOTTEN = "all items of this session are forgotten; the log keeps what was said"


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A session of three turns, of two of which there is memory."""

    async def make() -> Workshop:
        shop = Workshop(report_with_facts, ceiling=100_000, archive=KeptLog(tmp_path))
        await talk(shop, TEXTS)
        await make_memory(shop).compact(shop.session)
        return shop

    return asyncio.run(make())


def run(shop: Workshop, *arguments: str, **changes: Any) -> int:
    return call_with(arguments, lambda settings: SqliteReader(shop.log.path), **changes)


def test_reports_and_facts_are_written(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shop, "memory", shop.session[:6]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 turns, 18 traces, 1 report, 3 facts"
    assert lines[2].startswith("ep_0001  2023-11-14 22:13  turn_0001 to turn_0002  ref:")
    assert lines[3] == "  ## Goal"
    assert lines[-3:] == [
        "sem_0001  0.90  constraint: Never push to main.",
        "sem_0002  0.75  decision (claimed): The parser stays recursive descent.",
        "sem_0003  0.60  fact (claimed): The port of the test server is 8484.",
    ]


def test_each_kind_can_be_had_alone_and_as_json(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    run(shop, "memory", shop.session, "--type", "raw", "--turn", "2")
    told = capsys.readouterr().out
    assert "[RECENT TURNS]\nTurn 2:\n  User: Now the lexer." in told and "sem_" not in told
    run(shop, "memory", shop.session, "--type", "semantic", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in found["semantic"]] == ["sem_0001", "sem_0002", "sem_0003"] and found["raw"] == []
    run(shop, "memory", shop.session, "--type", "tools", "--limit", "1")
    assert capsys.readouterr().out == 'turn_0003  SUCCESS  bash {"command":"run 3 1"}\n'
    run(shop, "memory", shop.session, "--type", "tools", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 6
    run(shop, "memory", shop.session, "--type", "bundle")
    assert capsys.readouterr().out.startswith("[MEMORY:EPISODIC]\n1) (turns 1 to 2;")
    run(shop, "memory", shop.session, "--type", "bundle", "--json")
    assert set(json.loads(capsys.readouterr().out)) == {"episodic", "semantic"}


def test_a_snapshot_is_written_as_it_would_be_sent(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    run(shop, "memory", shop.session, "--type", "snapshot")
    told = capsys.readouterr().out
    assert told.startswith("\n### user\n\n[MEMORY:EPISODIC]\n1) (turns 1 to 2; ")
    assert "### assistant\n\ncalls `bash` (call_3_1_And )" in told and "\n\nAnd the docs.\n" in told
    run(shop, "memory", shop.session, "--type", "snapshot", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["episodic"] == ["ep_0001"] and found["messages"][0]["role"] == "user"


def test_a_report_on_one_turn_and_a_request_are_told(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    async def change() -> None:
        await shop.log.reopen()
        memory = make_memory(shop)
        shop.clock.advance(1)
        await memory.compact(shop.session, ["turn_0001"])
        await memory.memory.order(shop.session, "request")
        await shop.log.close()

    asyncio.run(change())
    run(shop, "memory", shop.session, "--type", "episodic")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "memory will be made of its turns behind the next response"
    assert any(line.startswith("ep_0002  2023-11-14 22:13  turn_0001  ref:") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "path", "body", "answer", "told"),
    [
        (("--pin", "sem_0001"), "/sem_0001", {"action": "pin"}, {"item": "sem_0001", "action": "pin"}, "pin: sem_0001"),
        (("--unpin", "x"), "/x", {"action": "unpin"}, {"item": "ep_0001", "action": "unpin"}, "unpin: ep_0001"),
        (("--retract", "x"), "/x", {"action": "retract"}, {"item": "x", "action": "retract"}, "retract: x"),
        (("--reset",), "/reset", {}, {"is_reset": True}, FORGOTTEN),
        (
            ("--compact", "--branch", "ab"), "/compact", {"branch": "ab", "when": "now"},
            {"items": {"episodic": [1], "semantic": [1, 2]}, "turn_ids": ["a"], "reason": ""},
            "1 report and 2 facts were made of 1 turn",
        ),
        (
            ("--compact", "--when", "later"), "/compact", {"branch": "", "when": "later"}, {"is_requested": True},
            "memory will be made behind the next response",
        ),
        (
            ("--compact", "--when", "never"), "/compact", {"branch": "", "when": "never"}, {"is_requested": False},
            "no memory will be made behind the next response",
        ),
        (
            ("--compact",), "/compact", {"branch": "", "when": "now"},
            {"items": {"episodic": [], "semantic": []}, "turn_ids": ["a", "b"], "reason": "no model"},
            "0 reports and 0 facts were made of 2 turns\nno model",
        ),
    ],
)  # fmt: skip
def test_changes_are_asked_of_the_server(
    shop: Workshop, capsys: pytest.CaptureFixture[str], arguments: Any, path: str, body: Any, answer: Any, told: str
) -> None:
    asked: list[tuple[str, Any]] = []

    def ask(settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
        asked.append((path, json.loads(body)))
        return 200, json.dumps({"session": "s", **answer}).encode()

    assert run(shop, "memory", "abc", *arguments, ask_server=ask) == 0
    assert asked == [(f"/sessions/abc/memory{path}", body)] and capsys.readouterr().out == f"{told}\n"
    assert run(shop, "memory", "abc", *arguments, "--json", ask_server=ask) == 0
    assert json.loads(capsys.readouterr().out)["session"] == "s"


def test_what_the_server_refuses_is_told(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
        return 404, b'{"error":{"message":"palimpsest: there is no such item"}}'

    assert run(shop, "memory", "abc", "--pin", "sem_9", ask_server=ask) == 1
    assert capsys.readouterr().err == "palimpsest: there is no such item\n"


@pytest.mark.parametrize(
    "arguments",
    [("--type", "dreams"), ("--reset", "--compact"), ("--pin", "a", "--unpin", "b"), ("--compact", "--when", "x")],
)
def test_what_makes_no_sense_is_refused(shop: Workshop, arguments: tuple[str, ...]) -> None:
    assert run(shop, "memory", shop.session, *arguments) == 2


def test_memory_is_exported_as_files(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(shop, "export", shop.session[:8], "--memory", "-o", str(tmp_path / "out")) == 0
    own = tmp_path / "out" / "agents" / shop.session
    assert capsys.readouterr().out == f"wrote {own}\n"
    names = ("episodic.jsonl", "raw_traces.jsonl", "raw_traces_archive.jsonl", "semantic.jsonl")
    assert tuple(sorted(path.name for path in own.iterdir())) == names
    assert [len((own / name).read_text().splitlines()) for name in names] == [1, 6, 12, 3]
    assert run(shop, "export", shop.session, "--memory", "-o", str(tmp_path / "out")) == 0  # they are replaced
    monkeypatch.setenv("PALIMPSEST_MEMORY_DIR", str(tmp_path / "named"))
    assert run(shop, "export", shop.session, "--memory") == 0
    assert (tmp_path / "named" / "agents" / shop.session / "semantic.jsonl").exists()
    monkeypatch.delenv("PALIMPSEST_MEMORY_DIR")
    monkeypatch.chdir(tmp_path)
    assert run(shop, "export", shop.session, "--memory") == 0
    assert (tmp_path / "memory" / "agents" / shop.session / "semantic.jsonl").exists()
    assert run(shop, "export", shop.session, "--memory", "--json") == 2
