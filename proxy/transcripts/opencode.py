"""Reader of opencode's transcripts: the tables of `opencode.db`, or, of older versions, files below `storage/`.

A message of the model is one call; its parts are text, tools with their state, and `step-finish` with the usage. System
prompt and tools are not kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from proxy.model.exchange import Usage
from proxy.transcripts.chat_messages import write_answer, write_result, write_text
from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    Value,
    encode,
    read_json,
    read_map,
    read_number,
    read_time,
)
from proxy.wire.json_values import read_text

TABLES = ("session", "message", "part")
_MISSING = ("its system prompt", "its tools")
_ENDED = "[Tool execution was interrupted]"
_CLEARED = "[Old tool result content cleared]"  # what the client itself sends for an output that it has cleared


def is_opencode(tables: Mapping[str, object]) -> bool:
    """Return whether a database has the tables of this client."""
    return all(name in tables for name in TABLES)


def read_opencode(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the sessions of a database, or of rows of the same form that were read from files."""
    messages, parts = (
        _group(file.tables.get("message", ()), "session_id"),
        _group(file.tables.get("part", ()), "message_id"),
    )
    for session in file.tables.get("session", ()):
        builder = _OpencodeBuilder(parts)
        for row in messages.get(read_text(session.get("id")), ()):
            builder.add(row)
        if builder.conversation.calls:
            yield Transcript(
                read_text(session.get("id")),
                "opencode",
                "chat_completions",
                builder.conversation.freeze(),
                tuple(builder.conversation.calls),
                version=read_text(session.get("version")),
                provider=builder.provider,
                missing=_MISSING,
                parent=read_text(session.get("parent_id")),
                source=file.path,
                broken=builder.broken,
                unknown=builder.unknown,
            )


def _group(rows: Sequence[Value], name: str) -> dict[str, list[Value]]:
    """Return rows by a column, each group in the order of their ids, which are made in the order of time."""
    groups: dict[str, list[Value]] = {}
    for row in rows:
        groups.setdefault(read_text(row.get(name)), []).append(row)
    return {key: sorted(group, key=lambda row: read_text(row.get("id"))) for key, group in groups.items()}


class _OpencodeBuilder:
    """Makes a conversation of messages with their parts."""

    _SILENT = frozenset({"step-start", "reasoning", "snapshot", "patch", "agent", "retry", "compaction", "subtask"})

    def __init__(self, parts: Mapping[str, Sequence[Value]]) -> None:
        self._parts = parts
        self.conversation = CallHistory()
        self.provider = ""
        self.broken = self.unknown = 0

    def add(self, row: Value) -> None:
        """Add a message."""
        said = self._read(row)
        parts = [self._read(each) for each in self._parts.get(read_text(row.get("id")), ())]
        if said.get("role") == "user":
            self._add_prompt(parts)
        elif said.get("role") == "assistant" and not said.get("error"):
            self._add_answer(said, parts)

    def _read(self, row: Value) -> Value:
        data = row.get("data")
        value = data if isinstance(data, dict) else read_json(read_text(data))
        self.broken += not isinstance(value, dict)
        return read_map(value)

    def _add_prompt(self, parts: Iterable[Value]) -> None:
        known = [*parts]
        text = _join(known)
        if any(part.get("type") == "compaction" for part in known):
            return  # the client asks for a summary, which the next message of the model is
        if text:
            self.conversation.add(write_text("user", text))

    def _add_answer(self, said: Value, parts: Sequence[Value]) -> None:
        self.provider = self.provider or read_text(said.get("providerID"))
        tools = [part for part in parts if part.get("type") == "tool"]
        calls = [
            (read_text(p.get("callID")), read_text(p.get("tool")), read_map(p.get("state")).get("input") or {})
            for p in tools
        ]
        self.unknown += sum(
            part.get("type") not in self._SILENT | {"text", "tool", "step-finish", "file"} for part in parts if part
        )
        answer, time = write_answer(_join(parts), calls), read_map(said.get("time"))
        usage = _read_usage(read_map(said.get("tokens")))
        self.conversation.call([answer], read_text(said.get("modelID")), usage, read_time(time.get("created")))
        if said.get("summary") is True:
            self.conversation.restart([answer])
        self.conversation.add(*(write_result(read_text(p.get("callID")), _read_output(p)) for p in tools))


def _read_output(part: Value) -> str:
    state = read_map(part.get("state"))
    if read_map(state.get("time")).get("compacted"):
        # Cleared at some later time, which is not told: until then it was sent whole.
        return read_text(state.get("output")) or _CLEARED
    output = state.get("output", state.get("error"))
    return output if isinstance(output, str) else _ENDED if output is None else encode(output).decode()


def _join(parts: Iterable[Value]) -> str:
    texts = (read_text(part.get("text")) for part in parts if part.get("type") == "text" and not part.get("ignored"))
    return "\n".join(text for text in texts if text)


def _read_usage(tokens: Value) -> Usage | None:
    """Return the usage: `input` does not include what was read of the cache or written to it."""
    cache = read_map(tokens.get("cache"))
    read, written = read_number(cache.get("read")) or 0, read_number(cache.get("write")) or 0
    whole = (read_number(tokens.get("input")) or 0) + read + written
    if not whole:
        return None
    thoughts = read_number(tokens.get("reasoning")) or 0
    return Usage(whole, (read_number(tokens.get("output")) or 0) + thoughts, read, written or None, thoughts)
