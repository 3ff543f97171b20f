"""The byte manifest: how a body is stored so that a log of repeated histories grows only by what is new.

A body is a *recipe*: literal bytes, *blobs* (large members, named by digest) and one *chain* (the elements of the
message array). A link identifies everything from the root of its chain: `link = H(parent, gap, digest of the slice)`.
So two bodies with the same beginning share their links, and the digest of a recipe proves every byte of the body.
The pieces cover the body exactly, or the body is kept whole. The values that are made for
every call and message are msgspec structs: a frozen dataclass of eleven fields takes 1.7 µs to make, a struct 0.1.
"""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

DIGEST_SIZE = 32
LINK_SIZE = 16

_LITERAL, _BLOB, _CHAIN = 0, 1, 2
# The head of an encoded body may have a time or a size in it, which differ where the rest is the same.
_ENCODED_HEAD, _ENCODED_PIECE = 16, 4096


class Slice(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One element of a chain. `gap` is the bytes between the previous element (or the bracket) and `content`.

    `content` is None if the log has it already, under its digest, from another chain of the same tenant.
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
    """A piece of a recipe that is the blob with this digest."""

    digest: bytes


class ChainPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece of a recipe that is every gap and slice from the root of the chain to `link`."""

    link: bytes


Piece = bytes | BlobPiece | ChainPiece


class Manifest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One body as it goes to the store: its recipe, and the slices and blobs that may be new to the store.

    `slices` are ordered parents first. `size` is that of the body in bytes. A body that adds more than the record cap
    is not kept whole: `whole_digest` is then the SHA-256 of all of it, else empty.
    """

    recipe: bytes
    slices: tuple[Slice, ...]
    blobs: tuple[Blob, ...]
    size: int
    whole_digest: bytes = b""

    @property
    def weight(self) -> int:
        """The bytes of content that this manifest holds in memory."""
        slices = sum([len(each.content or b"") + 96 for each in self.slices])
        return len(self.recipe) + slices + sum([len(each.content) for each in self.blobs])


def compute_digest(content: bytes) -> bytes:
    """Return the SHA-256 of the content, 32 bytes."""
    return hashlib.sha256(content).digest()


def compute_root_link(tenant: bytes) -> bytes:
    """Return the parent of a tenant's first links. Each tenant has its own, so tenants never share a link."""
    return hashlib.sha256(b"root\0" + tenant).digest()[:LINK_SIZE]


def compute_link(parent: bytes, gap: bytes, digest: bytes) -> bytes:
    """Return the link of a slice: H(parent, gap, digest), 16 bytes."""
    return hashlib.sha256(b"%s%d:%s%s" % (parent, len(gap), gap, digest)).digest()[:LINK_SIZE]


def chain_slices(parent: bytes, elements: Iterable[tuple[bytes, bytes]]) -> Iterator[Slice]:
    """Yield a slice for each (gap, content) pair, the first linked to `parent`, each later one to the one before."""
    for gap, content in elements:
        digest = compute_digest(content)
        link = compute_link(parent, gap, digest)
        yield Slice(link, parent, gap, digest, content)
        parent = link


def make_manifest(content: bytes) -> Manifest:
    """Return the manifest of a body that is not split: a single blob, or nothing if it is empty."""
    if not content:
        return Manifest(b"", (), (), 0)
    digest = compute_digest(content)
    return Manifest(encode_recipe((BlobPiece(digest),)), (), (Blob(digest, content),), len(content))


def make_capped_manifest(content: bytes, cap: int) -> Manifest:
    """Return the manifest of a body that is not split: all of it, or its first `cap` bytes if it has more."""
    if len(content) <= cap:
        return make_manifest(content)
    return make_head_manifest(content[:cap], len(content), compute_digest(content))


def make_head_manifest(head: bytes, size: int, whole_digest: bytes) -> Manifest:
    """Return the manifest of a body above the record cap: its head, its full size and the digest of all of it."""
    kept = make_manifest(head)
    return Manifest(kept.recipe, (), kept.blobs, size, whole_digest)


def make_encoded_manifest(tenant: bytes, content: bytes, cap: int) -> Manifest:
    """Return the manifest of a body in a content-encoding: a chain of pieces of it, or its head if it is above the cap.

    Encoders work from the front, so that bodies which begin alike have their first pieces in common.
    """
    if len(content) > cap:
        return make_capped_manifest(content, cap)
    starts = range(_ENCODED_HEAD, len(content), _ENCODED_PIECE)
    pieces = [(b"", content[start : start + _ENCODED_PIECE]) for start in starts]
    slices = tuple(chain_slices(compute_root_link(tenant), pieces))
    chain = [ChainPiece(each.link) for each in slices[-1:]]
    return Manifest(encode_recipe((content[:_ENCODED_HEAD], *chain)), slices, (), len(content))


def encode_recipe(pieces: Iterable[Piece]) -> bytes:
    """Encode each piece as tag, length (4 bytes, big-endian) and content."""
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
    """Decode a recipe that `encode_recipe` made. Raises ValueError on anything else."""
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
