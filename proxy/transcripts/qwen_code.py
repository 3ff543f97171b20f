"""Reader of qwen-code's transcripts: `projects/DIRECTORY/chats/SESSION.jsonl`.

Messages have Gemini's form: parts with text, `functionCall` and `functionResponse`. `chat_compression` has the history
that is sent from then on. System prompt and tools are not kept.
"""

from collections.abc import Iterable, Iterator

from proxy.model.exchange import Usage
from proxy.transcripts.chat_messages import write_answer, write_result, write_text
from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    Value,
    encode,
    read_lines,
    read_list,
    read_map,
    read_number,
    read_time,
)
from proxy.wire.json_values import read_text

_TYPES = frozenset({"user", "assistant", "tool_result", "system"})
_MISSING = ("its system prompt", "its tools", "what the client adds to the first message")


def is_qwen_code(lines: Iterable[Value]) -> bool:
    """Return whether these are lines of such a transcript."""
    return any("sessionId" in line and isinstance(read_map(line.get("message")).get("parts"), list) for line in lines)


def read_qwen_code(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the session of a file, if it has a call."""
    lines = read_lines(file.text)
    conversation, version, session, unknown = CallHistory(), "", "", 0
    depths: dict[str, int] = {}
    for line in lines.values:
        kind, parts = read_text(line.get("type")), read_list(read_map(line.get("message")).get("parts"))
        session, version = read_text(line.get("sessionId")) or session, read_text(line.get("version")) or version
        unknown += kind not in _TYPES
        if kind == "assistant":
            answer = [*_write("model", parts)]
            usage = _read_usage(read_map(line.get("usageMetadata")))
            conversation.call(answer, read_text(line.get("model")), usage, read_time(line.get("timestamp")))
        elif kind in ("user", "tool_result"):
            parent = depths.get(read_text(line.get("parentUuid")))
            if kind == "user" and parent is not None:
                conversation.truncate(parent)
            messages = [*_write("user", parts)]
            conversation.add(*messages)
        elif line.get("subtype") == "chat_compression":
            history = read_list(read_map(line.get("systemPayload")).get("compressedHistory"))
            if history:
                conversation.restart(raw for each in history for raw in _write_content(read_map(each)))
        depths[read_text(line.get("uuid"))] = len(conversation.trail)
    if conversation.calls:
        yield Transcript(
            session or file.path,
            "qwen-code",
            "chat_completions",
            conversation.freeze(),
            tuple(conversation.calls),
            version=version,
            missing=_MISSING,
            source=file.path,
            broken=lines.broken,
            unknown=unknown,
        )


def _write_content(content: Value) -> Iterator[bytes]:
    return _write(read_text(content.get("role")), read_list(content.get("parts")))


def _write(role: str, parts: Iterable[object]) -> Iterator[bytes]:
    """Yield the messages that parts make. What the model only thought is not sent again."""
    known = [read_map(part) for part in parts]
    text = _join(known)
    if role == "model":
        calls = [read_map(part.get("functionCall")) for part in known if part.get("functionCall")]
        yield write_answer(
            text, [(read_text(c.get("id")), read_text(c.get("name")), c.get("args") or {}) for c in calls]
        )
        return
    for part in known:
        if result := read_map(part.get("functionResponse")):
            said = read_map(result.get("response"))
            output = said.get("output", said.get("error", said))
            yield write_result(
                read_text(result.get("id")), output if isinstance(output, str) else encode(output).decode()
            )
    if text:
        yield write_text("user", text)


def _join(parts: Iterable[object]) -> str:
    known = [read_map(part) for part in parts]
    return "\n".join(read_text(part.get("text")) for part in known if part.get("text") and not part.get("thought"))


def _read_usage(usage: Value) -> Usage | None:
    whole = read_number(usage.get("promptTokenCount"))
    if not whole:
        return None
    thoughts = read_number(usage.get("thoughtsTokenCount"))
    output = (read_number(usage.get("candidatesTokenCount")) or 0) + (thoughts or 0)
    return Usage(whole, output, read_number(usage.get("cachedContentTokenCount")), None, thoughts)
