"""Contexts over fakes: requests of one history, epochs of it, and a log that knows what it was told."""

import asyncio
from typing import Any

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, StoredContext
from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import SessionKey
from tests.support.engine import FakeArchive
from tests.support.managing import MODEL, SESSION, make_history, make_subject

HISTORY = make_history(6)
BUDGET = make_budget(100_000, None, 1000, BudgetPolicy(ceiling_tokens=50_000))


def ask(count: int = len(HISTORY), session: str = SESSION.id, *, base: int = 1, exchange: str = "x1") -> ManagedRequest:
    """A request with the first messages of the history."""
    key = SessionKey(session, SESSION.tenant, "main", "family")
    return make_subject(HISTORY[:count], exchange, base=base, session=key)


def make_epoch(name: str, depth: int = 4, **fields: Any) -> Epoch:
    """An epoch that stands for the first messages."""
    known: dict[str, Any] = {"session": SESSION.id, "view": MODEL, "parent": "", "tokens_after": 2000} | fields
    through = ask().nodes[depth - 1] if depth else ask().chain.root
    return Epoch(
        name,
        known["session"],
        known["view"],
        known["parent"],
        through,
        depth,
        known.get("why", "soft"),
        name,
        1,
        9000,
        known["tokens_after"],
        b"[]",
        known.get("rendered", (b"r" * 1000,)),
        known.get("originals", ()),
    )


class StatedArchive(FakeArchive):
    """Knows what it was told of sessions; may hold its answers back, or have none."""

    def __init__(self, **known: StoredContext) -> None:
        super().__init__()
        self.known = known
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_broken = False

    async def load_context(self, session: str) -> StoredContext:
        self.asked.append(session)
        await self.may_answer.wait()
        if self.is_broken:
            raise StoreUnavailable("the log cannot be read")
        return self.known.get(session, StoredContext())
