"""Caches of the log for managed sessions: a dropped entry costs time or bytes, never correctness."""

from collections.abc import Iterable, Mapping

from proxy.engine.context.epoch_planner import FeatureCache
from proxy.engine.context.history_counter import HistoryCounter
from proxy.engine.context.session_context import SessionContexts
from proxy.engine.conversations.bodies import (
    BodyCache,
    CachedBody,
    Copied,
    build_manifest,
    find_kept,
    list_links,
    split_known,
)
from proxy.engine.models import PromptSizes
from proxy.engine.policy import RECORD_CAP_BYTES
from proxy.engine.ports import Archive
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter
from proxy.model.lru import LruCache
from proxy.model.manifest import Manifest, make_capped_manifest
from proxy.model.shared_list import count_common, extend_shared
from proxy.wire.body import ByteRange, SplitBody

_MOST_SESSIONS = 1024


class SentBodies:
    """Builds manifests of rewritten bodies, each relative to the previous one of its session and view.

    At most `record_cap` bytes of a larger body are kept.
    """

    def __init__(self, cache_bytes: int, record_cap: int = RECORD_CAP_BYTES) -> None:
        self._bodies = BodyCache(cache_bytes)
        self._cap = record_cap

    def keep(self, request: ManagedRequest, content: bytes, depth: int = 0) -> Manifest:
        """Build the manifest of a body whose first `depth` messages were replaced and whose rest is the client's.

        If the body only extends the previous one, nothing else is compared.
        """
        key = (request.session.tenant, request.wire, f"{request.session.id}\0{request.view}")
        newest = self._bodies.find_newest(key) if depth else None
        copied: Copied | None
        grown = _grow(request, content, depth, newest) if newest is not None else None
        if grown is not None:
            known, (split, shared, copied) = newest, grown
        else:
            known, shared = self._bodies.find(key, content)
            found = split_known(content, request.items_key, known, shared)
            if found is None:
                return self.keep_apart(content)
            split, copied = found, _find_copied(request, found, depth) if depth else None
        kept_part = None
        if len(content) > self._cap:
            kept_part = find_kept(split, self._cap, list_links(known, shared), known, _find_lent(request, split))
        tenant, chain = request.session.tenant, request.chain
        manifest, cached = build_manifest(tenant, split, chain, known, shared, copied=copied, kept_part=kept_part)
        if cached is not None:
            self._bodies.remember(key, cached, known)
        return manifest

    def keep_apart(self, content: bytes) -> Manifest:
        """Build the manifest of a body without reference to another, up to the cap."""
        return make_capped_manifest(content, self._cap)

    def clear(self) -> None:
        """Forget everything, because the log has lost a record that later manifests would refer to."""
        self._bodies.clear()


def _grow(
    request: ManagedRequest, content: bytes, depth: int, known: CachedBody
) -> tuple[SplitBody, int, Copied] | None:
    """Split a body that continues the known one. Return the split, the number of shared items, and what is copied.

    Return None if the body does not continue the known one. What the client's requests share was compared when they
    arrived: their byte ranges are then in one shared sequence.
    """
    copied, client, start = known.copied, request.split, request.chain.preamble.count + depth
    if copied is None or copied.start != start:
        return None
    shared = count_common(copied.items, client.items)
    if shared < start:
        return None
    moved, end = len(content) - len(client.content), client.items[start - 1].end
    front = known.split.items[copied.at - 1].end
    if front != end + moved or not content.startswith(known.split.content[:front]):
        return None
    kept = copied.at + shared - start
    fresh = [ByteRange(span.start + moved, span.end + moved) for span in client.items[shared:]]
    members = {name: _move(span, end, moved) for name, span in client.members.items()}
    split = SplitBody(content, members, extend_shared(known.split.items, kept, fresh))
    return split, kept, Copied(client.items, start, copied.at)


def _find_copied(request: ManagedRequest, split: SplitBody, depth: int) -> Copied | None:
    """Return the client's body as what a rewritten one has of it, or None if more than `depth` messages differ."""
    client, start = request.split, request.chain.preamble.count + depth
    at = len(split.items) - (len(client.items) - start)
    is_so = split.content.endswith(client.content[client.items[start - 1].end :])
    return Copied(client.items, start, at) if is_so else None


def _find_lent(request: ManagedRequest, split: SplitBody) -> range:
    """Return the range of items at a body's end that the log already has, since they are the client's own."""
    ours, theirs, client = split.items, request.split.items, request.split.content
    same = 0
    for own, other in zip(reversed(ours), reversed(theirs), strict=False):
        if split.content[own.start : own.end] != client[other.start : other.end]:
            break
        same += 1
    unkept = len(theirs) - request.kept_part.stop if request.kept_part is not None else 0
    return range(len(ours) - same, len(ours) - unkept)


def _move(span: ByteRange, at: int, by: int) -> ByteRange:
    """Shift a member's range by `by` bytes from the position `at` on."""
    return ByteRange(span.start if span.start < at else span.start + by, span.end if span.end <= at else span.end + by)


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

    def forget(self, sessions: Iterable[str]) -> None:
        """Forget what may have content that the log has no more: of all sessions what is soon found again."""
        self.forget_lost()
        self.features.clear()
        for session in sessions:
            self.sentences.pop(session)
