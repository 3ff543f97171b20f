"""What relay and managing owe each other when an upstream refuses a request as too long (BEHAVIOUR B8, B20a).

Rule: the relay knows answers, the rescuer knows what they mean. At most one retry comes of a call, and where there is
none, the upstream's own answer goes on byte for byte.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from proxy.model.exchange import Headers, Round
from proxy.model.plan import Plan

Start = Literal["overflow", "content", "undecided"]

REFUSAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that may say that the request was too long: as it came, any content-encoding included.

    Of at most `REFUSAL_BYTES`: what is longer is none.
    """

    status: int
    headers: Headers
    content: bytes


@dataclass(frozen=True, slots=True)
class Retry:
    """The body that is sent in place of the one that was refused, and what is recorded of that.

    Whatever else the round refers to, an epoch above all, is in the log already.
    """

    body: bytes
    round: Round
    plan: Plan | None = None


class Rescuer(Protocol):
    """Stands by a call. Nothing here raises: what goes wrong inside is no retry."""

    @property
    def is_guarded(self) -> bool:
        """Whether answers with a status of success are held back, too, until they have begun in earnest."""
        ...

    def read_start(self, content: bytes) -> Start:
        """What the events at the beginning of a stream are, as far as they came; a part of one may stand at the end.

        Comments at the very beginning may be missing. Called by the transport: it must not take long.
        """
        ...

    async def rescue(self, refusal: Refusal) -> Retry | None:
        """What to send in place of the request; None where this is another answer, or where nothing shorter can be had.

        Called once at most. Cancelled when the client has left.
        """
        ...
