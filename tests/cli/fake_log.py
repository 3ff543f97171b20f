"""A log in memory for the commands, and a way to run them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from proxy.cli.application import run
from proxy.cli.doors import Doors
from proxy.config import Settings
from proxy.model.errors import Conflict, NotFound
from proxy.model.exchange import Timings, Usage
from proxy.model.log import BranchRow, ExchangeRow, Fault, RoundRow, SessionRow, Verification

ANSWER = b'{"choices":[{"message":{"role":"assistant","content":"hi \\ud83d"},"n":1e400}]}'
REQUEST = b'{\n "messages": [ {"role":"user", "content":"12345678901234567890123 \\u00e9"} ],\r\n "n": 1e400}'

ROUND = RoundRow(
    k=0,
    upstream="openai",
    status=200,
    headers=((b"content-type", b"application/json"),),
    completeness="complete",
    received_size=len(ANSWER),
    is_capped=False,
    timings=Timings(1.0, 12.4, 1234.5),
    error="",
    answer=ANSWER,
    usage=Usage(input=10, output=3),
    finish="stop",
)
EXCHANGE = ExchangeRow(
    seq=1,
    id="x1",
    session="abc1",
    n=1,
    kind="managed",
    wire="chat_completions",
    mode="manage",
    model="gpt-5",
    method="POST",
    target="/v1/chat/completions",
    headers=((b"user-agent", b"t\xe9st"),),
    request_size=len(REQUEST),
    is_capped=False,
    digest=b"\x01\x02",
    opened_ms=1_700_000_000_000,
    rounds=(ROUND,),
)
SESSION = SessionRow("abc1", "agent-7", "openai", 1_700_000_000_000, 1_700_000_001_000, 1, "gpt-5", 10, 3)


@dataclass
class FakeLog:
    """What the commands read; `opened` are the settings it was opened with."""

    sessions: Sequence[SessionRow] = (SESSION,)
    exchanges: Sequence[ExchangeRow] = (EXCHANGE,)
    bodies: dict[str, bytes] = field(default_factory=lambda: {"x1": REQUEST})
    faults: tuple[Fault, ...] = ()
    opened: list[Settings] = field(default_factory=list)
    is_closed: bool = False

    async def list_sessions(self, limit: int = 100) -> Sequence[SessionRow]:
        return self.sessions[:limit]

    async def list_exchanges(self, session: str) -> Sequence[ExchangeRow]:
        return [row for row in self.exchanges if row.session == session]

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        return ()

    async def load_request(self, exchange: str) -> bytes:
        return self.bodies[exchange]

    async def load_sent(self, exchange: str, k: int) -> bytes:
        return b"sent %d: " % k + self.bodies[exchange]

    async def load_received(self, exchange: str, k: int) -> bytes:
        if not self.exchanges[0].rounds[k].completeness:
            raise NotFound("there is no answer")
        return b"received %d \xff\n" % k

    async def verify(self) -> Verification:
        return Verification(1, 2, 3, 4, self.faults)

    async def backup(self, target: Path) -> None:
        _write(target, b"a copy")

    async def close(self) -> None:
        self.is_closed = True


def _write(path: Path, content: bytes) -> None:
    if path.exists():
        raise Conflict(f"{path} exists; name another one")
    path.write_bytes(content)


def exchange(n: int, **changes: object) -> ExchangeRow:
    """Another exchange of the same session."""
    return replace(EXCHANGE, id=f"x{n}", n=n, **changes)  # type: ignore[arg-type]


def call(log: FakeLog, *arguments: str) -> int:
    """Run a command on the log; the exit code."""

    def open_log(settings: Settings) -> FakeLog:
        log.opened.append(settings)
        return log

    def serve(settings: Settings) -> int:
        log.opened.append(settings)
        return 0

    try:
        run(Doors(serve, open_log), arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")


def call_without_log(*arguments: str) -> int:
    """Run a command where there is no log to open."""

    def open_log(settings: Settings) -> FakeLog:
        raise NotFound("there is no log; choose --data")

    try:
        run(Doors(lambda settings: 3, open_log), arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("a command always ends the process")
