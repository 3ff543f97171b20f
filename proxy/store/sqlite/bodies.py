"""Bodies put together again from their pieces. Rule: every byte, or an error that says what is missing.

SQLite walks the chain and unpacks the payloads in the reader's thread; the event loop only joins.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import aiosqlite

from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.manifest import BlobPiece, Piece, root_of
from proxy.store.sqlite.envelope import join_recipe

# The longest chain that is followed: beyond any body that fits in memory, and an end where a fault made a ring.
_LONGEST = 4_000_000

_WALK = f"""
    WITH RECURSIVE chain(depth, parent, gap, blob) AS (
        SELECT 0, parent, gap, blob FROM raw WHERE link = ?
        UNION ALL
        SELECT chain.depth + 1, raw.parent, raw.gap, raw.blob FROM chain JOIN raw ON raw.link = chain.parent
        LIMIT {_LONGEST})
    SELECT chain.parent, chain.gap, iif(p.codec = 0, p.bytes, unpack(p.codec, p.bytes))
    FROM chain LEFT JOIN payload p ON p.id = chain.blob ORDER BY chain.depth DESC"""

_PAYLOAD = "SELECT unpack(codec, bytes) FROM payload WHERE id = ?"

_BLOB = """
    SELECT unpack(p.codec, p.bytes) FROM blob b LEFT JOIN payload p ON p.id = b.id
    WHERE b.tenant = ? AND b.digest = ?"""

_HAS_LINK = "SELECT 1 FROM raw WHERE link = ?"

_FINGERPRINT = "SELECT fingerprint FROM tenant WHERE id = ?"


def count_links(connection: sqlite3.Connection, links: Sequence[bytes]) -> int:
    """How many of the links of a chain, in its order, are stored: where one is, all before it are."""
    return bisect_left(links, True, key=lambda link: connection.execute(_HAS_LINK, (link,)).fetchone() is None)


async def load_payload(connection: aiosqlite.Connection, payload: int) -> bytes:
    """Content by number. Raises NotFound where it was erased."""
    return _expect_content(await connection.execute_fetchall(_PAYLOAD, (payload,)))


async def load_body(connection: aiosqlite.Connection, tenant: int, envelope: int, tip: bytes) -> bytes:
    """The body that an envelope and the tip of a chain stand for. Raises NotFound where a part was erased."""
    recipe = await load_payload(connection, envelope)
    try:
        pieces = join_recipe(recipe, tip)
    except ValueError as error:
        raise StoreUnavailable(f"a recipe in the log is damaged ({error}); run `palimpsest verify`") from error
    return b"".join([await _load_piece(connection, tenant, piece) for piece in pieces])


async def _load_piece(connection: aiosqlite.Connection, tenant: int, piece: Piece) -> bytes:
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, BlobPiece):
        return _expect_content(await connection.execute_fetchall(_BLOB, (tenant, piece.digest)))
    return await _load_chain(connection, tenant, piece.link)


async def _load_chain(connection: aiosqlite.Connection, tenant: int, tip: bytes) -> bytes:
    rows = list(await connection.execute_fetchall(_WALK, (tip,)))
    start = rows[0][0] if rows else tip
    ((fingerprint,),) = await connection.execute_fetchall(_FINGERPRINT, (tenant,))
    if start != root_of(fingerprint):
        raise StoreUnavailable("a chain in the log does not reach its root; run `palimpsest verify`")
    parts: list[bytes] = []
    for _, gap, content in rows:
        if content is None:
            raise NotFound("a part of this body was erased")
        parts += (gap, content)
    return b"".join(parts)


def _expect_content(rows: Iterable[sqlite3.Row]) -> bytes:
    content = next((content for (content,) in rows), None)
    if content is None:
        raise NotFound("this content was erased")
    return bytes(content)
