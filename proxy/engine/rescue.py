"""What relay and managing owe each other when an upstream refuses a request (BEHAVIOUR B8, B8a, B20a).

The relay knows answers, the rescuer knows what they mean. Where there is nothing else to send, the upstream's own
answer goes on byte for byte.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from proxy.model.exchange import Headers, Round
from proxy.model.plan import Plan

Start = Literal["overflow", "content", "undecided"]

REFUSAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that may refuse what was sent as too long, or because it was rewritten: as it came, encoded or not.

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
        """What to send in place of what was sent last; None where the answer is to go on as it came.

        Cancelled when the client has left.
        """
        ...

    async def accept(self) -> None:
        """What was sent in place of a refused request is accepted: its answer begins. It must not take long."""
        ...
