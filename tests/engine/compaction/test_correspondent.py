"""Whoever listens to an answer to a call of our own."""

import json

import pytest

from proxy.engine.compaction.correspondent import Correspondent
from proxy.model.errors import UpstreamUnreachable
from proxy.wire.chat_completions import ChatCompletions
from tests.support.engine import JSON, STREAM

DONE = b"data: [DONE]\n\n"


class Listening:
    """A correspondent that is told to stop by itself."""

    def __init__(self, most: int = 10) -> None:
        self.stops = 0
        self.heard = Correspondent(ChatCompletions(), most, self._stop)

    def _stop(self) -> None:
        self.stops += 1


def spell(**delta: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


@pytest.fixture
def listening() -> Listening:
    found = Listening()
    found.heard.start(200, STREAM)
    return found


def test_an_answer_that_comes_to_its_end_is_whole(listening: Listening) -> None:
    assert listening.heard.write(spell(content="fine"))
    assert not listening.heard.is_whole
    listening.heard.write(DONE, is_last=True)
    assert listening.heard.is_whole
    assert (listening.heard.verdict, listening.stops) == ("", 0)


def test_nobody_waits_behind_the_end_of_a_stream(listening: Listening) -> None:
    listening.heard.write(DONE)
    assert (listening.heard.is_whole, listening.stops) == (True, 1)


def test_a_call_of_a_tool_is_seen_with_its_first_piece(listening: Listening) -> None:
    piece = spell(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])
    listening.heard.write(piece[:40])
    assert listening.stops == 0
    listening.heard.write(piece[40:])
    assert (listening.heard.verdict, listening.stops) == ("tool_call", 1)


def test_more_text_than_was_asked_for_is_babble(listening: Listening) -> None:
    listening.heard.write(spell(content="x" * 10))
    assert listening.stops == 0
    listening.heard.write(spell(content=" "))
    assert (listening.heard.verdict, listening.stops) == ("babble", 1)


def test_what_is_thought_is_not_text(listening: Listening) -> None:
    listening.heard.write(spell(reasoning_content="x" * 100))
    assert listening.heard.verdict == ""


def test_thoughts_spoken_aloud_have_more_room_and_not_for_ever(listening: Listening) -> None:
    listening.heard.write(spell(content="<think>"))
    listening.heard.write(spell(content="x" * 33))
    assert listening.stops == 0
    listening.heard.write(spell(content="x"))
    assert listening.heard.verdict == "babble"


def test_an_event_without_end_is_not_kept(listening: Listening) -> None:
    listening.heard.write(b"data: " + b"x" * 1024 * 1024)
    assert (listening.heard.verdict, listening.stops) == ("babble", 1)


def test_a_verdict_stays(listening: Listening) -> None:
    listening.heard.write(spell(tool_calls=[{"index": 0, "id": "c"}]))
    listening.heard.write(spell(content="x" * 11))
    assert listening.heard.verdict == "tool_call"


def test_a_last_event_without_its_blank_line_counts(listening: Listening) -> None:
    listening.heard.write(spell(content="x" * 11).rstrip(), is_last=True)
    assert listening.heard.verdict == "babble"


def test_a_whole_body_is_read_by_others() -> None:
    listening = Listening()
    listening.heard.start(200, JSON)
    listening.heard.write(b'{"choices":[{"message":{"content":"' + b"x" * 50 + b'"}}]}', is_last=True)
    assert (listening.heard.is_whole, listening.heard.verdict, listening.heard.status) == (True, "", 200)


async def test_the_rest_of_what_clients_are_told_is_nothing_to_it(listening: Listening) -> None:
    listening.heard.label(())
    listening.heard.dismiss()
    listening.heard.abort()
    await listening.heard.drain()
    listening.heard.fail(UpstreamUnreachable("gone"))
    assert str(listening.heard.error) == "gone"
    assert not listening.heard.is_whole
