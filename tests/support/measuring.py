"""Measured histories as calls find them: what was measured of a body is cached with it."""

from msgspec.structs import replace

from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.conversations.bodies import BodyCache, CachedBody, Key, MeasuredHistory, build_manifest
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter


def follow_on(before: ManagedRequest, subject: ManagedRequest) -> ManagedRequest:
    """A request with what was measured for the one before it."""
    return replace(subject, measured=dict(before.measured))


class MeasuredBodies:
    """Takes requests in a row as the reception does, and measures them."""

    def __init__(self, counter: TokenCounter, most: int = 1 << 30) -> None:
        self.bodies = BodyCache(most)
        self.counter = HistoryCounter(counter)

    def enter(self, subject: ManagedRequest) -> ManagedRequest:
        """The request with what is known of it, and its body in the cache."""
        subject, key, known, shared = self._look_up(subject)
        body = build_manifest(key[0], subject.split, subject.chain, known, shared, measured=subject.measured)[1]
        if body is not None:
            self.bodies.remember(key, body, known)
        return subject

    async def follow(self, subject: ManagedRequest) -> MeasuredHistory:
        return await self.counter.follow(self.enter(subject))

    def follow_now(self, subject: ManagedRequest) -> MeasuredHistory | None:
        return self.counter.follow_now(self.enter(subject))

    def find(self, subject: ManagedRequest) -> tuple[MeasuredHistory | None, int]:
        return self.counter.find(self._look_up(subject)[0])

    def _look_up(self, subject: ManagedRequest) -> tuple[ManagedRequest, Key, CachedBody | None, int]:
        key = subject.session.tenant, subject.wire, subject.session.id
        known, shared = self.bodies.find(key, subject.split.content)
        measured = self.bodies.find_measured(
            key, known, shared, subject.chain, (subject.session.upstream, subject.model)
        )
        return replace(subject, measured=measured), key, known, shared
