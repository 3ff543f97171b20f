"""What an archive takes. Rule: every kind of record is in this union, and has its weight here.

A store may lay records down as msgspec encodes them: a new field goes to the end and has a default.
"""

from proxy.model.exchange import Opening, Outcome, Reading, Round, Trailer
from proxy.model.lineage import Adoption, Reply, Step

Record = Opening | Round | Outcome | Trailer | Reading | Step | Reply | Adoption

# Objects in memory: a node has two hashes of 16 bytes, a mark a hash, a form and a name.
_NODE_WEIGHT = 200
_MARK_WEIGHT = 250


def weigh(record: Record) -> int:
    """Bytes of memory a record holds while it waits, roughly; the spool's bound is in these."""
    match record:
        case Opening():
            return 1024 + record.body.weight
        case Round():
            return 256 + (record.body.weight if record.body else 0)
        case Reading():
            return 256 + len(record.answer)
        case Step() | Reply():
            names = sum(len(mark.name) for mark in record.marks)
            return 256 + len(record.nodes) * _NODE_WEIGHT + len(record.marks) * _MARK_WEIGHT + names
        case Adoption():
            return 256
        case _:
            return 512 + len(record.received)
