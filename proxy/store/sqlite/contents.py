"""Content read by its numbers, many at a time. Rule: one statement, however many; what is missing is left out."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from proxy.model.errors import NotFound, StoreUnavailable
from proxy.store.sqlite.codec import unpack
from proxy.store.storable import fit_text

_SESSION = "SELECT id FROM session WHERE key = ?"
_DIGESTS = "SELECT id, digest FROM blob WHERE id IN (SELECT value FROM json_each(?))"
_CONTENTS = "SELECT id, codec, bytes FROM payload WHERE id IN (SELECT value FROM json_each(?))"

Row = tuple[Any, ...]


@contextmanager
def expect_sound() -> Iterator[None]:
    """Turn what damaged rows lead to into StoreUnavailable: no JSON in a list, an original or a digest not there."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise StoreUnavailable("what the log has of managed context is damaged; run `palimpsest verify`") from error


def find_session(connection: sqlite3.Connection, session: str) -> int:
    """The row of the session with this id. Raises NotFound."""
    row = connection.execute(_SESSION, (fit_text(session),)).fetchone()
    if row is None:
        raise NotFound(f"there is no session {session}")
    return int(row[0])


def load_digests(connection: sqlite3.Connection, blobs: Iterable[int]) -> Mapping[int, bytes]:
    """Digests of shared content, by number."""
    return {blob: digest for blob, digest in fetch(connection, _DIGESTS, blobs)}


def load_contents(connection: sqlite3.Connection, blobs: Iterable[int]) -> Mapping[int, bytes]:
    """What of it is there, by number."""
    return {blob: unpack(codec, stored) for blob, codec, stored in fetch(connection, _CONTENTS, blobs)}


def fetch(connection: sqlite3.Connection, query: str, ids: Iterable[int]) -> Sequence[Row]:
    """The rows of a query whose parameter is a list of numbers."""
    return connection.execute(query, (list_ids(ids),)).fetchall()


def list_ids(ids: Iterable[int]) -> str:
    """Numbers as a column, or a parameter, has them."""
    return orjson.dumps(list(ids)).decode()
