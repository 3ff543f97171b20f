"""What an archive takes. Rule: every kind of record is in this union, and has its weight here.

A store may lay records down as msgspec encodes them: a new field goes to the end and has a default.
"""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.model.epoch import Epoch, Pin
from proxy.model.exchange import Opening, Outcome, Reading, Round, Trailer
from proxy.model.lineage import Adoption, Reply, Step
from proxy.model.plan import Plan
from proxy.model.summary import Summary

Record = Opening | Round | Outcome | Trailer | Reading | Step | Reply | Adoption | Epoch | Plan | Pin | Summary

_DERIVED = (Step, Reply, Adoption, Epoch, Plan, Pin, Summary)

# Objects in memory: a node has two hashes of 16 bytes, a mark a hash, a form and a name.
_NODE_WEIGHT = 200
_MARK_WEIGHT = 250
_ORIGINAL_WEIGHT = 250
_DIGEST_WEIGHT = 65 + 8


def leave_derived(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Records without those of lineage and of managed context: one that is refused must not cost what it came with."""
    return tuple(record for record in records if not isinstance(record, _DERIVED))


def weigh_all(records: tuple[Record, ...]) -> int:
    """What some records weigh together."""
    return sum([_WEIGHERS[type(record)](record) for record in records])


def weigh(record: Record) -> int:
    """Bytes of memory a record holds while it waits, roughly; the spool's bound is in these."""
    return _WEIGHERS[type(record)](record)


def _weigh_growth(record: Step | Reply) -> int:
    names = sum([len(mark.name) for mark in record.marks])
    return 256 + len(record.nodes) * _NODE_WEIGHT + len(record.marks) * _MARK_WEIGHT + names


def _weigh_epoch(epoch: Epoch) -> int:
    digests = sum([len(original.digests) for original in epoch.originals])
    named = len(epoch.originals) * _ORIGINAL_WEIGHT + digests * _DIGEST_WEIGHT
    return 512 + len(epoch.edits) + sum(map(len, epoch.rendered)) + named


def _weigh_summary(summary: Summary) -> int:
    named = len(summary.calls) + len(summary.parents) + len(summary.supersedes) + len(summary.files)
    return 512 + len(summary.text) + 64 * named + _DIGEST_WEIGHT * len(summary.digests)


# By type, for this is done with every record of every call.
_WEIGHERS: Mapping[type[Record], Callable[[Any], int]] = {
    Opening: lambda record: 1024 + record.body.weight,
    Round: lambda record: 256 + (record.body.weight if record.body else 0),
    Outcome: lambda record: 512 + len(record.received),
    Trailer: lambda record: 512 + len(record.received),
    Reading: lambda record: 256 + len(record.answer),
    Step: _weigh_growth,
    Reply: _weigh_growth,
    Adoption: lambda record: 256,
    Epoch: _weigh_epoch,
    Plan: lambda record: 256,
    Pin: lambda record: 256,
    Summary: _weigh_summary,
}
