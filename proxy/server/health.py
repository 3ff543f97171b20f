"""Whether the process lives, is ready, and how it has been doing.

Rule: answers from memory, never waits for anything.
"""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.server.metrics import Metrics

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

_RELEASING = "while this lasts, answers are not held back until they are durable"
_REFUSING = "while this lasts, calls are refused, and no answer is completed that is not durable (store.on_failure)"


class Health:
    """The endpoints `/-/live`, `/-/ready` and `/-/metrics`.

    `problem` says why recording is not as promised (empty: it is). Degraded is still ready, since calls go on;
    `refuses` says that they do not. Draining is not ready, nor is a server that `is_starting`: it takes calls, of which
    the first would wait for what is still being loaded.
    """

    def __init__(self, problem: Callable[[], str], metrics: Metrics, *, refuses: bool) -> None:
        self._problem = problem
        self._metrics = metrics
        self._refuses = refuses
        self.is_draining = False
        self.is_starting = False

    async def live(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """200 while calls are served, with the reasons if the durability promise is suspended; else 503."""
        reasons = [text for text in (self._problem(),) if text]
        if self.is_draining:
            return JSONResponse({"status": "draining", "reasons": ["shutting down", *reasons]}, 503)
        if self.is_starting:
            return JSONResponse({"status": "starting", "reasons": ["loading what counts tokens", *reasons]}, 503)
        if reasons:
            reasons.append(_REFUSING if self._refuses else _RELEASING)
            return JSONResponse({"status": "degraded", "reasons": reasons}, 503 if self._refuses else 200)
        return JSONResponse({"status": "ready", "reasons": []})

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(self._metrics.render(), media_type=_EXPOSITION)
