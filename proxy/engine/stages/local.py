"""Calls of programs in this process: their session is known, and one that was made elsewhere is only recorded."""

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from proxy.engine.call.response_stream import WholeResponse
from proxy.engine.ports import RequestBody, UpstreamResponse
from proxy.engine.request import Arrival
from proxy.engine.stages.stage import Call, Stage

_OK = 200


class LocalCalls(Stage):
    """Says whose the calls of programs are, and answers what was made elsewhere."""

    async def arrive(self, call: Call) -> Call:
        """Return a call of a program with its session, and with the response that came elsewhere, if any."""
        local = call.options.local
        if local is None:
            return call
        if local.respond is None:
            options = replace(call.options, history="program")
            return replace(call, options=options, arrival=Arrival(session=local.session))
        options, arrival = replace(call.options, history="record"), Arrival(session=local.session, kind="recorded")
        return replace(call, options=options, arrival=arrival, send=partial(_answer, local.respond))


async def _answer(respond: Callable[[bytes], Awaitable[bytes]], body: bytes | RequestBody) -> UpstreamResponse:
    assert isinstance(body, bytes), "it is read"
    return WholeResponse(_OK, (), await respond(body))
