"""Caches of the log for managed sessions: a dropped entry costs time or bytes, never correctness."""

from collections.abc import Mapping

from proxy.engine.context.epoch_planner import FeatureCache
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.context.session_context import SessionContexts
from proxy.engine.conversations.sent_bodies import SentBodies
from proxy.engine.models import PromptSizes
from proxy.engine.policy import RECORD_CAP_BYTES
from proxy.engine.ports import Archive
from proxy.engine.token_counter import TokenCounter
from proxy.model.lru import LruCache

_MOST_SESSIONS = 1024


class ContextCaches:
    """Contexts, histories and sent bodies, each with at most `most_bytes`, and what is known of messages."""

    def __init__(
        self, archive: Archive, counter: TokenCounter, most_bytes: int, record_cap: int = RECORD_CAP_BYTES
    ) -> None:
        self._archive = archive
        self._generation = archive.health.generation
        self.contexts = SessionContexts(archive, most_bytes // 4)
        self.histories = HistoryCounter(counter)
        self.sent = SentBodies(most_bytes // 2, record_cap)
        self.prompts = PromptSizes()
        self.features = FeatureCache(most_bytes // 2)
        # What a model says in a sentence about contents of a session, by the hexadecimal SHA-256 of their text.
        self.sentences = LruCache[str, Mapping[str, str]](_MOST_SESSIONS)

    def forget_lost(self) -> None:
        """Forget what refers to records that the log has lost since the last call."""
        generation = self._archive.health.generation
        if generation != self._generation:
            self._generation = generation
            self.contexts.clear()
            self.sent.clear()

    def forget(self) -> None:
        """Forget what may have content that the log has no more, for all sessions: it is soon found again."""
        self.forget_lost()
        self.features.clear()
