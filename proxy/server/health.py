"""Liveness and readiness of a running server, its metrics as a page, and which upstreams fail now.

All responses come from memory; nothing here waits.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.engine.runtime import EngineBus
from proxy.model.events import ExchangeRecorded

OPEN_AFTER = 3
"""The number of failures in a row that open a circuit."""

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
    """The circuits of all upstreams. Reads the outcome of each call from the bus.

    A circuit is open once several calls in a row got no response or an error of the server (from 500 on), and closed
    again with the next response. It refuses no call: whether to try again is the client's decision, as it is without a
    proxy, and each upstream has its own connections and time limits, so that one that fails delays only its own calls.
    What the proxy asks by itself stops earlier, by model (`compaction/model_health`).
    """

    def __init__(self, names: Iterable[str], bus: EngineBus) -> None:
        self._circuits = dict.fromkeys(names, UpstreamCircuit())
        bus.subscribe(ExchangeRecorded, self.note)

    def note(self, event: ExchangeRecorded) -> None:
        """Count a failure, or close the circuit. A call that told nothing of its upstream changes nothing."""
        if event.kind == "recorded":
            return
        if event.is_unreached or event.status >= _SERVER_ERROR:
            known = self._circuits.get(event.upstream, UpstreamCircuit())
            self._circuits[event.upstream] = UpstreamCircuit(known.failures + 1, event.status)
        elif event.status:
            self._circuits[event.upstream] = UpstreamCircuit()

    @property
    def states(self) -> dict[str, bool]:
        """Whether the circuit of each upstream is open."""
        return {name: circuit.state == "open" for name, circuit in self._circuits.items()}

    def describe(self) -> dict[str, dict[str, object]]:
        """Return the circuits by upstream, as `/-/ready` shows them."""
        return {name: circuit.describe() for name, circuit in self._circuits.items()}


_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

_RELEASING = "while this lasts, responses are not held back until they are durable"
_REFUSING = "while this lasts, calls are refused, and no response is completed before it is durable (store.on_failure)"


class Health:
    """The endpoints `/-/live`, `/-/ready` and `/-/metrics`.

    `problem` returns why recording does not keep its durability promise, or an empty text. Such a degraded server is
    still ready, since calls go on, unless it `refuses` them. A draining server is not ready. Nor is one that
    `is_starting`: it accepts calls, but the first would wait for what is still being loaded. `upstreams`
    describes the circuit of each upstream: one that fails makes the server no less ready for the others. `index`
    describes how current search is, which makes it no less ready either.
    """

    def __init__(
        self,
        problem: Callable[[], str],
        render_metrics: Callable[[], bytes],
        *,
        refuses: bool,
        upstreams: Callable[[], Mapping[str, object]] = dict,
        index: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._problem = problem
        self._index = index
        self._upstreams = upstreams
        self._render_metrics = render_metrics
        self._refuses = refuses
        self.is_draining = False
        self.is_starting = False

    async def start(self, loading: Awaitable[None]) -> None:
        """Be not ready until what calls need is loaded, or could not be loaded."""
        self.is_starting = True
        try:
            await loading
        finally:
            self.is_starting = False

    async def live(self, request: Request) -> Response:
        """Respond 200: the process runs."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Respond 200 if calls are served, else 503; with the reasons if the durability promise is suspended."""
        code, shown = self.describe()
        return JSONResponse(shown, code)

    def describe(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of `/-/ready`."""
        reasons, upstreams = [*filter(None, (self._problem(),))], dict(self._upstreams())

        def tell(status: str, told: list[str], code: int = 200) -> tuple[int, dict[str, Any]]:
            return code, {"status": status, "reasons": told, "upstreams": upstreams, "index": dict(self._index())}

        if self.is_draining:
            return tell("draining", ["shutting down", *reasons], 503)
        if self.is_starting:
            return tell("starting", ["loading the tokenizer", *reasons], 503)
        if reasons:
            reasons.append(_REFUSING if self._refuses else _RELEASING)
            return tell("degraded", reasons, 503 if self._refuses else 200)
        return tell("ready", [])

    async def metrics(self, request: Request) -> Response:
        """Respond with the metrics in Prometheus' text format."""
        return Response(self._render_metrics(), media_type=_EXPOSITION)
