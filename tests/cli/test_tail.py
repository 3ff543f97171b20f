"""`palimpsest tail`: what it writes of events, and how it goes on when the server goes."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from proxy.cli.main import NAME
from proxy.cli.tail import EventParser, describe_event
from proxy.config import Settings
from proxy.model.errors import NotFound, UpstreamUnreachable
from proxy.model.events import (
    AgentNudgedEvent,
    CacheMissedEvent,
    CallCompletedEvent,
    CallStartedEvent,
    CallUnreadableEvent,
    CeilingExceededEvent,
    CompactionCompletedEvent,
    CompactionFailedEvent,
    CompactionTriggeredEvent,
    DoomLoopDetectedEvent,
    EpochOpenedEvent,
    EpochRevertedEvent,
    MessageCreatedEvent,
    PruneCompletedEvent,
    ResetEvent,
    RungFailedEvent,
    SessionCreatedEvent,
    SessionIdleEvent,
    StreamedEvent,
    StreamEndedEvent,
    SummaryAddedEvent,
)
from tests.cli.commands import call_with
from tests.support.fake_log import FakeLog

AT = 1_700_000_000_000
ROW: dict[str, Any] = {
    "type": "CALL_COMPLETED",
    "at_ms": AT,
    "session": "a1b2c3d4e5f6",
    "exchange": "x7",
    "n": 7,
    "kind": "managed",
    "model": "gpt-5",
    "upstream": "openai",
    "wire": "chat_completions",
    "is_side": False,
    "status": 200,
    "completeness": "complete",
    "error": "",
    "client": 48210,
    "sent": 12004,
    "input": 12000,
    "read": 9000,
    "written": None,
    "output": 512,
    "money": 0.03125,
    "saved_money": 0.0901,
    "epoch": "e1",
    "rung": "epoch",
    "seconds": 3.21,
    "first_byte_seconds": 0.4,
    "overhead_seconds": 0.002,
}
Step = Callable[[Callable[[bytes], object]], tuple[int, bytes]]


def frame(event: dict[str, Any], id: str = "run-1") -> bytes:
    return f"event: {event['type']}\nid: {id}\ndata: {json.dumps(event)}\n\n".encode()


class Server:
    """Plays one script for each time it is followed, and is interrupted after the last."""

    def __init__(self, *steps: "Step | Exception") -> None:
        self.steps = list(steps)
        self.asked: list[tuple[dict[str, str], str]] = []

    def follow(
        self, settings: Settings, query: Iterable[tuple[str, str]], last_id: str, take: Callable[[bytes], object]
    ) -> tuple[int, bytes]:
        self.asked.append((dict(query), last_id))
        if not self.steps:
            raise KeyboardInterrupt
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step(take)


def tell(*pieces: bytes, status: int = 200, body: bytes = b"") -> Step:
    def play(take: Callable[[bytes], object]) -> tuple[int, bytes]:
        for piece in pieces:
            take(piece)
        return status, body

    return play


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nothing waits in real time."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return seconds


def run(server: Server, *arguments: str) -> int:
    return call_with(["tail", *arguments], lambda settings: FakeLog(), follow_events=server.follow)


def test_calls_are_written_as_they_end_and_ctrl_c_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tell(frame(ROW)))
    assert run(server) == 0
    assert capsys.readouterr().out == (
        "22:13:20  a1b2c3d4    #7  · gpt-5               48,210 → 12,004 tokens  75 % from the cache  512 out"
        "  $0.0312 (saved $0.0901)  3.2 s\n"
    )
    query, last_id = server.asked[0]
    assert (last_id, "session" in query) == ("", False)
    assert {"CALL_COMPLETED", "EPOCH_OPENED", "CACHE_MISSED"} <= set(query["type"].split(","))
    assert not {"CALL_STARTED", "MESSAGE_CREATED"} & set(query["type"].split(","))


def test_a_session_can_be_named_and_all_be_asked_for() -> None:
    server = Server()
    assert run(server, "talk", "--all") == 0
    assert server.asked == [({"session": "talk"}, "")]


def test_json_is_written_as_it_came_one_event_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    newer = {"type": "FROM_A_NEWER_SERVER", "at_ms": AT, "session": "s"}
    assert run(Server(tell(frame(ROW), frame(newer))), "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [ROW, newer]


def test_an_event_of_a_newer_server_is_left_out_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Server(tell(frame({"type": "FROM_A_NEWER_SERVER", "at_ms": AT, "session": "s"})))) == 0
    assert capsys.readouterr().out == ""


def test_it_waits_for_a_server_that_restarts_and_goes_on_behind_the_last_event(
    capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    ended = {"type": "STREAM_ENDED", "at_ms": AT, "session": "", "reason": "stopping"}
    reset = {"type": "RESET", "at_ms": AT, "session": "", "reason": "restarted"}
    gone = UpstreamUnreachable("it does not answer")
    cut, begun = frame(ROW, "run-8")[:-2], b"retry: 1000\nid: new-0\n: palimpsest\n\n"
    server = Server(
        tell(frame(ROW), f"event: x\ndata: {json.dumps(ended)}\n\n".encode(), cut),
        gone,
        NotFound("no server has run"),
        tell(status=503),
        tell(begun, frame(reset, "new-1"), frame(ROW, "new-2")),
    )
    assert run(server) == 0
    assert [last_id for _, last_id in server.asked] == ["", "run-1", "run-1", "run-1", "run-1", "new-2"]
    written = capsys.readouterr()
    lines = written.out.splitlines()
    assert [line[26:].split("  ")[0] for line in lines] == [
        "· gpt-5",
        "· the server stops",
        "· the server was restarted; `palimpsest sessions` has the calls that ended meanwhile",
        "· gpt-5",
    ]
    assert written.err == "the server is gone; waiting until it is back (Ctrl-C ends)\n"
    assert slept == [1.0] * 5


def test_without_a_server_it_says_what_to_do(capsys: pytest.CaptureFixture[str], slept: list[float]) -> None:
    assert run(Server(UpstreamUnreachable("no answer; start it by `palimpsest serve`"))) == 1
    assert run(Server(NotFound("no server has run; choose --data"))) == 1
    assert capsys.readouterr().err == (
        f"{NAME}: no answer; start it by `palimpsest serve`\n{NAME}: no server has run; choose --data\n"
    )
    assert slept == []


def test_what_the_server_refuses_is_told_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"error": {"message": "palimpsest: no session begins with 'x'"}}).encode()
    assert run(Server(tell(status=404, body=body)), "x") == 1
    assert run(Server(tell(status=503, body=body)), "x") == 1
    assert capsys.readouterr().err == f"{NAME}: no session begins with 'x'\n" * 2


class Terminal:
    """Standard output as a terminal of eighty columns."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_on_a_terminal_lines_fit_and_have_colours_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, no_color: str, is_coloured: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", no_color)
    failed = ROW | {"status": 429, "error": "\x1b[31mtoo\nmany\u202e"}
    assert run(Server(tell(frame(failed)))) == 0
    line = terminal.text.removesuffix("\n")
    assert line.startswith("\x1b[31m") is is_coloured
    plain = line.removeprefix("\x1b[31m").removesuffix("\x1b[0m")
    assert (len(plain), plain[-1], "\x1b" in plain) == (60, "…", False)


