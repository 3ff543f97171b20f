"""Requests for summaries through the real library, in each wire: behind the last request, and on their own."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.streams import read_events
from proxy.wire.summary_request import OutputLimit, make_target, read_summary, write_compact, write_warm
from tests.support import provider_answers as says
from tests.support.scripted import ScriptedUpstream
from tests.upstream.client_contract import read_all
from tests.upstream.test_litellm_client import ANTHROPIC, OPENAI, Make, make, send

__all__ = ["make"]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

VLLM = "hosted_vllm/m"
CHAT_EVENTS = [
    says.data(says.chat_chunk({"role": "assistant", "content": "hello"})),
    says.data(says.chat_chunk({}, "stop")),
    says.data({**says.chat_chunk({}), "choices": [], "usage": says.USAGE}),
    b"data: [DONE]\n\n",
]
CALLED: Mapping[str, list[Any]] = {
    "chat_completions": [
        {"role": "assistant", "content": None, "tool_calls": [says.TOOL_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ],
    "responses": [
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ],
    "anthropic_messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "done"}]},
    ],
}


def play(model: str, form: Format) -> bytes:
    """What the provider answers on the API on which litellm asks it."""
    if model == ANTHROPIC:
        return says.stream(says.MESSAGE_EVENTS)
    if model == VLLM and form.name == "responses":
        return says.whole(says.RESPONSE)  # litellm makes the stream of it
    is_of_responses = model == OPENAI and form.name != "chat_completions"
    return says.stream(says.RESPONSE_EVENTS if is_of_responses else CHAT_EVENTS)


def write_last(form: Format, model: str) -> bytes:
    """The last request of a session."""
    schema = {"name": "read", "parameters": {"type": "object", "properties": {}}}
    tools: Mapping[str, Any] = {
        "chat_completions": {"type": "function", "function": schema},
        "responses": {"type": "function", **schema},
        "anthropic_messages": {"name": "read", "input_schema": schema["parameters"]},
    }
    limit = "max_output_tokens" if form.name == "responses" else "max_tokens"
    more = {"stream_options": {"include_usage": True}} if form.name == "chat_completions" else {}
    said = [{"role": "user", "content": "Mend it."}, *CALLED[form.name]]
    return json.dumps(
        {"model": model, limit: 99, "tools": [tools[form.name]], "stream": True, **more, form.items_key: said}
    ).encode()


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("model", [VLLM, ANTHROPIC, OPENAI])
async def test_a_summary_is_asked_for_and_read(
    make: Make, upstream: ScriptedUpstream, model: str, form: Format, is_warm: bool
) -> None:
    upstream.answer_with(play(model, form))
    last = split_body(write_last(form, model), form.items_key)
    assert last is not None
    room = OutputLimit(500)
    asked = (
        write_warm(form, last, "Write a report.", room)
        if is_warm
        else write_compact(form, model, "Be brief.", "Write a report.", room)
    )
    assert asked is not None
    client = make(base_url=upstream.url.removesuffix("/v1")) if model == ANTHROPIC else make()
    response = await send(client, asked, make_target(form))
    content = await read_all(response)
    is_stream = dict(response.headers)[b"content-type"].startswith(b"text/event-stream")
    answer = form.read_events(read_events(content)) if is_stream else form.read_answer(json.loads(content))
    summary = read_summary(form, answer)
    assert (response.status, summary.text, summary.is_tool_call, summary.refusal) == (200, "hello", False, "")
    assert summary.usage is not None
    assert b"Write a report." in upstream.requests[0].body
