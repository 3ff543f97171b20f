"""A recipe as an envelope and a tip. Rule: what all calls with equal parameters share is one blob, the tip is the rest.

The envelope is the position of the chain piece in decimal (nothing where there is none), a line feed, and a recipe of
the other pieces. A recipe with several chains is kept as it is.
"""

import msgspec

from proxy.model.manifest import LINK_SIZE, BlobPiece, ChainPiece, Piece, decode_recipe, digest_of, encode_recipe
from proxy.store.sqlite.recent import Recent

_LINK = bytes(LINK_SIZE)
_BEFORE_LINK = encode_recipe((ChainPiece(_LINK),))[:-LINK_SIZE]
_LONGEST_KNOWN = 4096


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope, its digest, and the digests of the blobs that the recipe names."""

    content: bytes
    digest: bytes
    blobs: tuple[bytes, ...]


class Envelopes(Recent[tuple[bytes, bytes], Envelope]):
    """Envelopes by what stands before and behind the chain in their recipes: the next call of a client has the same."""

    def split(self, recipe: bytes) -> tuple[Envelope, bytes, tuple[bytes, ...]]:
        """Envelope, tip, and the links of all chains of a recipe. Raises ValueError for what is none."""
        at = recipe.find(_BEFORE_LINK) if len(recipe) <= _LONGEST_KNOWN else -1
        start = at + len(_BEFORE_LINK)
        end = start + LINK_SIZE
        key = recipe[:at], recipe[end:]
        known = self.get(key) if at >= 0 else None
        if known is not None:
            tip = recipe[start:end]
            return known, tip, (tip,)
        content, tip, pieces = split_recipe(recipe)
        blobs = tuple([piece.digest for piece in pieces if isinstance(piece, BlobPiece)])
        envelope = Envelope(content, digest_of(content), blobs)
        if tip and at >= 0 and _are_pieces(key[0]):
            self.put(key, envelope)
        return envelope, tip, tuple([piece.link for piece in pieces if isinstance(piece, ChainPiece)])


def _are_pieces(beginning: bytes) -> bool:
    """Whether a recipe's beginning ends between two pieces: else what looked like a chain stands in a literal."""
    try:
        decode_recipe(beginning)
    except ValueError:
        return False
    return True


def split_recipe(recipe: bytes) -> tuple[bytes, bytes, tuple[Piece, ...]]:
    """Envelope, tip and all pieces; the tip is empty where there is not just one chain.

    Raises ValueError for what is no recipe.
    """
    pieces = decode_recipe(recipe)
    chains = [(at, piece.link) for at, piece in enumerate(pieces) if isinstance(piece, ChainPiece)]
    if len(chains) != 1:
        return b"\n" + recipe, b"", pieces
    ((at, tip),) = chains
    return b"%d\n%b" % (at, encode_recipe(pieces[:at] + pieces[at + 1 :])), tip, pieces


def join_recipe(envelope: bytes, tip: bytes) -> tuple[Piece, ...]:
    """The pieces of a recipe. Raises ValueError for what `split_recipe` did not make."""
    at, _, rest = envelope.partition(b"\n")
    pieces = decode_recipe(rest)
    return (*pieces[: int(at)], ChainPiece(tip), *pieces[int(at) :]) if at else pieces
