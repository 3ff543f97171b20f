"""Which upstreams fail now: one circuit for each, as `/-/ready` shows it.

A circuit is open once several calls in a row got no response or an error of the server (from 500 on), and closed again
with the next response. It refuses no call: whether to try again is the client's decision, as it is without a proxy, and
each upstream has its own connections and time limits, so that one that fails delays only its own calls. What the proxy
asks by itself stops earlier, by model (`compaction/model_health`).
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from proxy.engine.runtime import EventBus
from proxy.model.events import ExchangeRecorded

OPEN_AFTER = 3
_SERVER_ERROR = 500


class UpstreamCircuit(msgspec.Struct, frozen=True, gc=False):
    """The failures of one upstream in a row, and the status of the last one, 0 where no response came."""

    failures: int = 0
    status: int = 0

    @property
    def state(self) -> Literal["closed", "open"]:
        """Whether the upstream fails."""
        return "open" if self.failures >= OPEN_AFTER else "closed"

    def describe(self) -> dict[str, object]:
        """Return it as `/-/ready` shows it."""
        told: dict[str, object] = {"circuit": self.state}
        if self.failures:
            told |= {"failures": self.failures, "last": f"status {self.status}" if self.status else "no response"}
        return told


class UpstreamCircuits:
    """The circuits of all upstreams. Reads the outcome of each call from the bus."""

    def __init__(self, names: Iterable[str], bus: EventBus) -> None:
        self._circuits = dict.fromkeys(names, UpstreamCircuit())
        bus.subscribe(ExchangeRecorded, self.note)

    def note(self, event: ExchangeRecorded) -> None:
        """Count a failure, or close the circuit. A call that told nothing of its upstream changes nothing."""
        if event.is_unreached or event.status >= _SERVER_ERROR:
            known = self._circuits.get(event.upstream, UpstreamCircuit())
            self._circuits[event.upstream] = UpstreamCircuit(known.failures + 1, event.status)
        elif event.status:
            self._circuits[event.upstream] = UpstreamCircuit()

    def describe(self) -> dict[str, dict[str, object]]:
        """Return the circuits by upstream, as `/-/ready` shows them."""
        return {name: circuit.describe() for name, circuit in self._circuits.items()}
