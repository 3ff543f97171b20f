"""The byte manifest: how a body is kept so that a log of repeated histories grows only with what is new.

A body is a *recipe*: literal bytes, *blobs* (large members, named by digest) and one *chain* (the elements of the
message array). A chain's link names everything from its root: `link = H(parent, gap, digest of the slice)`, so two
bodies that begin alike share their links, and the digest of a recipe proves every byte of the body.
Pieces cover the body exactly, or the body is kept whole (BEHAVIOUR B20b, B32c). The values that are made for
every call and message are msgspec structs: a frozen dataclass of eleven fields takes 1.7 µs to make, a struct 0.1.
"""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

DIGEST_SIZE = 32
LINK_SIZE = 16

_LITERAL, _BLOB, _CHAIN = 0, 1, 2


class Slice(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One element of a chain: `gap` are the bytes between the element before (or the bracket) and `content`.

    `content` is None where the log has it already, under its digest, from another chain of the tenant's.
    """

    link: bytes
    parent: bytes
    gap: bytes
    digest: bytes
    content: bytes | None


class Blob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Content stored once per tenant under its SHA-256."""

    digest: bytes
    content: bytes


class BlobPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a recipe: the blob with this digest."""

    digest: bytes


class ChainPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a recipe: every gap and slice from the root of the chain to `link`."""

    link: bytes


Piece = bytes | BlobPiece | ChainPiece


class Manifest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One body as it goes to the store: the recipe, and the slices and blobs it may be the first to need.

    `slices` are ordered parents first. `size` is that of the body in bytes. A body that brings more than the record cap
    is not kept whole: `whole_digest` is then the SHA-256 of all of it, else empty.
    """

    recipe: bytes
    slices: tuple[Slice, ...]
    blobs: tuple[Blob, ...]
    size: int
    whole_digest: bytes = b""

    @property
    def weight(self) -> int:
        """Bytes of content this manifest holds in memory."""
        slices = sum([len(each.content or b"") + 96 for each in self.slices])
        return len(self.recipe) + slices + sum([len(each.content) for each in self.blobs])


def compute_digest(content: bytes) -> bytes:
    """Return the SHA-256, 32 bytes."""
    return hashlib.sha256(content).digest()


def compute_root_link(tenant: bytes) -> bytes:
    """Return the parent of a tenant's first links: chains of two tenants never meet."""
    return hashlib.sha256(b"root\0" + tenant).digest()[:LINK_SIZE]


def compute_link(parent: bytes, gap: bytes, digest: bytes) -> bytes:
    """Return the link of a slice: H(parent, gap, digest), 16 bytes."""
    return hashlib.sha256(b"%s%d:%s%s" % (parent, len(gap), gap, digest)).digest()[:LINK_SIZE]


def chain_slices(parent: bytes, elements: Iterable[tuple[bytes, bytes]]) -> Iterator[Slice]:
    """Yield (gap, content) pairs as slices linked behind `parent`, in order."""
    for gap, content in elements:
        digest = compute_digest(content)
        link = compute_link(parent, gap, digest)
        yield Slice(link, parent, gap, digest, content)
        parent = link


def make_manifest(content: bytes) -> Manifest:
    """Return the manifest of a body that is not split: a single blob, or nothing at all."""
    if not content:
        return Manifest(b"", (), (), 0)
    digest = compute_digest(content)
    return Manifest(encode_recipe((BlobPiece(digest),)), (), (Blob(digest, content),), len(content))


def make_capped_manifest(content: bytes, cap: int) -> Manifest:
    """Return the manifest of a body that is not split: all of it, or its head where it has more bytes than the cap."""
    if len(content) <= cap:
        return make_manifest(content)
    return make_head_manifest(content[:cap], len(content), compute_digest(content))


def make_head_manifest(head: bytes, size: int, whole_digest: bytes) -> Manifest:
    """Return the manifest of a body above the record cap: its head, its size and the digest of all of it."""
    kept = make_manifest(head)
    return Manifest(kept.recipe, (), kept.blobs, size, whole_digest)


def encode_recipe(pieces: Iterable[Piece]) -> bytes:
    """Encode pieces: tag, length (4 bytes, big-endian), content of each."""
    out = []
    for piece in pieces:
        if isinstance(piece, bytes):
            tag, content = _LITERAL, piece
        elif isinstance(piece, BlobPiece):
            tag, content = _BLOB, piece.digest
        else:
            tag, content = _CHAIN, piece.link
        out.append(b"%c%b%b" % (tag, len(content).to_bytes(4, "big"), content))
    return b"".join(out)


def decode_recipe(recipe: bytes) -> tuple[Piece, ...]:
    """Decode what `encode_recipe` encoded. Raises ValueError on anything else."""
    pieces: list[Piece] = []
    at = 0
    while at < len(recipe):
        tag, size = recipe[at], int.from_bytes(recipe[at + 1 : at + 5], "big")
        content = recipe[at + 5 : at + 5 + size]
        at += 5 + size
        if at > len(recipe):
            raise ValueError("recipe is cut short")
        pieces.append(_make_piece(tag, content))
    return tuple(pieces)


def _make_piece(tag: int, content: bytes) -> Piece:
    if tag == _LITERAL:
        return content
    if tag == _BLOB and len(content) == DIGEST_SIZE:
        return BlobPiece(content)
    if tag == _CHAIN and len(content) == LINK_SIZE:
        return ChainPiece(content)
    raise ValueError(f"no recipe piece has tag {tag} and {len(content)} bytes")
