"""What stitching rounds costs a stream without a call of ours: `python -m benchmarks.stitching`, ten seconds.

Per chunk, medians of the thread's own time in one process: a stream of one event per chunk is passed to a function that
returns it unread, searched for the mark that ends it, as any stream is, and fed to a stitcher. Beside it, what a round
with a call of ours costs: the fragments of the call and the end of the round, then a round that is written anew.
"""

import json
import statistics
from collections.abc import Callable, Sequence

from benchmarks.lineage import take_time
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.rounds import make_stitcher

ROUNDS = 40
CHUNKS = 1000
TOOL = "context_recall"


def main() -> None:
    print(f"{CHUNKS} chunks of one event, medians of {ROUNDS}, microseconds a chunk\n")
    print(f"{'':22}{'bytes':>7}{'unread':>8}{'searched':>10}{'stitched':>10}{'in pieces':>11}{'read':>8}")
    for name, form in FORMATS.items():
        show(name, form)


def show(name: str, form: Format) -> None:
    events = [spell(name, i) for i in range(CHUNKS)]
    stream = b"".join(events)
    pieces = [stream[at : at + 1460] for at in range(0, len(stream), 1460)]
    search = form.end_marker.search
    figures: Sequence[Callable[[], object]] = (
        lambda: [pass_on(event) for event in events],
        lambda: [search(event, 1) for event in events],
        lambda: feed(form, events),
        lambda: feed(form, pieces),
        lambda: feed(form, [open_call(name), *events]),
    )
    times = [statistics.median(take_time(work)[0] for _ in range(ROUNDS)) * 1000 / CHUNKS for work in figures]
    widths = (8, 10, 10, 11, 8)
    told = "".join(f"{each:{width}.2f}" for each, width in zip(times, widths, strict=True))
    print(f"{name:22}{len(stream) // CHUNKS:7}{told}")
    assert b"".join(feed(form, events)) == b"".join(feed(form, pieces)) == stream


def pass_on(piece: bytes) -> bytes:
    return piece


def feed(form: Format, pieces: Sequence[bytes]) -> list[bytes]:
    stitcher = make_stitcher(form, TOOL, is_stream=True)
    return [stitcher.feed(piece) for piece in pieces]


def spell(name: str, i: int) -> bytes:
    """One event with a few letters of the text, as the format's provider sends it."""
    word = f"word{i} "
    if name == "chat_completions":
        choice = {"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": None}
        return write(
            {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        )
    if name == "anthropic_messages":
        return write({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}})
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return write({"type": "response.output_text.delta", "sequence_number": i, **place, "delta": word, "logprobs": []})


def open_call(name: str) -> bytes:
    """The event that begins a call of ours, behind which every event is read."""
    if name == "chat_completions":
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": TOOL, "arguments": ""}}
        return write({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    if name == "anthropic_messages":
        return write({"type": "content_block_start", "index": 9, "content_block": {"type": "tool_use", "name": TOOL}})
    return write(
        {"type": "response.output_item.added", "output_index": 9, "item": {"type": "function_call", "name": TOOL}}
    )


def write(value: dict[str, object]) -> bytes:
    named = b"event: %b\n" % str(value["type"]).encode() if "type" in value else b""
    return b"%bdata: %b\n\n" % (named, json.dumps(value, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
