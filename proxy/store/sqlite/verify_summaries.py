"""Summaries and what they name, checked. Rule: one at a time is in memory; seals and contents are checked in `verify`.

What one names is older than itself, so that there is no ring, and by induction every one leads to its messages.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

from proxy.model.log import LogFault
from proxy.store.sqlite.summaries import commit
from proxy.store.summaries import Stretch, find_flaw

_SUMMARIES = """
    SELECT x.seq, x.digest, s.tenant, x.messages, x.kind, x.wire, x.start, x.stop FROM summary x
    LEFT JOIN session s ON s.id = x.session ORDER BY x.seq"""
_MESSAGES = """
    SELECT b.digest FROM json_each(?) m LEFT JOIN blob b ON b.id = m.value AND b.tenant = ? ORDER BY m.key"""
_NAMED = """
    SELECT o.seq, o.id, o.wire, o.start, o.stop FROM summary_edge e LEFT JOIN summary o ON o.seq = e.other
    WHERE e.summary = ? AND e.relation = ? ORDER BY e.i"""
_LOOSE = """
    SELECT DISTINCT e.summary FROM summary_edge e
    WHERE e.relation NOT IN ('parent', 'supersedes') OR e.summary NOT IN (SELECT seq FROM summary)"""


def check_summaries(connection: sqlite3.Connection) -> Iterator[LogFault]:
    """What is wrong with summaries."""
    for seq, digest, *rest in connection.execute(_SUMMARIES):
        if what := _judge(connection, seq, digest, rest):
            yield LogFault(f"summary {seq}", what)
    for (summary,) in connection.execute(_LOOSE):
        yield LogFault(f"summary {summary}", "there are edges of it that no summary has")


def _judge(connection: sqlite3.Connection, seq: int, digest: bytes, row: list[Any]) -> str:
    tenant, listed, kind, *span = row
    parents, superseded = (connection.execute(_NAMED, (seq, name)).fetchall() for name in ("parent", "supersedes"))
    try:
        messages = [digest for (digest,) in connection.execute(_MESSAGES, (listed, tenant))]
    except sqlite3.OperationalError as error:  # a list that is no JSON
        return f"what it names cannot be read: {error}"
    others = [other for other, *_ in (*parents, *superseded)]
    if None in messages or None in others:
        return "it names content or a summary that is not in the log"
    if any(other >= seq for other in others):
        return "it names a summary that is not older"
    if commit(messages, *[[name for _, name, *_ in named] for named in (parents, superseded)]) != digest:
        return "its digest does not match: what it names was altered"
    spans = [[Stretch(*each) for _, _, *each in named] for named in (parents, superseded)]
    return find_flaw(kind, Stretch(*span), len(messages), *spans)
