"""What reading a recorded stream costs: `python -m benchmarks.reading`, some seconds.

From the bytes to the answer and its JSON, in streams of 24 and 400 events as each format's provider sends them: the
least of this thread's own time over all rounds, and the Python functions of `proxy` that are run.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.lineage import take_time
from proxy.engine.call.response_reader import read_received
from proxy.model.exchange import Headers
from proxy.wire import FORMATS

ROUNDS = 100
SIZES = (24, 400)
_HEADERS: Headers = ((b"content-type", b"text/event-stream"),)
_MOST = 1 << 24
_WORDS = ("The", " quick", " brown", " fox", "\n\n", " jumps", " über", ' "the"', " lazy", " dog.")
_PACKAGE = str(Path(__file__).parents[1] / "proxy") + "/"

Event = dict[str, Any]


def main() -> None:
    """Print a row for each format and size."""
    print("| format | events | bytes | µs | own calls |\n|---|---|---|---|---|")
    for name, make in STREAMS.items():
        for count in SIZES:
            stream = b"".join(make(count))

            def read(stream: bytes = stream, name: str = name) -> object:
                return read_received(FORMATS[name], _HEADERS, stream, _MOST)

            least = min(take_time(read)[0] for _ in range(ROUNDS)) * 1000
            print(f"| {name} | {count} | {len(stream):,} | {least:,.0f} | {count_calls(read)} |")


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions of `proxy` a piece of work runs."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(_PACKAGE)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def say(count: int) -> list[str]:
    return [_WORDS[i % len(_WORDS)] for i in range(count)]


def spell(event: Event) -> bytes:
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()


def stream_chat(count: int) -> list[bytes]:
    head = {"id": "chatcmpl-CK1", "object": "chat.completion.chunk", "created": 1_760_000_000, "model": "gpt-5.1"}
    head |= {"service_tier": "default", "system_fingerprint": "fp_a1"}

    def write(delta: Event, finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice], "usage": None, "obfuscation": "aB3dE7"}

    texts = [write({"content": word}) for word in say(count - 3)]
    usage = {"prompt_tokens": 100, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 64}}
    begin, end = write({"role": "assistant", "content": "", "refusal": None}), write({}, "stop")
    return [*map(spell, [begin, *texts, end, {**head, "choices": [], "usage": usage}]), b"data: [DONE]\n\n"]


def stream_messages(count: int) -> list[bytes]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5000, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": usage}
    texts = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in say(count - 6)
    ]
    return [
        spell(event)
        for event in [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *texts,
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": count}},
            {"type": "message_stop"},
        ]
    ]


def stream_responses(count: int) -> list[bytes]:
    response = {"id": "resp_1", "object": "response", "created_at": 1_760_000_000, "status": "in_progress"}
    response |= {"error": None, "instructions": "You are helpful. " * 30, "model": "gpt-5.1", "output": [], "tools": []}
    item = {"id": "msg_1", "type": "message", "status": "in_progress", "content": [], "role": "assistant"}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    words = say(count - 8)
    begun, part = (
        {"type": "output_text", "annotations": [], "logprobs": [], "text": text} for text in ("", "".join(words))
    )
    whole = {**item, "status": "completed", "content": [part]}
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": count}
    events: list[Event] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": begun},
        *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in words),
        {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": {**response, "output": [whole], "usage": usage}},
    ]
    return [spell({**event, "sequence_number": number}) for number, event in enumerate(events)]


STREAMS: Mapping[str, Callable[[int], list[bytes]]] = {
    "chat_completions": stream_chat,
    "anthropic_messages": stream_messages,
    "responses": stream_responses,
}

if __name__ == "__main__":
    main()
