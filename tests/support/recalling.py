"""What tests of recall need: made conversations, a log that has them, and an index that answers what it is told."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.engine.recall.history import History, read_form
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.engine.recall.scope import Scope
from proxy.model.epoch import Epoch, Original, StoredOriginal
from proxy.model.errors import NotFound
from proxy.model.exchange import SessionKey
from proxy.model.lineage import compute_chain_root, extend_chain
from proxy.model.log import BranchRow, Call, ExchangeRow
from proxy.model.manifest import compute_digest
from proxy.model.search import Hit, IndexedEntry, IndexHealth, SearchAnswer, SearchQuery
from tests.support.fake_log import EXCHANGE, SESSION, FakeLog

WIRE = "chat_completions"
TENANT, OTHER_TENANT = b"t" * 16, b"o" * 16
NOW_MS = EXCHANGE.opened_ms + 7_200_000


def say(role: str, text: str) -> bytes:
    """A message of a text."""
    return json.dumps({"role": role, "content": text}).encode()


def ask(id: str, name: str, text: str = "", **arguments: Any) -> bytes:
    """A message of the assistant with one call."""
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return json.dumps({"role": "assistant", "content": text or None, "tool_calls": [call]}).encode()


def answer(id: str, text: str) -> bytes:
    """The output of a call."""
    return json.dumps({"role": "tool", "tool_call_id": id, "content": text}).encode()


def make_nodes(raws: Sequence[bytes], wire: str = WIRE) -> list[bytes]:
    """The nodes of messages, as a request that has them makes them."""
    return extend_chain(compute_chain_root("openai"), [read_form(wire, raw) for raw in raws])


def make_history(*raws: bytes, wire: str = WIRE) -> History:
    """The history of a request with these messages."""
    return History(wire, make_nodes(raws, wire), raws)


@dataclass
class RecallingLog(FakeLog):
    """Has originals by their ids, and to whom sessions belong."""

    originals: dict[str, StoredOriginal | Exception] = field(default_factory=dict)
    keys: dict[str, SessionKey] = field(default_factory=dict)
    epochs: Sequence[Epoch] = ()

    async def load_original(self, reference: str) -> StoredOriginal:
        found = self.originals.get(reference)
        if isinstance(found, StoredOriginal):
            return found
        raise found or NotFound(f"there is no reference {reference}")

    async def find_key(self, session: str) -> SessionKey:
        if session not in self.keys:
            raise NotFound(f"there is no session {session}")
        return self.keys[session]

    async def list_epochs(self, session: str) -> Sequence[Epoch]:
        return [epoch for epoch in self.epochs if epoch.session == session]

    def keep(self, name: str, raws: Sequence[bytes], place: int, *, session: str = "abc1", offset: int = 0) -> None:
        """Keep messages of a session as the original of a reference."""
        original = Original(name, tuple(map(compute_digest, raws)), WIRE, place, offset)
        self.originals[name] = StoredOriginal(session, original, tuple(raws))

    def add_epoch(self, history: History, *names: str, session: str = "abc1") -> None:
        """Keep an epoch that names these originals, and applies to a history."""
        kept = [found for name in names if isinstance(found := self.originals[name], StoredOriginal)]
        originals = tuple(each.original for each in kept)
        depth, through = len(history), history.nodes[-1]
        epoch = Epoch("e1", session, "gpt-5", "", through, depth, "soft", "x1", 1, 9, 3, b"[]", (), originals)
        self.epochs = (*self.epochs, epoch)

    def add_session(self, id: str, *, tenant: bytes = TENANT, **changes: Any) -> None:
        """Know a session."""
        self.keys[id] = SessionKey(id, tenant, "openai", id)
        self.sessions = (*[row for row in self.sessions if row.id != id], replace(SESSION, id=id, **changes))

    def add_call(self, session: str, history: History, n: int, **changes: Any) -> ExchangeRow:
        """Keep an exchange with the whole history as its request."""
        body = b'{"messages":[%b]}' % b",".join(history.raws)
        row = replace(EXCHANGE, id=f"{session}-{n}", session=session, n=n, tip=history.nodes[-1], **changes)
        self.exchanges = (*self.exchanges, row)
        self.bodies = {**self.bodies, row.id: body}
        call = Call(n, row.id, len(history))
        self.branches = (*self.branches, BranchRow(row.tip, len(history), (call,), "root", b"", False))
        return row


class MadeIndex:
    """Answers with hits that a test gives it, and keeps the queries."""

    def __init__(self, *hits: Hit, **answers: Any) -> None:
        self.hits = hits
        self.answers = answers
        self.queries: list[SearchQuery] = []
        self.entries: dict[str, IndexedEntry] = {}

    async def search(self, query: SearchQuery) -> SearchAnswer:
        self.queries.append(query)
        return SearchAnswer(hits=self.hits[: query.limit], **self.answers)

    async def find_entry(self, reference: str) -> IndexedEntry | None:
        return self.entries.get(reference)

    @property
    def health(self) -> IndexHealth:
        return IndexHealth()


class StoppedClock:
    """Stands still, two hours after what the log has."""

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


def make_hit(**changes: Any) -> Hit:
    """A hit in an output."""
    facts: dict[str, Any] = {
        **{"reference": "aaaaabbbbb", "session": "abc1", "node": b"n" * 16, "exchange": "x1", "n": 1},
        **{"role": "tool", "sender": "", "tool": "bash", "kind": "output", "at_ms": EXCHANGE.opened_ms},
        **{"snippet": "the line", "score": 1.0},
    }
    return Hit(**(facts | changes))


def make_entry(**changes: Any) -> IndexedEntry:
    """An entry of the index."""
    facts: dict[str, Any] = {
        **{"reference": "iiiiijjjjj", "tenant": TENANT.hex(), "session": "abc1", "node": b"n" * 16, "exchange": "x1"},
        **{"n": 1, "role": "assistant", "sender": "", "tool": "", "kind": "reasoning", "at_ms": EXCHANGE.opened_ms},
        **{"text": "I think it is the cache."},
    }
    return IndexedEntry(**(facts | changes))


def make_recall(log: RecallingLog, index: MadeIndex | None = None, **policy: Any) -> Recall:
    """Recall over a log and an index."""
    return Recall(log, index or MadeIndex(), StoppedClock(), RecallPolicy(**policy))


def make_log() -> RecallingLog:
    """A log with one session of our tenant."""
    log = RecallingLog(exchanges=())
    log.add_session("abc1")
    return log


def scope_of(history: History, **changes: Any) -> Scope:
    """The scope of a request of that session with this history, all of which it sees."""
    facts: dict[str, Any] = {"tenant": TENANT, "session": "abc1", "history": history}
    return Scope(**(facts | changes))
