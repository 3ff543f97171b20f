"""A log whose rows a test makes up. Rule: it answers as the port says, with what it was given."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from proxy.config import Settings
from proxy.context.cache_misses import CacheUse
from proxy.engine.ports import ALL_SESSIONS
from proxy.model.epoch import Summary
from proxy.model.errors import Conflict, NotFound
from proxy.model.exchange import Timings, Usage
from proxy.model.lineage import Relation
from proxy.model.log import BranchRow, Call, ExchangeRow, LogFault, RoundRow, Selection, SessionRow, Verification
from proxy.read.cache import CacheCall, tell_miss
from tests.support.unmanaged import UnmanagedLog

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
SESSION = SessionRow("abc1", "agent-7", "openai", 1_700_000_000_000, 1_700_000_001_000, 1, "gpt-5")


@dataclass
class FakeLog(UnmanagedLog):
    """What the commands read; `opened` are the settings it was opened with."""

    sessions: Sequence[SessionRow] = (SESSION,)
    exchanges: Sequence[ExchangeRow] = (EXCHANGE,)
    bodies: dict[str, bytes] = field(default_factory=lambda: {"x1": REQUEST})
    branches: Sequence[BranchRow] = ()
    summaries: Sequence[Summary] = ()
    faults: tuple[LogFault, ...] = ()
    opened: list[Settings] = field(default_factory=list)
    is_closed: bool = False

    async def list_sessions(self, limit: int = 100, selection: Selection = ALL_SESSIONS) -> Sequence[SessionRow]:
        family, parent = selection.family, selection.parent
        rows = [row for row in self.sessions if row.family.startswith(family) and row.parent.startswith(parent)]
        return [row for row in rows if row.seq < selection.before][:limit]

    async def find_session(self, session: str) -> SessionRow:
        for row in self.sessions:
            if row.id == session:
                count = max(each.n for each in (*self.exchanges, replace(EXCHANGE, n=0)))
                auxiliary = sum(each.kind == "auxiliary" for each in self.exchanges)
                return replace(row, exchanges=count - auxiliary, auxiliary=auxiliary)
        raise NotFound(f"there is no session {session}")

    async def list_ids(self, prefix: str, limit: int) -> Sequence[str]:
        return sorted(row.id for row in self.sessions if row.id.startswith(prefix))[:limit]

    async def list_exchanges(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        await self.find_session(session)
        rows = [row for row in self.exchanges if row.session == session]
        return [row for row in rows if after < row.n <= after + limit]

    async def list_calls(self, session: str, after: int = 0, limit: int = 100) -> Sequence[ExchangeRow]:
        rows = await self.list_exchanges(session, after, limit)
        return [replace(row, rounds=tuple(replace(each, answer=b"") for each in row.rounds)) for row in rows]

    async def list_branches(self, session: str) -> Sequence[BranchRow]:
        return self.branches

    async def list_summaries(self, session: str) -> Sequence[Summary]:
        await self.find_session(session)
        return self.summaries

    async def load_request(self, exchange: str) -> bytes:
        if exchange not in self.bodies:
            raise NotFound("this content was erased")
        return self.bodies[exchange]

    async def load_held(self, exchange: str) -> bytes:
        raise NotFound("it has no held history")

    async def load_sent(self, exchange: str, k: int) -> bytes:
        return b"sent %d: " % k + await self.load_request(exchange)

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


def make_use(n: int = 1, read: int | None = 80, cause: Any = "", place: int = 0, **changes: Any) -> CacheCall:
    """A call of a hundred tokens of which eighty should have been read, at no known price."""
    missed = 80 - (read or 0) if cause else 0
    use = CacheUse(changes.get("use") or ("missed" if cause else "read"), read, None, 80, missed, cause, place)
    use = structs.replace(use, why=changes.get("epoch_why", ""), idle=7.0)
    made = CacheCall(
        n=n,
        exchange=f"x{n}",
        opened_ms=EXCHANGE.opened_ms,
        upstream="openai",
        model="gpt-5",
        input=100,
        read=read,
        written=None,
        expected=80,
        missed=missed,
        use=use.use,
        cause=use.cause,
        explanation=tell_miss(use, ()),
        message=place or None,
        parameters=[],
        epoch_why=use.why,
        is_told=False,
        idle_seconds=7.0,
        cost=0.9 * missed,
        money=None,
        saved=None,
    )
    return structs.replace(made, **changes)


def tip_of(name: str) -> bytes:
    """A node by a name of up to 16 characters."""
    return name.encode().ljust(16, b"\0")


def stand(n: int, tip: str, depth: int, relation: str = "append", **changes: object) -> ExchangeRow:
    """An exchange that has a place in the session's tree."""
    return exchange(n, tip=tip_of(tip), depth=depth, relation=relation, **changes)


def branch(
    tip: str,
    depth: int,
    numbers: Sequence[int],
    relation: Relation = "append",
    left: str = "",
    depths: Sequence[int] = (),
    trunk: BranchRow | None = None,
    shared: int = 0,
) -> BranchRow:
    """A branch with the exchanges of these numbers as its own; the depths are those of `TREE` unless told."""
    of_tree = {row.n: row.depth for row in TREE}
    calls = tuple(Call(n, f"x{n}", depths[i] if depths else of_tree.get(n, 1)) for i, n in enumerate(numbers))
    return BranchRow(tip_of(tip), depth, calls, relation, tip_of(left) if left else b"", False, trunk, shared)


def exchange(n: int, **changes: object) -> ExchangeRow:
    """Another exchange of the same session."""
    return replace(EXCHANGE, id=f"x{n}", n=n, **changes)  # type: ignore[arg-type]


# Turns 1, 2 and 3; 4 is the second turn put otherwise, and 5 goes on from it; 6 asks the second turn again; 7 is a
# side call, 8 a call that is not read.
TREE = (
    stand(1, "one", 1, "root"),
    stand(2, "two", 3),
    stand(3, "three", 5),
    stand(4, "four", 3, "branch"),
    stand(5, "five", 5),
    stand(6, "two", 3, "retry"),
    stand(7, "seven", 1, "root", is_side=True),
    exchange(8, wire="", model="", kind="passthrough", method="GET", target="/v1/models"),
)
_FIRST = branch("three", 5, (1, 2, 6, 3), "root")
BRANCHES = (
    _FIRST,
    branch("five", 5, (4, 5), "branch", left="answer", trunk=_FIRST, shared=1),
    replace(branch("seven", 1, (7,), "root"), is_side=True),
)


def tree_log() -> FakeLog:
    """A log with one session that has branches."""
    bodies = {row.id: b'{"messages":[{"role":"user","content":"%d"}]}' % row.n for row in TREE}
    return FakeLog(exchanges=TREE, bodies=bodies, branches=BRANCHES)
