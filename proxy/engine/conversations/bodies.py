"""A cache of recent request bodies, so that a repeated history costs only a comparison of bytes and is stored once.

Comparing 800 KB takes 0.1 ms. The cache is in memory only. A dropped entry costs time, never correctness: links and
digests are derived from content, so a manifest built without the cache names the same objects.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.engine.lineage.chain import Chain
from proxy.model import Value
from proxy.model.lineage import count_shared_nodes
from proxy.model.manifest import (
    Blob,
    BlobPiece,
    ChainPiece,
    Manifest,
    Piece,
    Slice,
    chain_slices,
    compute_digest,
    compute_root_link,
    encode_recipe,
    make_capped_manifest,
)
from proxy.model.messages import Medium, MessageStructure
from proxy.model.shared_list import count_common, extend_shared
from proxy.wire.body import ByteRange, SplitBody, count_shared, split_after, split_body
from proxy.wire.validity import MessageRuns

_LARGE_MEMBER = 512
_ITEM_WEIGHT = 480
_MEMBER_WEIGHT = 200
_MEASURED_WEIGHT = 700
_TAIL = 64
_NAMED_KEPT = 4
_UNNAMED_KEPT = 32
_WORTH_REMEMBERING = 1536  # what was measured of fewer bytes is soon measured again
# The share of the record cap for the head of a message larger than the cap; the rest is for the call's other content.
_HEAD_SHARE = 0.75


class PromptPrefix(Value):
    """The part of a prompt before the messages: the digest of its instructions, its raw tools, and its tokens.

    The digest leaves out what changes with each request, and is no part of what providers cache
    (`Format.read_instructions`).
    """

    leading: bytes
    tools: bytes
    tokens: int


class MeasuredHistory(Value, eq=False):
    """The messages of a request after its preamble, with their structures and token counts."""

    nodes: Sequence[bytes]
    structures: Sequence[MessageStructure]
    sums: Sequence[int]  # tokens up to the end of each message, without the head's
    runs: MessageRuns
    head: PromptPrefix
    items: Sequence[ByteRange]  # of all items in the body that they were read from
    first: int  # index of the first message in `items`
    marked: tuple[int, ...] = ()  # indexes of messages with cache markers
    signed: tuple[int, ...] = ()  # indexes of messages with signed reasoning
    answers: int = 0  # messages of the assistant
    first_acting: int = 0  # index of the first message with a call or a result, or their number if there is none
    guessed: tuple[tuple[int, Medium], ...] = ()  # media whose sizes were not known, with the indexes of their messages

    def count(self, start: int, stop: int) -> int:
        """Return the tokens of the messages from `start` up to `stop`."""
        return self.count_to(stop) - self.count_to(start)

    def count_to(self, stop: int) -> int:
        """Return the tokens of the first `stop` messages."""
        return self.sums[stop - 1] if stop else 0

    def list_markers(self, stop: int | None = None) -> list[str]:
        """Return the retentions of the cache markers in the first `stop` messages, or in all."""
        places = self.marked if stop is None else [place for place in self.marked if place < stop]
        return [marker for place in places for marker in self.structures[place].markers]

    @property
    def tokens(self) -> int:
        """Tokens of the whole request."""
        return self.head.tokens + self.count_to(len(self.sums))

    def count_alike(self, nodes: Sequence[bytes], items: Sequence[ByteRange], first: int) -> int:
        """Count the first messages of a body that are the same in this history, with the same lengths in bytes.

        The messages, whose nodes these are, begin at the index `first` of the body's items.
        """
        shared = count_shared_nodes(self.nodes, nodes)
        same = count_common(self.items, items) - first if first == self.first else 0
        at = max(0, same)
        known = self.items[self.first + at : self.first + shared]
        for place, (old, new) in enumerate(zip(known, items[first + at : first + shared], strict=True), at):
            if old.end - old.start != new.end - new.start:
                return place
        return shared


Measures = dict[tuple[str, str], MeasuredHistory]
"""What was measured of a body's messages, by upstream and model."""


