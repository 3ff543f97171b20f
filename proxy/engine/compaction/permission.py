"""Whether a model may be asked for a summary now (BEHAVIOUR B27, B29 to B31).

Rule: each reason not to says what it is, in words for people; whoever asks has a way without.
"""

from collections.abc import Collection
from dataclasses import dataclass

from proxy.engine.compaction.breaker import Breakers
from proxy.engine.compaction.keys import CallCredential
from proxy.engine.compaction.limits import RateLimits
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.compaction.spending import Purse
from proxy.engine.ports import Clock
from proxy.model.exchange import SessionKey, Usage
from proxy.wire.credentials import is_of_plan


@dataclass(frozen=True, slots=True)
class Permission:
    """Asks all who have a say. `owned` are the upstreams that are asked with a key of the settings."""

    policy: CompactionPolicy
    breakers: Breakers
    limits: RateLimits
    purse: Purse
    clock: Clock
    owned: Collection[str] = ()

    def find_objection(
        self,
        session: SessionKey,
        key: CallCredential,
        upstream: str,
        model: str,
        expected: Usage,
        *,
        is_wished: bool = False,
    ) -> str:
        """Why a call that will probably be counted so is not to be made; empty where it may be.

        One that a person wished may take more than a session's share, but not more than a day's.
        """
        if objection := self._object_to_key(session, key, upstream):
            return objection
        if not self.breakers.allows(upstream, model, self.clock.monotonic()):
            return f"{model} failed of late, and is left alone for a while"
        tokens = (expected.input or 0) + (expected.output or 0)
        if objection := self.limits.find_objection(upstream, session.tenant, model, tokens):
            return objection
        return self.purse.find_objection(session.id, self.purse.price(upstream, model, expected), is_wished=is_wished)

    def _object_to_key(self, session: SessionKey, key: CallCredential, upstream: str) -> str:
        if upstream in self.owned:
            return ""
        if upstream != session.upstream:
            return f"no client's key goes to another upstream; set api_key of {upstream}"
        if is_of_plan(key.headers) and not self.policy.subscription_calls:
            return "the credential is of a person's plan (compaction.subscription_calls)"
        return ""
