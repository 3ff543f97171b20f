"""What the client gets names nothing of ours, on every way in which a request with our tool can leave."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.engine.call.response_reader import read_received
from proxy.engine.ports import RequestBody
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch
from proxy.model.errors import UpstreamUnreachable
from proxy.model.exchange import ClientRequest, Headers
from proxy.wire import FORMATS
from tests.support.engine import JSON, LIMIT, STREAM, RecordingClient, ScriptedResponse, Sent, wait_out
from tests.support.examples import examples
from tests.support.managed import NAMED, ManagedEngine
from tests.support.rounds import SPEAKERS, TOOL, Call, PlainResponsesSpeaker, Speaker, Text, number
from tests.support.wire_histories import PATHS, answer_call, ask, call, make_request

OUTPUT = "def function(value):\n    return other.path\n" * 40
TOO_LONG = "This model's maximum context length is 6000 tokens. However, your messages resulted in 12000 tokens."
REFUSALS = {
    "too long": (400, {"message": TOO_LONG, "code": "context_length_exceeded"}),
    "too long, later": (200, {"message": TOO_LONG, "code": "context_length_exceeded"}),
    "form": (400, {"message": "messages: roles must alternate"}),
    "tool": (400, {"message": "tools.1: unknown tool"}),
    "reasoning": (400, {"message": "the signature of the thinking block is invalid"}),
    "internal": (500, {"message": "template error"}),
}


class RecallingUpstream:
    """Refuses as it is told; then it calls our tool wherever a request has it, twice at most, and says a word."""

    def __init__(self, speaker: Speaker, refusals: Sequence[str], *, is_beside: bool) -> None:
        self.speaker = speaker
        self.refusals = list(refusals)
        self.is_beside = is_beside
        self.calls: list[Sent] = []
        self.recalls = 0

    async def send(self, method: str, target: bytes, headers: Headers, body: bytes | RequestBody) -> ScriptedResponse:
        if target == b"/v1/models":
            raise UpstreamUnreachable("there is no list of models")
        assert isinstance(body, bytes)
        self.calls.append(Sent(method, target, headers, body))
        asked = json.loads(body)
        if self.refusals:
            return self._refuse(self.refusals.pop(0), is_stream=asked["stream"])
        has_tool = TOOL in json.dumps(asked["tools"])
        speaker = self.speaker if has_tool or self.speaker.form.name != "responses" else PlainResponsesSpeaker()
        parts: list[Any] = [Text("Well. ")]
        if has_tool and self.recalls < 2:
            self.recalls += 1
            parts += [Call('{"action":"search","query":"path"}'), *[Call('{"path":"a"}', "read")] * self.is_beside]
        turn = number(*[[Text()]] * len(self.calls), parts)[-1]
        content = speaker.stream(turn) if asked["stream"] else speaker.spell_body(turn)
        return ScriptedResponse(content, headers=STREAM if asked["stream"] else JSON, ending="whole")

    def _refuse(self, kind: str, *, is_stream: bool) -> ScriptedResponse:
        status, error = REFUSALS[kind]
        content = json.dumps({"type": "error", "error": error}).encode()
        if status == 200 and is_stream:
            return ScriptedResponse(b"event: error\ndata: %b\n\n" % content, headers=STREAM, ending="whole")
        return ScriptedResponse(content, status=max(400, status), headers=JSON, ending="whole")


async def run(request: ManagedRequest, epoch: Epoch, arguments: str, room: int) -> str:
    await asyncio.sleep(0)
    return f"the page for {arguments}"


class Session:
    """An agent of one wire, and what its client gets."""

    def __init__(self, speaker: Speaker, *, is_stream: bool, has_epoch: bool) -> None:
        self.engine = ManagedEngine(run=run, ceiling=8_000 if has_epoch else None, window=None)
        self.speaker, self.wire, self.is_stream = speaker, speaker.form.name, is_stream
        self.items: list[Any] = [ask(self.wire, "Mend the tests.")]
        self.steps = 0

    def work(self, steps: int) -> None:
        """So many calls of the agent."""
        for _ in range(steps):
            self.steps += 1
            id = f"call_{self.steps:024x}"
            self.items += [call(self.wire, id, f"f{self.steps}.py"), answer_call(self.wire, id, OUTPUT)]

    async def send(self, refusals: Sequence[str] = (), *, is_beside: bool = False, mode: str = "manage") -> None:
        """Send the history, and keep the answer; nothing of ours may be in that."""
        upstream, client = RecallingUpstream(self.speaker, refusals, is_beside=is_beside), RecordingClient()
        self.engine.upstream.send = upstream.send  # type: ignore[method-assign]
        headers = (*NAMED, (b"x-palimpsest-mode", mode.encode()))
        body = make_request(self.wire, self.items, is_stream=self.is_stream)
        request = ClientRequest("POST", PATHS[self.wire].encode(), headers, body)
        await wait_out(self.engine.begin(request, self.wire, client))
        assert await self.engine.tasks.finish(LIMIT)
        assert b"recall" not in client.body, client.body
        self.recalls = upstream.recalls
        if client.status == 200 and b'"error"' not in client.body:
            _, plain = read_received(FORMATS[self.wire], client.headers, client.body, 1 << 20)
            self.items += [json.loads(raw) for raw in FORMATS[self.wire].list_echoes(plain)]
            self.items += (
                [answer_call(self.wire, f"x{len(upstream.calls)}i2", "a file")] * is_beside * bool(self.recalls)
            )


_speakers, _refusals = st.sampled_from(SPEAKERS), st.lists(st.sampled_from(sorted(REFUSALS)), max_size=3)
_modes = st.sampled_from(["manage"] * 4 + ["observe", "bypass"])


@example(SPEAKERS[0], [["too long"]], True, False, False, "manage")
@example(SPEAKERS[1], [["too long"]], True, False, False, "manage")
@example(SPEAKERS[2], [["too long"]], True, False, False, "manage")
@example(SPEAKERS[2], [["too long"]], False, False, True, "manage")
@example(SPEAKERS[0], [[], ["too long"]], True, True, True, "manage")
@example(SPEAKERS[0], [["tool", "too long"]], True, True, False, "manage")
@examples(40)
@given(_speakers, st.lists(_refusals, min_size=1, max_size=2), st.booleans(), st.booleans(), st.booleans(), _modes)
async def test_the_client_gets_nothing_of_ours(
    speaker: Speaker, refusals: list[list[str]], is_stream: bool, has_epoch: bool, is_beside: bool, mode: str
) -> None:
    session = Session(speaker, is_stream=is_stream, has_epoch=has_epoch)
    session.work(10)
    await session.send(mode=mode if has_epoch else "manage")
    for each in refusals:
        session.work(14)
        await session.send(each, is_beside=is_beside, mode=mode)
        if each == ["too long"] and mode == "manage":
            assert session.recalls, "the retry has our tool"