class Copied(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The client's body that another was made from. Its items from `start` on are in the other, from index `at` on."""

    items: Sequence[ByteRange]
    start: int
    at: int


class CachedBody(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A cached body: its split, the link of each item, the digest of each large member, and its messages.

    There are fewer links than items if the last ones did not fit under the record cap. `copied` is set only for a body
    that was made from a client's. `measured` grows while the body is cached; it is None for a body of ours.
    """

    split: SplitBody
    links: Sequence[bytes]
    digests: Mapping[str, bytes]
    chain: Chain
    copied: Copied | None = None
    measured: Measures | None = None

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly. A client's body counts as if its messages were measured already."""
        split = self.split
        places = _ITEM_WEIGHT * len(self.links) + _MEMBER_WEIGHT * len(split.members)
        if self.measured is not None:
            places += _MEASURED_WEIGHT * len(split.items)
        return len(split.content) + len(self.chain.preamble.instructions) + places

    def continues(self, other: "CachedBody") -> bool:
        """Return whether this body has all the items of the other, and perhaps more."""
        end = len(other.links)
        if not end:
            return True
        return end <= len(self.links) and self.links[end - 1] == other.links[-1]  # a link names all before it


Key = tuple[bytes, str, str]


class BodyCache:
    """Recent bodies by (tenant, wire, family). The least recently used are dropped above `cache_bytes`."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._seen: OrderedDict[Key, list[CachedBody]] = OrderedDict()
        self._weight = 0
        self.losses = 0  # how often all was dropped, which invalidates earlier results of `find`

    def find(self, key: Key, content: bytes) -> tuple[CachedBody | None, int]:
        """Return the cached body that shares most items with `content`, and their number, or (None, 0)."""
        best: CachedBody | None = None
        most, is_whole = 0, False
        for cached in reversed(self._seen.get(key, ())):
            # A client moves markers, so that of a named conversation all but the newest items may be shared. Behind a
            # body that is shared as a whole, and of others, only one whose end is there, too, is compared.
            items = cached.split.items
            if len(items) <= most:
                continue
            end = items[-1].end
            is_likely = bool(key[2]) and not is_whole
            if not is_likely and content[end - _TAIL : end] != cached.split.content[end - _TAIL : end]:
                continue
            shared = count_shared(content, cached.split)
            if shared > most:
                best, most = cached, shared
            is_whole |= 0 < shared == len(cached.links)
        return best, most

    def find_measured(
        self, key: Key, known: CachedBody | None, shared: int, chain: Chain, reader: tuple[str, str]
    ) -> Measures:
        """Return what was measured of the messages of a body that shares `shared` items with the `known` one.

        If they share no message, or that was not measured for this upstream and model, the `reader`, it is that of the
        body with most messages of the chain: clients write the time into system prompts, and side calls have models of
        their own.
        """
        measured = dict((known and known.measured) or {})
        if reader not in measured or shared <= chain.preamble.count:
            most = 0
            for each in reversed(self._seen.get(key, ())):
                found = (each.measured or {}).get(reader)
                if found and (count := count_shared_nodes(found.nodes, chain.nodes)) > most:
                    measured[reader], most = found, count
        return measured

    def find_newest(self, key: Key) -> CachedBody | None:
        """Return the body that was added last."""
        entries = self._seen.get(key)
        return entries[-1] if entries else None

    def remember(self, key: Key, cached: CachedBody, known: CachedBody | None) -> None:
        """Add a body, replacing the one that it continues."""
        if len(cached.split.content) < _WORTH_REMEMBERING or cached.weight > self._cache_bytes:
            return
        entries = self._seen.setdefault(key, [])
        self._seen.move_to_end(key)
        if known in entries and cached.continues(known):
            entries.remove(known)
            self._weight -= known.weight
        entries.append(cached)
        self._weight += cached.weight
        if len(entries) > (_NAMED_KEPT if key[2] else _UNNAMED_KEPT):
            self._weight -= entries.pop(0).weight
        while self._weight > self._cache_bytes:
            self._drop_oldest()

    def clear(self) -> None:
        """Forget everything, because the log has lost a record that later manifests would refer to."""
        self.losses += 1
        self._seen.clear()
        self._weight = 0

    def _drop_oldest(self) -> None:
        key, entries = next(iter(self._seen.items()))
        self._weight -= entries.pop(0).weight
        if not entries:
            del self._seen[key]


def split_known(
    content: bytes, items_key: str, known: CachedBody | None, shared: int, *, is_ours: bool = False
) -> SplitBody | None:
    """Split a body, reusing the split of the part that it shares with a cached one.

    One that `is_ours` is split however many items it has.
    """
    split = split_after(content, items_key, known.split, shared) if known is not None and shared else None
    if split is not None:
        return split
    return split_body(content, items_key, most_items=len(content)) if is_ours else split_body(content, items_key)


class KeptPart(msgspec.Struct, frozen=True, gc=False):
    """The part that the log keeps of a body larger than the record cap.

    The log already has the first items, whose links are `links`. It gets the items up to `stop`, as many as fit under
    the cap. An item larger than the cap is kept as its head. `lent` are items whose content it has from another chain.
    """

    cap: int
    links: Sequence[bytes]
    stop: int
    lent: range = range(0)

    def list_unkept(self, items: Sequence[ByteRange]) -> frozenset[int]:
        """Return the indexes of items that are not kept whole."""
        return frozenset(i for i, span in enumerate(items) if i >= self.stop or span.end - span.start > self.cap)

    def cut(self, item: bytes) -> bytes:
        """Return what is kept of an item that goes to the log."""
        return item[: weigh_item(len(item), self.cap)]


def weigh_item(size: int, cap: int) -> int:
    """Return how many bytes are kept of an item of `size` bytes. This is the same each time that it is sent."""
    return size if size <= cap else int(cap * _HEAD_SHARE)


def find_kept(
    split: SplitBody, cap: int, links: Sequence[bytes], known: CachedBody | None = None, lent: range = range(0)
) -> KeptPart:
    """Compute how much of a body is kept if the log already has these links and the members of the `known` body."""
    stop, count = len(links), len(split.items)
    room = cap - _weigh_new_members(split, known)
    at = split.gap_before(stop) if stop < count else 0
    while stop < count:
        span = split.items[stop]
        room -= span.start - at + (0 if stop in lent else weigh_item(span.end - span.start, cap))
        if room < 0:
            break
        at, stop = span.end, stop + 1
    return KeptPart(cap, links, stop, lent)


def list_links(known: CachedBody | None, shared: int) -> Sequence[bytes]:
    """Return the links of the first `shared` items of a cached body, as far as these are in the log."""
    if known is None:
        return ()
    return known.links if len(known.links) <= shared else known.links[:shared]


def link_items(tenant: bytes, split: SplitBody, cap: int, links: Sequence[bytes]) -> list[bytes]:
    """Return the links of all items, of which `links` are the first. Blocks while it hashes the others."""
    parent = links[-1] if links else compute_root_link(tenant)
    elements = _elements(split, len(links), len(split.items), cap)
    return [*links, *[each.link for each in chain_slices(parent, elements)]]


def build_manifest(
    tenant: bytes,
    split: SplitBody,
    chain: Chain,
    known: CachedBody | None,
    shared: int,
    *,
    copied: Copied | None = None,
    measured: Measures | None = None,
    kept_part: KeptPart | None = None,
) -> tuple[Manifest, CachedBody | None]:
    """Build the manifest of a split body, without what the `known` one has. Return it, and the body to cache.

    A `kept_part` limits what is kept of the body. Without one all of it is kept. `measured` is as in `CachedBody`.
    """
    if kept_part is not None and _weigh_new_members(split, known) > kept_part.cap:
        return make_capped_manifest(split.content, kept_part.cap), None
    if not split.items:
        return _keep_members(split, (), known)[0], None
    before = list_links(known, shared) if kept_part is None else kept_part.links
    stop, cap = (len(split.items), len(split.content)) if kept_part is None else (kept_part.stop, kept_part.cap)
    start, root = len(before), compute_root_link(tenant)
    slices = tuple(chain_slices(before[-1] if start else root, _elements(split, start, stop, cap)))
    fresh = [s.link for s in slices]
    links = extend_shared(before, start, fresh) if start else fresh
    if kept_part is not None and kept_part.lent:
        slices = tuple(
            [replace(each, content=None) if i in kept_part.lent else each for i, each in enumerate(slices, start)]
        )
    manifest, digests = _keep_members(split, slices, known, links[-1] if links else root, kept_part)
    return manifest, CachedBody(split, links, digests, chain, copied, measured)


def _elements(split: SplitBody, start: int, stop: int, cap: int) -> list[tuple[bytes, bytes]]:
    content = split.content
    at = split.gap_before(start) if start < stop else 0
    pairs = []
    for span in split.items[start:stop]:
        end = span.end if span.end - span.start <= cap else span.start + weigh_item(span.end - span.start, cap)
        pairs.append((content[at : span.start], content[span.start : end]))
        at = span.end
    return pairs


def _weigh_new_members(split: SplitBody, known: CachedBody | None) -> int:
    """Return the size of a body's members other than its items that the `known` one does not have, in bytes."""
    items = split.items[-1].end - split.gap_before(0) if split.items else 0
    names = known.digests if known is not None else ()
    seen = [len(value) for name in names if _known_digest(known, name, value := split.member(name))]
    return len(split.content) - items - sum(seen)


def _keep_members(
    split: SplitBody,
    slices: tuple[Slice, ...],
    known: CachedBody | None,
    link: bytes = b"",
    kept_part: KeptPart | None = None,
) -> tuple[Manifest, dict[str, bytes]]:
    """Build the manifest: literals, a blob per large member, the chain in place of the items.

    If the last item is not kept whole, nothing after it is kept, so that the kept part is the body's beginning.
    """
    content = split.content
    parts: list[tuple[int, int, Piece]] = []
    digests: dict[str, bytes] = {}
    blobs: list[Blob] = []
    first = split.gap_before(0) if split.items else -1
    unkept = kept_part.list_unkept(split.items) if kept_part is not None else ()
    end = split.items[-1].end if len(split.items) - 1 in unkept else len(content)
    for name, span in split.members.items():
        if span.start <= first < span.end:
            parts.append((first, split.items[-1].end, ChainPiece(link)))
        elif span.end - span.start >= _LARGE_MEMBER and span.end <= end:
            value = content[span.start : span.end]
            digest = _known_digest(known, name, value)
            if not digest:
                digest = compute_digest(value)
                blobs.append(Blob(digest, value))
            digests[name] = digest
            parts.append((span.start, span.end, BlobPiece(digest)))
    recipe = encode_recipe(_fill_gaps(content, parts, end))
    return Manifest(recipe, slices, tuple(blobs), len(content), compute_digest(content) if unkept else b""), digests


def _known_digest(known: CachedBody | None, name: str, value: bytes) -> bytes:
    if known is None or name not in known.digests or known.split.member(name) != value:
        return b""
    return known.digests[name]


def _fill_gaps(content: bytes, parts: list[tuple[int, int, Piece]], stop: int) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    for start, end, piece in sorted(parts, key=lambda part: part[0]):
        pieces += (content[at:start], piece)
        at = end
    return [*pieces, content[at:stop]]
