"""Calls for summaries over fakes, with the parts that a summarizer is built of, in a session with one request."""

import asyncio
from typing import Any

from proxy.context.budget import BudgetPolicy
from proxy.engine.compaction.credentials import CallCredential
from proxy.engine.compaction.model_call import FailedCall, ModelCall, ModelCaller, ModelResponse
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


class Setup:
    """What calls models, and its engine."""

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
        engine, counting = self.engine, TokenCounter(QuarterTokens())
        self.catalog = StatedCatalog(1_000_000)
        models = Models(
            *(self.catalog, counting, BudgetPolicy(), engine.clock, engine.tasks.spawn), providers=providers or {}
        )
        self.memory = ContextCaches(engine.archive, counting, 1 << 24)
        limits = policy or CompactionPolicy()
        self.caller = ModelCaller(limits, engine_policy, engine.relay, self.memory, models, engine.ids)
        self.health = self.caller.health

    def make_call(self, **changes: Any) -> ModelCall:
        """A question in the session of tests."""
        upstream: Upstream = self.upstream
        values: dict[str, Any] = {
            "session": SESSION,
            "credential": CallCredential(upstream, b"/v1/chat/completions?k=v", KEY),
            "upstream": upstream,
            "form": ChatCompletions(),
            "model": MODEL,
            "body": ASKING,
            "most_characters": 400,
            "expected": EXPECTED,
        }
        return ModelCall(**{**values, **changes})

    def begin(self, **changes: Any) -> "asyncio.Task[ModelResponse | FailedCall]":
        """Ask in a task of its own."""
        return asyncio.create_task(self.caller.call(self.make_call(**changes), is_manual=True))

    def list_events(self, kind: type[Any]) -> list[Any]:
        """The events of a kind so far."""
        return [event for event in self.engine.events if isinstance(event, kind)]
