"""What the scripted provider counts, refuses and reports."""

import json
from typing import Any

import httpx
import pytest

from proxy.wire.overflow import read_overflow
from tests.clients.answers import WRITERS, Tokens
from tests.clients.counting import Meter
from tests.clients.script import Call, Script, Turn
from tests.clients.upstream import run_upstream

LONG = "word " * 2000


def ask(*texts: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}


def test_a_prompt_is_read_from_the_cache_by_whole_messages() -> None:
    meter = Meter(100_000)
    first = meter.measure(ask(LONG))
    assert (2000 < first.prompt < 2030, first.cached) == (True, 0)
    longer = meter.measure(ask(LONG, LONG))
    assert (longer.prompt, longer.cached) == (2 * first.prompt - longer_preamble(meter), first.prompt)
    assert meter.measure(ask("x", LONG)).cached == 0, "what is short is not kept"
    assert meter.measure(ask("y", LONG), is_kept=False).cached == meter.measure(ask("y", LONG)).cached == 0


def longer_preamble(meter: Meter) -> int:
    return meter.measure({"messages": []}).prompt


def test_a_request_costs_the_same_however_it_is_spelt() -> None:
    meter = Meter(100_000)
    marked = {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"a": "b"}}]}]}
    assert meter.measure(marked).prompt == meter.measure(ask(LONG)).prompt
    assert meter.measure(marked).cached == meter.measure(ask(LONG)).prompt
    assert meter.measure({"input": LONG}).prompt == meter.measure(ask(LONG)).prompt
    assert meter.count_turn(Turn("Hello", (Call("bash", {"command": "ls"}),))) > meter.count_turn(Turn("Hello")) > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_what_is_above_the_window_is_refused_as_too_long(path: str) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": LONG}], "max_tokens": 5}
    with run_upstream(Script(), Meter(1500)) as upstream:
        answer = httpx.post(upstream.origin + path, json=asked)
    assert answer.status_code == 400
    assert read_overflow(400, (), answer.content) is not None, "as the providers say it"
    [call] = upstream.recording
    assert (call.is_refused, call.answer) == (True, answer.content)


def test_what_was_counted_is_reported() -> None:
    asked = ask(LONG)
    with run_upstream(Script(), Meter(100_000)) as upstream:
        once, again = (httpx.post(f"{upstream.origin}/v1/chat/completions", json=asked).json() for _ in range(2))
        counted = httpx.post(f"{upstream.origin}/v1/messages/count_tokens", json=asked).json()["input_tokens"]
    assert again["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens_details"]["cached_tokens"] == counted
    assert once["usage"] | {"prompt_tokens_details": None} == again["usage"] | {"prompt_tokens_details": None}
    turn, tokens = Turn("Hi"), Tokens(50, 20, 3)
    said = json.loads(b"".join(WRITERS["/v1/messages"](turn, 1, {}, tokens)))
    assert said["usage"] == {"input_tokens": 30, "output_tokens": 3, "cache_read_input_tokens": 20}
    said = json.loads(b"".join(WRITERS["/v1/responses"](turn, 1, {}, tokens)))
    assert said["usage"]["input_tokens_details"] == {"cached_tokens": 20}
