"""Bodies seen lately, so that a repeated history costs a comparison of bytes (0.1 ms per 800 KB) and is stored once.

Rule: memory only. Forgetting an entry costs time, never correctness: links and digests are derived from content, so a
manifest made from nothing names the same things.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from proxy.engine.lineage.chain import Chain
from proxy.model.growing import extend
from proxy.model.manifest import (
    Blob,
    BlobPiece,
    ChainPiece,
    Manifest,
    Piece,
    Slice,
    chain_slices,
    digest_of,
    encode_recipe,
    root_of,
)
from proxy.wire.body import Span, SplitBody, count_shared, split_after, split_body

_LARGE_MEMBER = 512
_ITEM_WEIGHT = 480
_MEMBER_WEIGHT = 200
_TAIL = 64
_NAMED_KEPT = 4
_UNNAMED_KEPT = 32
_WORTH_REMEMBERING = 4 * 1024


class Source(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What a body was made of: the client's items, which from `start` on stand in it word for word, from `at` on."""

    items: Sequence[Span]
    start: int
    at: int


class History(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A body that was seen: its split, the link after each item, the digest of each large member, its messages.

    `source` is None but for one that was made of a client's.
    """

    split: SplitBody
    links: Sequence[bytes]
    digests: Mapping[str, bytes]
    chain: Chain
    source: Source | None = None

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        split = self.split
        places = _ITEM_WEIGHT * len(self.links) + _MEMBER_WEIGHT * len(split.members)
        return len(split.content) + len(self.chain.preamble.orders) + places

    def continues(self, other: "History") -> bool:
        """Whether this one has all the items of the other, and perhaps more."""
        end = len(other.links)
        return end <= len(self.links) and self.links[end - 1] == other.links[-1]  # a link names all before it


Key = tuple[bytes, str, str]


class Histories:
    """Recently seen bodies by (tenant, wire, family), the least recently used dropped above `cache_bytes`."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._seen: OrderedDict[Key, list[History]] = OrderedDict()
        self._weight = 0

    def find(self, key: Key, content: bytes) -> tuple[History | None, int]:
        """The remembered body that shares most items with `content`, and how many; (None, 0) if none does."""
        best: History | None = None
        most = 0
        for history in reversed(self._seen.get(key, ())):
            if not _may_extend(history, content, is_named=bool(key[2])):
                continue
            shared = count_shared(content, history.split)
            if shared > most:
                best, most = history, shared
            if shared and shared == len(history.links):
                break
        return best, most

    def find_newest(self, key: Key) -> History | None:
        """The body remembered last."""
        entries = self._seen.get(key)
        return entries[-1] if entries else None

    def remember(self, key: Key, history: History, known: History | None) -> None:
        """Keep a body, in place of the one it continues."""
        if len(history.split.content) < _WORTH_REMEMBERING or history.weight > self._cache_bytes:
            return
        entries = self._seen.setdefault(key, [])
        self._seen.move_to_end(key)
        if known in entries and history.continues(known):
            entries.remove(known)
            self._weight -= known.weight
        entries.append(history)
        self._weight += history.weight
        if len(entries) > (_NAMED_KEPT if key[2] else _UNNAMED_KEPT):
            self._weight -= entries.pop(0).weight
        while self._weight > self._cache_bytes:
            self._drop_oldest()

    def holds(self, key: Key, history: History) -> bool:
        """Whether this very body is still remembered."""
        return any(entry is history for entry in self._seen.get(key, ()))

    def clear(self) -> None:
        """Forget everything: the log lost a record that later manifests would lean on."""
        self._seen.clear()
        self._weight = 0

    def _drop_oldest(self) -> None:
        key, entries = next(iter(self._seen.items()))
        self._weight -= entries.pop(0).weight
        if not entries:
            del self._seen[key]


def _may_extend(history: History, content: bytes, *, is_named: bool) -> bool:
    """A cheap look at the end of the remembered items; a family's own bodies are compared in any case."""
    if is_named:
        return True
    end = history.split.items[-1].end
    return content[end - _TAIL : end] == history.split.content[end - _TAIL : end]


def split_known(content: bytes, items_key: str, known: History | None, shared: int) -> SplitBody | None:
    """Split a body, leaving out what it shares with a remembered one."""
    split = split_after(content, items_key, known.split, shared) if known is not None and shared else None
    return split if split is not None else split_body(content, items_key)


def take_stock(
    tenant: bytes, split: SplitBody, chain: Chain, known: History | None, shared: int, source: Source | None = None
) -> tuple[Manifest, History | None]:
    """The manifest of a split body, with only what the remembered one did not bring; and what to remember of it."""
    if not split.items:
        return _keep_members(split, (), known)[0], None
    before = known.links if known is not None else ()
    parent = before[shared - 1] if shared else root_of(tenant)
    slices = tuple(chain_slices(parent, _elements(split, shared)))
    fresh = [s.link for s in slices]
    links = extend(before, shared, fresh) if shared else fresh
    manifest, digests = _keep_members(split, slices, known, links[-1])
    return manifest, History(split, links, digests, chain, source)


def _elements(split: SplitBody, start: int) -> list[tuple[bytes, bytes]]:
    content = split.content
    at = split.gap_before(start) if start < len(split.items) else 0
    pairs = []
    for span in split.items[start:]:
        pairs.append((content[at : span.start], content[span.start : span.end]))
        at = span.end
    return pairs


def _keep_members(
    split: SplitBody, slices: tuple[Slice, ...], known: History | None, link: bytes = b""
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest: literals, a blob per large member, the chain in place of the items."""
    content = split.content
    marks: list[tuple[int, int, Piece]] = []
    digests: dict[str, bytes] = {}
    blobs: list[Blob] = []
    first = split.gap_before(0) if split.items else -1
    for name, span in split.members.items():
        if span.start <= first < span.end:
            marks.append((first, split.items[-1].end, ChainPiece(link)))
        elif span.end - span.start >= _LARGE_MEMBER:
            value = content[span.start : span.end]
            digest = _known_digest(known, name, value)
            if not digest:
                digest = digest_of(value)
                blobs.append(Blob(digest, value))
            digests[name] = digest
            marks.append((span.start, span.end, BlobPiece(digest)))
    recipe = encode_recipe(_fill_gaps(content, marks))
    return Manifest(recipe, slices, tuple(blobs), len(content)), digests


def _known_digest(known: History | None, name: str, value: bytes) -> bytes:
    if known is None or name not in known.digests or known.split.member(name) != value:
        return b""
    return known.digests[name]


def _fill_gaps(content: bytes, marks: list[tuple[int, int, Piece]]) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    for start, end, piece in sorted(marks, key=lambda mark: mark[0]):
        pieces += (content[at:start], piece)
        at = end
    return [*pieces, content[at:]]
