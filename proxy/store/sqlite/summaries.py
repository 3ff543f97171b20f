"""Summaries turned into rows. Rule: what one was made of is in the log, or it is refused; the same again is taken once.

A condensed one may have parents of a session that its own goes on from, and stand in place of some: an id cannot be
guessed, so that whoever names one has read it.
"""

from collections.abc import Sequence

import orjson

from proxy.model.manifest import digest_of
from proxy.model.summary import Summary
from proxy.store.sqlite.contents import list_ids
from proxy.store.sqlite.expected import expect_exchange, expect_message, expect_session
from proxy.store.sqlite.known import RowIdCache
from proxy.store.sqlite.problem import Dangling
from proxy.store.sqlite.rows import Rows
from proxy.store.sqlite.targets import Placed
from proxy.store.storable import fit_summary
from proxy.store.summaries import Identity, find_flaw, find_stretch

# sealed tables as in `batch`
INSERTS = {
    "summary": """INSERT INTO summary(
        seq, seal, session, text, notes, id, wire, start, stop, last, kind, level, is_provisional, tokens, covered,
        made_ms, exchange, model, calls, messages, digest)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "summary_edge": "INSERT INTO summary_edge(summary, relation, i, other) VALUES (?, ?, ?, ?)",
}


class Summaries:
    """What one transaction adds to summaries."""

    def __init__(self, known: RowIdCache, rows: Rows) -> None:
        self._known = known
        self._rows = rows

    def add(self, summary: Summary) -> None:
        """Turn a summary into rows.

        Raises Dangling, and ValueError for one that does not cover what it says or whose id means another one by now.
        """
        summary = fit_summary(summary)
        text = summary.text.encode()
        stretch = find_stretch(summary)
        identity = Identity(stretch, summary.last, summary.kind, summary.level, digest_of(text))
        known = self._known.targets.find_summary(summary.id)
        if known is None:
            parents = [self._expect(name) for name in summary.parents]
            superseded = [self._expect(name) for name in summary.supersedes]
            spans = [[each.identity.stretch for each in group] for group in (parents, superseded)]
            if flaw := find_flaw(summary.kind, stretch, len(summary.digests), *spans):
                raise ValueError(flaw)
            seq = self._append(summary, text)
            self._add_edges(seq, "parent", parents)
            self._add_edges(seq, "supersedes", superseded)
            self._known.targets.put_summary(summary.id, Placed(seq, identity))
        elif known.identity != identity:
            raise ValueError("its id stands for another summary already")

    def _append(self, summary: Summary, text: bytes) -> int:
        session, reference = expect_session(self._known, summary.session)
        exchange = expect_exchange(self._known, summary.exchange).seq if summary.exchange else None
        blobs = [expect_message(self._known, session.tenant, digest) for digest in summary.digests]
        contents = (text, orjson.dumps((summary.reason, summary.files)))
        return self._rows.append(
            "summary",
            (reference, *[self._rows.share(session.tenant, digest_of(content), content) for content in contents]),
            (
                summary.id,
                summary.wire,
                summary.start,
                summary.stop,
                summary.last,
                summary.kind,
                summary.level,
                int(summary.is_provisional),
                summary.tokens,
                summary.covered,
                summary.made_ms,
                exchange,
                summary.model,
                orjson.dumps(summary.calls).decode(),
                list_ids(blobs),
                commit(summary.digests, summary.parents, summary.supersedes),
            ),
        )

    def _add_edges(self, seq: int, relation: str, others: Sequence[Placed]) -> None:
        for i, other in enumerate(others):
            self._rows.add("summary_edge", (seq, relation, i, other.seq))

    def _expect(self, name: str) -> Placed:
        placed = self._known.targets.find_summary(name)
        if placed is None:
            raise Dangling("a summary that it refers to is not in the log")
        return placed


def commit(messages: Sequence[bytes | None], parents: Sequence[str], superseded: Sequence[str]) -> bytes:
    """The digest of what a summary was made of and stands in place of: digests of messages, ids of summaries."""
    return digest_of(orjson.dumps((messages, parents, superseded), default=bytes.hex))
