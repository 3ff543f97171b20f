"""The stages of a call: in which order their hooks are called, of which calls, and what a refusal leaves."""

from collections.abc import Iterable
from typing import Any

import pytest

from proxy.engine.call.open_exchange import OpenExchange
from proxy.engine.call.response_stream import PassingClient
from proxy.engine.context.request_state import OutgoingRequest
from proxy.engine.ports import Client
from proxy.engine.request import ManagedRequest
from proxy.engine.stages.clearing import Clearing
from proxy.engine.stages.held import HeldCalls
from proxy.engine.stages.local import LocalCalls
from proxy.engine.stages.loops import LoopWatch
from proxy.engine.stages.order import order_stages
from proxy.engine.stages.prompt_sources import PromptSources
from proxy.engine.stages.recalling import Recalling
from proxy.engine.stages.refusals import Refusals
from proxy.engine.stages.stage import Call, Pipeline, Stage
from proxy.engine.stages.usage import Usage
from proxy.model.epoch import SourceNote
from proxy.model.errors import BadRequest
from proxy.model.exchange import ClientRequest, Headers, Opening
from proxy.model.log import Record
from tests.support.engine import JSON, Engine, FedBody, RecordingClient, ScriptedResponse, ScriptedUpstream, wait_out

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
MANAGED = ClientRequest("POST", b"/v1/chat/completions", ((b"authorization", b"Bearer k"),), BODY)
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}'


class Noting(Stage):
    """Notes each hook that is called, and adds to what it is given."""

    def __init__(self, refuses: bool = False) -> None:
        self.noted: list[str] = []
        self._refuses = refuses

    async def arrive(self, call: Call) -> Call:
        self.noted.append("arrive")
        if self._refuses:
            raise BadRequest("not today")
        return call

    def shape(self, call: Call, request: ManagedRequest) -> ManagedRequest:
        self.noted.append("shape")
        return request

    def open(self, call: Call, request: ManagedRequest, exchange: OpenExchange) -> Client:
        self.noted.append("open")
        return Greeting(exchange.client)

    def plan(self, call: Call, request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
        self.noted.append("plan")
        return outgoing.add(((b"x-planned", b"yes"),))

    def prepare(self, call: Call, request: ManagedRequest, exchange: OpenExchange, outgoing: OutgoingRequest) -> None:
        self.noted.append("prepare")

    def list_records(self, call: Call, request: ManagedRequest) -> Iterable[Record]:
        self.noted.append("list_records")
        return (SourceNote(request.session.id, request.exchange, request.nodes[-1], "tick"),)

    def end(self, call: Call, request: ManagedRequest) -> None:
        self.noted.append("end")

    async def leave(self, call: Call) -> None:
        self.noted.append("leave")

    def forget(self, session: str) -> None:
        self.noted.append(f"forget {session}")


class Greeting(PassingClient):
    """Adds a header to every response."""

    def start(self, status: int, headers: Headers) -> None:
        super().start(status, (*headers, (b"x-greeting", b"hello")))


async def carry(*stages: Stage, body: bytes = BODY) -> tuple[Engine, RecordingClient]:
    """A call through the stages of the product and these."""
    upstream = ScriptedUpstream(answer=ScriptedResponse(ANSWER, headers=JSON, ending="whole"))
    engine = Engine(upstream, is_instant=True, stages=stages)
    client = RecordingClient()
    incoming = ClientRequest("POST", MANAGED.target, MANAGED.headers, body)
    await wait_out(engine.begin(incoming, "chat_completions", client))
    return engine, client


async def test_hooks_are_called_in_their_order_and_what_they_return_counts() -> None:
    stage = Noting()
    engine, client = await carry(stage)
    assert stage.noted == ["arrive", "shape", "open", "plan", "prepare", "list_records", "end", "leave"]
    assert (client.body, dict(client.headers)[b"x-greeting"]) == (ANSWER, b"hello")
    assert dict(client.labels)[b"x-planned"] == b"yes"
    assert [each.kind for each in engine.archive.of(SourceNote)] == ["tick"]
    engine.exchanges.forget(["s"])
    assert stage.noted[-1] == "forget s"


async def test_a_stage_that_refuses_a_call_ends_it_and_all_stages_leave_it() -> None:
    before, refusing, after = Noting(), Noting(refuses=True), Noting()
    engine, client = await carry(before, refusing, after)
    assert isinstance(client.error, BadRequest)
    assert engine.upstream.calls == []
    assert [before.noted, refusing.noted, after.noted] == [["arrive", "leave"], ["arrive", "leave"], ["leave"]]


async def test_a_body_that_is_not_read_meets_only_hooks_without_a_request() -> None:
    stage = Noting()
    _, client = await carry(stage, body=b"no JSON")
    assert (stage.noted, client.body) == (["arrive", "leave"], ANSWER)


async def test_a_stream_that_passes_unread_meets_no_stage() -> None:
    stage = Noting()
    engine = Engine(ScriptedUpstream(answer=ScriptedResponse(b"ok", ending="whole")), is_instant=True, stages=[stage])
    upload = ClientRequest("PUT", b"/v1/files", ())
    await wait_out(engine.begin_stream(upload, FedBody(b"a", b""), RecordingClient()))
    assert (stage.noted, len(engine.archive.of(Opening))) == ([], 1)


@pytest.mark.parametrize(
    "hook", ["arrive", "shape", "open", "plan", "prepare", "list_records", "end", "leave", "forget"]
)
def test_a_hook_that_no_stage_overrides_is_not_called(hook: str) -> None:
    assert getattr(Pipeline([Stage(), Stage()]), hook) == []
    assert len(getattr(Pipeline([Stage(), Noting()]), hook)) == 1


def test_the_order_of_the_stages() -> None:
    engine = Engine(is_instant=True)
    parts: dict[str, Any] = {"histories": object(), "loops": LoopWatch(engine.bus, 3), "recall": object()}
    kinds = [type(each) for each in order_stages(engine.controller, engine.exchanges.calls, **parts)]
    assert kinds == [LocalCalls, Clearing, Usage, HeldCalls, PromptSources, LoopWatch, Refusals, Recalling]
    least = order_stages(engine.controller, engine.exchanges.calls)
    assert [type(each) for each in least] == [LocalCalls, Clearing, Usage, PromptSources, Refusals]
