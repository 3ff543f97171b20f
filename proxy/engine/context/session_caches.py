"""What is kept in memory of managed sessions. A cache of the log: forgetting costs time or bytes, never correctness."""

from proxy.engine.body_cache import BodyCache, BodySource, CachedBody, build_manifest, hold, list_links, split_known
from proxy.engine.context.epoch_scope import AnonymousEpochCache
from proxy.engine.context.history_cache import HistoryCache
from proxy.engine.context.session_context import SessionContexts
from proxy.engine.policy import RECORD_CAP_BYTES
from proxy.engine.ports import Archive
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import TokenCounter
from proxy.model.manifest import Manifest, make_capped_manifest
from proxy.model.shared_list import count_common, extend_shared
from proxy.wire.body import ByteRange, SplitBody


class SentBodies:
    """Manifests of rewritten bodies, each leaning on the one before it in its session and view.

    A body of more than `record_cap` bytes brings no more than that.
    """

    def __init__(self, cache_bytes: int, record_cap: int = RECORD_CAP_BYTES) -> None:
        self._histories = BodyCache(cache_bytes)
        self._cap = record_cap

    def keep(self, request: ManagedRequest, content: bytes, depth: int = 0) -> Manifest:
        """The manifest of a body; of one in which others stand for the first `depth` messages, and the rest as it came.

        Where only the end of that is new, nothing else is looked for.
        """
        key = (request.session.tenant, request.wire, f"{request.session.id}\0{request.model}")
        newest = self._histories.find_newest(key) if depth else None
        source: BodySource | None
        grown = _grow(request, content, depth, newest) if newest is not None else None
        if grown is not None:
            known, (split, shared, source) = newest, grown
        else:
            known, shared = self._histories.find(key, content)
            found = split_known(content, request.items_key, known, shared)
            if found is None:
                return self.keep_apart(content)
            split, source = found, _find_source(request, found, depth) if depth else None
        holding = None
        if len(content) > self._cap:
            holding = hold(split, self._cap, list_links(known, shared), known, _find_lent(request, split))
        tenant, chain = request.session.tenant, request.chain
        manifest, history = build_manifest(tenant, split, chain, known, shared, source=source, holding=holding)
        if history is not None:
            self._histories.remember(key, history, known)
        return manifest

    def keep_apart(self, content: bytes) -> Manifest:
        """The manifest of a body that leans on nothing, up to the cap."""
        return make_capped_manifest(content, self._cap)

    def clear(self) -> None:
        """Forget everything: the log has lost a record that later manifests would lean on."""
        self._histories.clear()


def _grow(
    request: ManagedRequest, content: bytes, depth: int, known: CachedBody
) -> tuple[SplitBody, int, BodySource] | None:
    """A body split after the known one, how many items they share, and its source; None where it goes not on from that.

    What the client's requests share was compared when they came: then they hold their places in one sequence.
    """
    source, client, start = known.source, request.split, request.chain.preamble.count + depth
    if source is None or source.start != start:
        return None
    shared = count_common(source.items, client.items)
    if shared < start:
        return None
    moved, end = len(content) - len(client.content), client.items[start - 1].end
    front = known.split.items[source.at - 1].end
    if front != end + moved or not content.startswith(known.split.content[:front]):
        return None
    kept = source.at + shared - start
    fresh = [ByteRange(span.start + moved, span.end + moved) for span in client.items[shared:]]
    members = {name: _move(span, end, moved) for name, span in client.members.items()}
    split = SplitBody(content, members, extend_shared(known.split.items, kept, fresh))
    return split, kept, BodySource(client.items, start, source.at)


def _find_source(request: ManagedRequest, split: SplitBody, depth: int) -> BodySource | None:
    """What a body was made of, where it is the client's but for the messages that others stand for."""
    client, start = request.split, request.chain.preamble.count + depth
    at = len(split.items) - (len(client.items) - start)
    is_so = split.content.endswith(client.content[client.items[start - 1].end :])
    return BodySource(client.items, start, at) if is_so else None


def _find_lent(request: ManagedRequest, split: SplitBody) -> range:
    """The items at a body's end that are the client's own, word for word: as far as it is in the log they are, too."""
    ours, theirs, client = split.items, request.split.items, request.split.content
    same = 0
    for own, other in zip(reversed(ours), reversed(theirs), strict=False):
        if split.content[own.start : own.end] != client[other.start : other.end]:
            break
        same += 1
    unkept = len(theirs) - request.holding.stop if request.holding is not None else 0
    return range(len(ours) - same, len(ours) - unkept)


def _move(span: ByteRange, at: int, by: int) -> ByteRange:
    """A member of a body in which what stands before `at` has another length."""
    return ByteRange(span.start if span.start < at else span.start + by, span.end if span.end <= at else span.end + by)


class ContextCaches:
    """Contexts, paths, sent bodies and twins; each takes its part of `most_bytes`."""

    def __init__(
        self, archive: Archive, counting: TokenCounter, most_bytes: int, record_cap: int = RECORD_CAP_BYTES
    ) -> None:
        self._archive = archive
        self._generation = archive.health.generation
        self.contexts = SessionContexts(archive, most_bytes // 4)
        self.paths = HistoryCache(counting, most_bytes // 4)
        self.sent = SentBodies(most_bytes // 2, record_cap)
        self.twins = AnonymousEpochCache(most_bytes // 16)

    def forget_lost(self) -> None:
        """Forget what leans on records that the log has lost since this was called last."""
        generation = self._archive.health.generation
        if generation != self._generation:
            self._generation = generation
            self.contexts.clear()
            self.sent.clear()
            self.twins.clear()