def test_control_characters_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    failed = ROW | {"status": 500, "error": "\x1b[2Jtoo\nmany\u202e", "session": "\x1bs"}
    assert run(Server(tell(frame(failed)))) == 0
    assert capsys.readouterr().out.endswith("status 500  3.2 s  \ufffd[2Jtoo many\ufffd\n")


def test_pieces_may_end_anywhere() -> None:
    for size in (1, 7, 1000):
        found: list[str] = []
        parser = EventParser(found.append)
        content = b"retry: 1000\nid: run-1\n: palimpsest\n\n" + frame(ROW, "run-2") + frame({"type": "X"}, "run-3")
        for at in range(0, len(content), size):
            parser.feed(content[at : at + size])
        assert [json.loads(text)["type"] for text in found] == ["CALL_COMPLETED", "X"]
        assert parser.last_id == "run-3"


def completed(**changes: Any) -> CallCompletedEvent:
    fields = {name: value for name, value in (ROW | changes).items() if name != "type"}
    return CallCompletedEvent(**fields)


COMMON: dict[str, Any] = {"at_ms": AT, "session": "s"}
CALL: dict[str, Any] = {**COMMON, "exchange": "x", "n": 3}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (completed(kind="auxiliary", model="m" * 30), ""),
        (completed(is_side=True), ""),
        (completed(kind="passthrough", status=500), "passed on unread"),
        (completed(client=5, sent=5, read=None, output=None, money=None), "gpt-5               5 tokens  3.2 s"),
        (completed(client=None, sent=7, saved_money=-0.5), "? → 7 tokens"),
        (completed(saved_money=-0.5), "$0.0312 (lost $0.5000)"),
        (completed(saved_money=0.0), "$0.0312  3.2 s"),
        (completed(status=0, completeness="failed", error="refused"), "no response  failed  3.2 s  refused"),
        (completed(completeness="aborted"), "aborted"),
        (
            EpochOpenedEvent(**CALL, epoch="e", why="hard", tokens_before=182000, tokens_after=24000),
            "▲ epoch opened, high mark: 182,000 → 24,000 tokens",
        ),
        (
            EpochRevertedEvent(**CALL, reverted="e", why="revert", tokens_before=2000, tokens_after=9000),
            "▲ epoch e reverted, on request: 2,000 → 9,000 tokens",
        ),
        (EpochRevertedEvent(**CALL, reverted="e", why="refused"), "▲ epoch e reverted, the upstream refused it"),
        (
            CacheMissedEvent(**CALL, cause="tools", tokens=9000, cost=1.0, money=0.027),
            "⚡ cache missed: 9,000 tokens were not read (tools), $0.0270 more",
        ),
        (
            CacheMissedEvent(**CALL, cause="idle", tokens=9, cost=1.0, money=None),
            "⚡ cache missed: 9 tokens were not read (idle)",
        ),
        (
            PruneCompletedEvent(**CALL, epoch="e", tombstones=1, files=0, shortened=2),
            "▲ held back: 1 output, 2 shortened",
        ),
        (
            CompactionTriggeredEvent(**COMMON, exchange="x", messages=12, tokens=9000, is_manual=False),
            "· a summary of 12 messages (9,000 tokens) is being made",
        ),
        (
            CompactionCompletedEvent(
                **COMMON,
                exchange="x",
                summary="r",
                level=2,
                messages=12,
                tokens_before=9000,
                tokens_after=500,
                elapsed_ms=3,
                reason="too long",
                is_manual=True,
            ),
            "▲ summary of 12 messages, level 2: 9,000 → 500 tokens; too long",
        ),
        (
            CompactionFailedEvent(**COMMON, exchange="x", error="why", elapsed_ms=3, is_manual=True),
            "✕ no summary came of it: why",
        ),
        (
            SummaryAddedEvent(**COMMON, exchange="x", summary="r", kind="leaf", level=1, covered=9000, tokens=500),
            "· summary r of 9,000 tokens, in 500",
        ),
        (
            SessionCreatedEvent(**COMMON, name="talk", model="gpt-5", upstream="openai", parent="p"),
            "· new session 'talk': gpt-5 at openai, started by p",
        ),
        (
            SessionCreatedEvent(**COMMON, name="", model="", upstream="openai", parent=""),
            "· new session: no model at openai",
        ),
        (CallStartedEvent(**CALL, model="gpt-5", upstream="o", wire="w", is_side=False), "· gpt-5: sent"),
        (MessageCreatedEvent(**CALL, message="ab" * 16, role=""), "· message of unknown role: abababababab"),
        (CallUnreadableEvent(**CALL, error="why"), "✕ its response could not be read: why"),
        (
            RungFailedEvent(**CALL, rung="plan", error="why"),
            "✕ it could not be sent under a new epoch, another form was: why",
        ),
        (
            CeilingExceededEvent(**CALL, tokens=5000, usable=4000, error="why"),
            "✕ sent above its ceiling: 5,000 of 4,000 tokens; why",
        ),
        (
            DoomLoopDetectedEvent(**CALL, tool="bash", count=3, has_same_output=True),
            "↻ loop: bash was called 3 times in a row with the same arguments, with the same output",
        ),
        (DoomLoopDetectedEvent(**CALL, tool="bash", count=3, has_same_output=False), "with other outputs"),
        (AgentNudgedEvent(**CALL, attempt=2), "· nudged, attempt 2"),
        (SessionIdleEvent(**CALL, attempts=1), "· idle: 1 nudge had no effect"),
        (ResetEvent(at_ms=AT, reason="expired"), "· some events are missing here; `palimpsest sessions` has all calls"),
        (
            StreamEndedEvent(at_ms=AT, reason="slow"),
            "· events came faster than they were written here; going on with the newest",
        ),
    ],
)
def test_each_event_has_its_line(event: StreamedEvent, line: str) -> None:
    lines = [f"{sign} {text}" for sign, text in describe_event(event, is_all=False)]
    assert bool(lines) is bool(line)
    assert not lines or line in lines[0]
    assert list(describe_event(event))
