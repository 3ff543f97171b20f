"""What `verify` checks in memory."""

from collections.abc import Iterator

from proxy.model.log import LogFault, Verification
from proxy.model.manifest import compute_digest, compute_link
from proxy.store.constraints import find_summary_fault, span_of
from tests.support.memory_store.tables import Tables


def verify_tables(tables: Tables) -> Verification:
    """Check every digest, link and size."""
    faults = (*_check_blobs(tables), *_check_slices(tables), *_check_outcomes(tables), *_check_summaries(tables))
    rounds = sum(map(len, tables.rounds.values()))
    return Verification(len(tables.exchanges), rounds, len(tables.blobs), len(tables.slices), faults)


def _check_blobs(tables: Tables) -> Iterator[LogFault]:
    for (_, digest), content in tables.blobs.items():
        if compute_digest(content) != digest:
            yield LogFault(f"blob {digest.hex()}", "its content does not match its digest")


def _check_slices(tables: Tables) -> Iterator[LogFault]:
    for link, piece in tables.slices.items():
        if compute_link(piece.parent, piece.gap, piece.digest) != link:
            yield LogFault(f"link {link.hex()}", "does not follow from its parent, gap and content")


def _check_outcomes(tables: Tables) -> Iterator[LogFault]:
    for (exchange, k), outcome in tables.outcomes.items():
        if not outcome.whole_digest and outcome.size != len(outcome.received):
            yield LogFault(f"outcome {exchange}/{k}", f"has {len(outcome.received)} bytes in place of {outcome.size}")


def _check_summaries(tables: Tables) -> Iterator[LogFault]:
    for summary in tables.summaries.values():
        spans = [[span_of(tables.summaries[name]) for name in names] for names in (summary.parents, summary.supersedes)]
        if flaw := find_summary_fault(summary.kind, span_of(summary), len(summary.digests), *spans):
            yield LogFault(f"summary {summary.id}", flaw)
        tenant = tables.keys[summary.session].tenant
        if any((tenant, digest) not in tables.blobs for digest in summary.digests):
            yield LogFault(f"summary {summary.id}", "it names content that is not in the log")
