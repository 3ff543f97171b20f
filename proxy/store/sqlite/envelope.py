"""A recipe as an envelope and a tip. Rule: what all calls with equal parameters share is one blob, the tip is the rest.

The envelope is the position of the chain piece in decimal (nothing where there is none), a line feed, and a recipe of
the other pieces. A recipe with several chains is kept as it is.
"""

from proxy.model.manifest import ChainPiece, Piece, decode_recipe, encode_recipe


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
