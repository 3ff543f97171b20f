"""Epochs and what they name, checked. Rule: one at a time is in memory; seals and contents are checked in `verify`.

The seal of an epoch commits to its digest, and its digest to all that it sends and refers to.
"""

import sqlite3
from collections.abc import Iterator

from proxy.model.epoch import Original
from proxy.model.log import LogFault
from proxy.store.sqlite.epochs import commit

_EPOCHS = """
    SELECT x.seq, s.tenant, x.rendered, x.originals, x.digest FROM epoch x LEFT JOIN session s ON s.id = x.session
    ORDER BY x.seq"""
_RENDERED = """
    SELECT b.digest FROM json_each(?) m LEFT JOIN blob b ON b.id = m.value AND b.tenant = ? ORDER BY m.key"""
_NAMED = """
    SELECT s.key, s.tenant, o.name, o.wire, o.place, o.start, o.messages FROM json_each(?) m
    LEFT JOIN original o ON o.id = m.value LEFT JOIN session s ON s.id = o.session ORDER BY m.key"""
_UNNAMED = "SELECT id FROM original EXCEPT SELECT m.value FROM epoch x, json_each(x.originals) m"


def check_context(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """What is wrong with epochs and references."""
    for seq, tenant, rendered, originals, digest in connection.execute(_EPOCHS):
        what = _judge(connection, tenant, (rendered, originals), digest)
        if what:
            yield LogFault(f"epoch {seq}", what)
    for (original,) in connection.execute(_UNNAMED):
        yield LogFault(f"original {original}", "no epoch names it")


def _judge(connection: sqlite3.Connection, tenant: int, lists: tuple[str, str], digest: bytes) -> str:
    try:
        rendered = _list_digests(connection, lists[0], tenant)
        named = [
            (key, Original(name, _list_digests(connection, messages, owner), wire, place, start))
            for key, owner, name, wire, place, start, messages in connection.execute(_NAMED, (lists[1],))
        ]
        made = commit(rendered, named)
    except sqlite3.OperationalError as error:  # a list that is no JSON
        return f"what it names cannot be read: {error}"
    if None in rendered or any(key is None or None in each.digests for key, each in named):
        return "it names content that is not in the log"
    return "" if made == digest else "its digest does not match: what it names was altered"


def _list_digests(connection: sqlite3.Connection, blobs: str, tenant: int) -> tuple[bytes, ...]:
    """The digest of each; None for one that the tenant does not have."""
    return tuple(digest for (digest,) in connection.execute(_RENDERED, (blobs, tenant)))
