"""A window that is smaller than what is known of a model is met once, not again and again as a session grows."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from tests.support.managing import Message
from tests.support.scripted import ScriptedUpstream, Wire, answer
from tests.support.whole_server import ANSWER, CHAT, serving_whole

_KNOWN, _WINDOW, _CALLS = 1_000_000, 24_000, 60
_STATED = f"This model's maximum context length is {_WINDOW} tokens. However, your messages resulted in %d tokens."
_NAMELESS = "Your input exceeds the context window of this model. Please adjust your input and try again."
_SAID = "The meeting about the new harbour was moved to a later day since the boats were not there in time. "


class SmallModel:
    """Refuses what has more tokens than its window, in these words."""

    def __init__(self, words: str) -> None:
        self.refused = 0
        self._words = words

    async def play(self, wire: Wire) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                content, status = self._answer(len((await wire.read_request()).body) // 5)
                wire.send(answer(json.dumps(content).encode(), "Content-Type: application/json", status=status))

    def _answer(self, tokens: int) -> tuple[object, str]:
        if tokens <= _WINDOW:
            return {**ANSWER, "usage": {"prompt_tokens": tokens, "completion_tokens": 2}}, "200 OK"
        self.refused += 1
        told = self._words.replace("%d", str(tokens))
        error = {"message": told, "type": "invalid_request_error", "code": "context_length_exceeded"}
        return {"error": error}, "400 Bad Request"


@pytest.mark.parametrize(("words", "known", "most"), [(_STATED, _KNOWN, 1), (_NAMELESS, 64_000, 2)])
async def test_an_overflow_does_not_return(tmp_path: Path, words: str, known: int, most: int) -> None:
    model = SmallModel(words)
    history: list[Message] = []
    async with ScriptedUpstream() as upstream:
        named = [{"name": "scripted", "base_url": upstream.url, "window": known}]
        async with serving_whole(tmp_path, upstream, upstreams=named) as served:
            upstream.script = model.play
            for call in range(_CALLS):
                history = [*history, {"role": "user", "content": f"Report {call}. " + _SAID * 60}]
                body = json.dumps({"model": "gpt-4.1", "messages": history}).encode()
                got = await served.client.post(CHAT, content=body, headers={"x-palimpsest-session": "s"})
                assert got.status_code == 200, got.text
                history = [*history, {"role": "assistant", "content": "I have read it."}]
    assert 1 <= model.refused <= most
