"""What official SDKs make of a response of several rounds: the same as of one response without our tool."""

from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.rounds import (
    SPEAKERS,
    Call,
    ChatSpeaker,
    MessagesSpeaker,
    PlainResponsesSpeaker,
    ResponsesSpeaker,
    Speaker,
    Text,
    Thought,
    Turn,
    number,
    play,
)
from tests.support.valid_streams import find_faults

CHAT, MESSAGES, RESPONSES = SPEAKERS
USER: Any = [{"role": "user", "content": "hi"}]
_MANY = examples(40)


def serve(body: bytes, *, is_stream: bool) -> httpx.MockTransport:
    kind = "text/event-stream" if is_stream else "application/json"
    answer = httpx.Response(200, headers={"content-type": kind}, content=body)
    return httpx.MockTransport(lambda request: answer)


def read_chat(body: bytes, *, is_stream: bool) -> dict[str, Any]:
    with httpx.Client(transport=serve(body, is_stream=is_stream)) as http:
        client = openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http, max_retries=0)
        if not is_stream:
            return client.chat.completions.create(model="m", messages=USER).model_dump(exclude_unset=True)
        with client.chat.completions.stream(model="m", messages=USER) as stream:
            return stream.get_final_completion().model_dump(exclude_unset=True)


def read_messages(body: bytes, *, is_stream: bool) -> dict[str, Any]:
    kind = "text/event-stream" if is_stream else "application/json"
    answer = httpx2.Response(200, headers={"content-type": kind}, content=body)
    with httpx2.Client(transport=httpx2.MockTransport(lambda request: answer)) as http:
        client = anthropic.Anthropic(base_url="http://x", api_key="k", http_client=http, max_retries=0)
        if not is_stream:
            return client.messages.create(model="m", max_tokens=9, messages=USER).model_dump(exclude_unset=True)
        with client.messages.stream(model="m", max_tokens=9, messages=USER) as stream:
            return stream.get_final_message().model_dump(exclude_unset=True)


def read_responses(body: bytes, *, is_stream: bool) -> dict[str, Any]:
    with httpx.Client(transport=serve(body, is_stream=is_stream)) as http:
        client = openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http, max_retries=0)
        if not is_stream:
            value = client.responses.create(model="m", input=USER).model_dump(exclude_unset=True)
        else:
            # The stream's own snapshots fail where an event names an item, or a part, that is not there.
            with client.responses.stream(model="m", input=USER) as stream:
                value = stream.get_final_response().model_dump(exclude_unset=True)
    value["tools"] = [tool["name"] for tool in value["tools"]]
    return value


READERS: dict[str, Callable[..., dict[str, Any]]] = {
    ChatSpeaker.form.name: read_chat,
    MessagesSpeaker.form.name: read_messages,
    ResponsesSpeaker.form.name: read_responses,
}

_texts = st.builds(Text, st.text("ab é\n", min_size=1, max_size=9))
_thoughts = st.builds(Thought, st.text("ab \n", min_size=1, max_size=9))
_own, _foreign = st.builds(Call, st.just('{"q":"é"}')), st.builds(Call, st.just('{"path":"a"}'), st.just("read"))
_said = st.lists(_texts | _thoughts, max_size=3)
_hidden = st.builds(
    lambda before, calls, behind: [*before, *calls, *behind], _said, st.lists(_own, min_size=1, max_size=8), _said
)
_last = st.builds(
    lambda before, calls, behind: [*before, *calls, *behind], _said, st.lists(_foreign | _own, max_size=2), _said
)
_turns = st.builds(lambda hidden, last: number(*hidden, last), st.lists(_hidden, max_size=2), _last)


def expect(speaker: Speaker, turns: Sequence[Turn], *, is_stream: bool) -> bytes:
    """One response without our tool."""
    plain = PlainResponsesSpeaker() if speaker is RESPONSES else speaker
    turn = speaker.join(turns)
    return plain.stream(turn) if is_stream else plain.spell_body(turn)


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.form.name)
@pytest.mark.parametrize("is_stream", [True, False])
def test_an_sdk_reads_one_response(speaker: Speaker, is_stream: bool) -> None:
    read = READERS[speaker.form.name]

    @_MANY
    @given(_turns)
    def check(turns: tuple[Turn, ...]) -> None:
        bodies = [speaker.stream(turn) if is_stream else speaker.spell_body(turn) for turn in turns]
        written, _ = play(speaker.form, bodies, is_stream=is_stream)
        assert not is_stream or find_faults(speaker.form.name, written) == []
        got, expected = (
            read(written, is_stream=is_stream),
            read(expect(speaker, turns, is_stream=is_stream), is_stream=is_stream),
        )
        assert got == expected

    check()
