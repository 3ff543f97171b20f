"""Records of managed context turned into rows. Rule: what stands in an epoch is in the log, or the epoch is refused.

A reference may come again with a later epoch, also with one of a session that goes on from another: it stands for the
same then, and the row that it has is named again.
"""

from collections.abc import Sequence

import orjson

from proxy.model.epoch import Epoch, Original, Pin
from proxy.model.manifest import digest_of
from proxy.model.plan import Plan
from proxy.store.sqlite.codec import TINY
from proxy.store.sqlite.contents import list_ids
from proxy.store.sqlite.expected import expect_exchange, expect_message, expect_session
from proxy.store.sqlite.known import RowIdCache, Session
from proxy.store.sqlite.problem import Dangling
from proxy.store.sqlite.rows import Rows
from proxy.store.sqlite.targets import ReferenceTarget
from proxy.store.storable import fit_epoch, fit_original, fit_plan

# parents before children; sealed tables as in `batch`
INSERTS = {
    "original": "INSERT INTO original(id, name, session, wire, place, start, messages) VALUES (?, ?, ?, ?, ?, ?, ?)",
    "epoch": """INSERT INTO epoch(
        seq, seal, session, id, view, parent, through, depth, why, exchange, opened_ms, tokens_before, tokens_after,
        edits, edits_digest, rendered, originals, digest)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "decision": """INSERT INTO decision(
        seq, seal, session, exchange, k, view, rung, epoch, pressure, reason, tokens_client, tokens_upstream, usable,
        owed, saving) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
    "pin": "INSERT INTO pin(seq, seal, session, node, is_on, at_ms) VALUES (?, ?, ?, ?, ?, ?)",
}


class Epochs:
    """What one transaction adds to how sessions are managed."""

    def __init__(self, known: RowIdCache, rows: Rows) -> None:
        self._known = known
        self._rows = rows

    def add(self, record: Epoch | Plan | Pin) -> None:
        """Turn a record into rows. Raises Dangling, and ValueError for a reference that is another one by now."""
        match record:
            case Epoch():
                self._add_epoch(record)
            case Plan():
                self._add_plan(record)
            case Pin():
                self._add_pin(record)

    def _add_epoch(self, epoch: Epoch) -> None:
        epoch = fit_epoch(epoch)
        session, reference = expect_session(self._known, epoch.session)
        parent = self._find_epoch(epoch.parent)
        exchange = expect_exchange(self._known, epoch.exchange).seq if epoch.exchange else None
        rendered = [digest_of(message) for message in epoch.rendered]
        blobs = [self._rows.share(session.tenant, *pair)[0] for pair in zip(rendered, epoch.rendered, strict=True)]
        targets = [self._name_target(session, epoch.session, original) for original in epoch.originals]
        seq = self._rows.append(
            "epoch",
            (reference,),
            (
                epoch.id,
                epoch.view,
                parent,
                epoch.through,
                epoch.depth,
                epoch.why,
                exchange,
                epoch.opened_ms,
                epoch.tokens_before,
                epoch.tokens_after,
                self._rows.keep(epoch.edits, TINY),
                digest_of(epoch.edits),
                list_ids(blobs),
                list_ids(target.id for target in targets),
                commit(rendered, [(target.session, target.original) for target in targets]),
            ),
        )
        self._known.targets.put_epoch(epoch.id, seq)

    def _add_plan(self, plan: Plan) -> None:
        plan = fit_plan(plan)
        exchange = expect_exchange(self._known, plan.exchange)
        _, session = expect_session(self._known, exchange.session)
        self._rows.append(
            "decision",
            (session,),
            (
                exchange.seq,
                plan.k,
                plan.view,
                plan.rung,
                self._find_epoch(plan.epoch),
                plan.pressure,
                plan.reason,
                plan.tokens_client,
                plan.tokens_upstream,
                plan.usable,
                float(plan.owed),
                None if plan.saving is None else float(plan.saving),
            ),
        )

    def _add_pin(self, pin: Pin) -> None:
        _, session = expect_session(self._known, pin.session)
        self._rows.append(
            "pin", (session,), (pin.node, int(pin.is_on), pin.at_ms)
        )  # a seal is made of what is read back

    def _name_target(self, session: Session, key: str, original: Original) -> ReferenceTarget:
        original = fit_original(original)
        known = self._known.targets.find_target(original.id)
        if known is not None:
            if known.original != original:
                raise ValueError("a reference of it stands for something else already")
            return known
        blobs = list_ids(expect_message(self._known, session.tenant, digest) for digest in original.digests)
        target = self._known.targets.put_target(ReferenceTarget(self._known.next_id("original"), key, original))
        row = (target.id, original.id, session.id, original.wire, original.place, original.offset, blobs)
        self._rows.add("original", row)
        return target

    def _find_epoch(self, name: str) -> int | None:
        """The row of an epoch; None where none is named."""
        seq = self._known.targets.find_epoch(name) if name else None
        if name and seq is None:
            raise Dangling("its epoch is not in the log")
        return seq


def commit(rendered: Sequence[bytes], originals: Sequence[tuple[str, Original]]) -> bytes:
    """The digest of what an epoch sends and refers to: digests of messages, originals with their sessions' keys."""
    named = [(key, each.id, each.wire, each.place, each.offset, each.digests) for key, each in originals]
    return digest_of(orjson.dumps((rendered, named), default=bytes.hex))
