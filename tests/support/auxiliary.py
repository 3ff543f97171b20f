"""Calls of our own over fakes: an office as the assembly builds it, in a session with one request behind it."""

import asyncio
from collections.abc import Callable
from typing import Any

from proxy.context.budget import BudgetPolicy
from proxy.engine.compaction.calling import Answered, Errand, Unanswered
from proxy.engine.compaction.keys import CallCredential
from proxy.engine.compaction.office import Office, Premises, build_office
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.models import Models
from proxy.engine.policy import EnginePolicy, Provider
from proxy.engine.ports import Upstream
from proxy.engine.token_counter import TokenCounter
from proxy.model.exchange import Headers, Usage
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import Engine, ScriptedUpstream
from tests.support.managing import MODEL, SESSION, QuarterTokens, StatedCatalog

ASKING = b'{"model":"m","messages":[{"role":"user","content":"Report."}],"max_tokens":9,"stream":true}'
KEY: Headers = ((b"authorization", b"Bearer sk-a-secret-of-the-client"), (b"accept-encoding", b"gzip"))
EXPECTED = Usage(1000, 100)


class Desk:
    """An office, and the engine it stands in. What is to be done later is in `later`."""

    def __init__(
        self,
        upstream: Any = None,
        policy: CompactionPolicy | None = None,
        engine_policy: EnginePolicy | None = None,
        providers: dict[str, Provider] | None = None,
    ) -> None:
        self.upstream: Any = ScriptedUpstream() if upstream is None else upstream
        engine_policy = engine_policy or EnginePolicy(commit_wait_ms=60_000)
        self.engine = Engine(policy=engine_policy, is_instant=True)
        self.later: list[tuple[float, Callable[[], None]]] = []
        engine, counting = self.engine, TokenCounter(QuarterTokens())
        self.catalog = StatedCatalog(1_000_000)
        models = Models(self.catalog, counting, BudgetPolicy(), engine.clock, engine.tasks.spawn)
        self.memory = ContextCaches(engine.archive, counting, 1 << 24)
        premises = Premises(
            *(engine.relay, self.memory, models, engine.tasks, engine.bus, engine.clock, engine.ids),
            *(ChatCompletions(), providers or {}),
        )
        self.office: Office = build_office(policy or CompactionPolicy(), engine_policy, premises, self._note_later)

    def _note_later(self, seconds: float, work: Callable[[], None]) -> None:
        self.later.append((seconds, work))

    def errand(self, **changes: Any) -> Errand:
        """A question in the session of tests."""
        upstream: Upstream = self.upstream
        values: dict[str, Any] = {
            "session": SESSION,
            "key": CallCredential(upstream, b"/v1/chat/completions?k=v", KEY),
            "upstream": upstream,
            "model": MODEL,
            "body": ASKING,
            "most_characters": 400,
            "expected": EXPECTED,
        }
        return Errand(**{**values, **changes})

    def begin(self, **changes: Any) -> "asyncio.Task[Answered | Unanswered]":
        """Ask in a task of its own."""
        return asyncio.create_task(self.office.caller.ask(self.errand(**changes)))

    def list_events(self, kind: type[Any]) -> list[Any]:
        """The events of a kind so far."""
        return [event for event in self.engine.events if isinstance(event, kind)]
