"""Which models are asked for a summary, in which order, and where (BEHAVIOUR B31).

Rule: what a conversation says goes to its own upstream, and to another only where a person named that.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.ports import Upstream
from proxy.engine.request_resolver import Route


class Candidate(NamedTuple):
    """A model, and whose it is."""

    upstream: Upstream
    model: str


def list_candidates(
    policy: CompactionPolicy, home: Upstream, model: str, routes: Sequence[Route]
) -> Iterator[Candidate]:
    """Whom to ask for a conversation that is held with `model` at `home`, the first one first."""
    for name in dict.fromkeys((policy.model or model, *policy.fallback_models)):
        claiming = next((route.upstream for route in routes if name != model and route.claims(name)), home)
        yield Candidate(claiming if claiming.name in policy.may_receive else home, name)
