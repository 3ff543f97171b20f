"""Reader of recorded calls: JSON Lines with `request` and `response` of each call, as SDKs and gateways log them.

Both are bodies of one of the APIs, so that requests are whole. Beside them may be `session`, and `time` in seconds,
milliseconds or ISO 8601.
"""

from collections.abc import Iterable, Iterator, Sequence

from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    Value,
    encode,
    read_lines,
    read_list,
    read_map,
    read_time,
)
from proxy.wire import FORMATS
from proxy.wire.json_values import read_text


def is_call_record(lines: Iterable[Value]) -> bool:
    """Return whether these are such records."""
    return any(_find_items(read_map(line.get("request"))) and isinstance(line.get("response"), dict) for line in lines)


def read_call_records(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the sessions of a file; calls without one are of the same."""
    lines = read_lines(file.text)
    sessions: dict[str, list[Value]] = {}
    unknown = 0
    for line in lines.values:
        if _find_items(read_map(line.get("request"))) and isinstance(line.get("response"), dict):
            sessions.setdefault(read_text(line.get("session")), []).append(line)
        else:
            unknown += 1
    for n, (name, own) in enumerate(sessions.items()):
        yield _read_session(own, name, file.path, broken=0 if n else lines.broken, unknown=0 if n else unknown)


def _find_items(request: Value) -> str:
    return next((name for name in ("messages", "input") if isinstance(request.get(name), list)), "")


def _find_wire(line: Value) -> str:
    request, response = read_map(line.get("request")), read_map(line.get("response"))
    if _find_items(request) == "input":
        return "responses"
    return (
        "anthropic_messages" if isinstance(response.get("content"), list) or "system" in request else "chat_completions"
    )


def _read_session(lines: Sequence[Value], name: str, path: str, *, broken: int, unknown: int) -> Transcript:
    wire, conversation = _find_wire(lines[0]), CallHistory()
    form, head = FORMATS[wire], read_map(lines[0].get("request"))
    for line in lines:
        request, response = read_map(line.get("request")), read_map(line.get("response"))
        conversation.continue_from(0, [encode(each) for each in read_list(request.get(form.items_key))])
        usage = form.read_answer(response).usage
        is_known = usage is not None and bool(usage.input)
        model = read_text(request.get("model"))
        answer = form.list_echoes(encode(response))
        conversation.call(answer, model, usage if is_known else None, read_time(line.get("time")))
    return Transcript(
        name or path,
        "calls",
        wire,
        conversation.freeze(),
        tuple(conversation.calls),
        head={
            key: value
            for key, value in head.items()
            if key not in (form.items_key, "model", "stream", "stream_options")
        },
        source=path,
        broken=broken,
        unknown=unknown,
    )
