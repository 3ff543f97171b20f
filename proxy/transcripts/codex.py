"""Reader of codex's transcripts: `sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`.

`response_item` lines are the items of the Responses API in the order in which requests have them; those of the model
follow each other. `compacted` puts others in their place. Of its requests only the tools are not there.
"""

from collections.abc import Iterable, Iterator

from proxy.model.exchange import Usage
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

_META, _ITEM, _COMPACTED, _CONTEXT, _EVENT = "session_meta", "response_item", "compacted", "turn_context", "event_msg"
_OTHER = frozenset({"world_state", "token_usage_record", "inter_agent_communication"})
_RESULTS = ("_output", "_result")
# What the client keeps beside an item and does not send.
_UNSENT = ("internal_chat_message_metadata_passthrough",)
_MISSING = "its tools"


def is_codex(lines: Iterable[Value]) -> bool:
    """Return whether these are lines of such a transcript."""
    return any(line.get("type") in (_META, _ITEM, _CONTEXT) and isinstance(line.get("payload"), dict) for line in lines)


def read_codex(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the session of a file, if it has a call."""
    lines = read_lines(file.text)
    builder, unknown = _CodexBuilder(), 0
    for line in lines.values:
        unknown += not builder.add(read_text(line.get("type")), read_map(line.get("payload")), line)
    builder.end_answer()
    meta, conversation = builder.meta, builder.conversation
    if not conversation.calls:
        return
    instructions = read_text(read_map(meta.get("base_instructions")).get("text")) or read_text(meta.get("instructions"))
    yield Transcript(
        read_text(meta.get("id")) or file.path,
        "codex",
        "responses",
        conversation.freeze(),
        tuple(conversation.calls),
        version=read_text(meta.get("cli_version")),
        provider=read_text(meta.get("model_provider")),
        head={"instructions": instructions} if instructions else {},
        missing=(_MISSING,) if instructions else ("its system prompt", _MISSING),
        parent=read_text(meta.get("forked_from_id")),
        source=file.path,
        broken=lines.broken,
        unknown=unknown,
    )


class _CodexBuilder:
    """Makes a conversation of lines."""

    def __init__(self) -> None:
        self.conversation = CallHistory()
        self.meta: Value = {}
        self._model = ""
        self._answer: list[bytes] = []
        self._at_ms = 0

    def add(self, kind: str, payload: Value, line: Value) -> bool:
        """Add what follows. Return whether it was understood."""
        if kind == _META:
            self.meta = self.meta or payload
        elif kind == _ITEM:
            self._add_item(payload, read_time(line.get("timestamp")))
        elif kind == _COMPACTED:
            self._compact(payload)
        elif kind == _CONTEXT:
            self._model = read_text(payload.get("model")) or self._model
        elif kind == _EVENT:
            self._add_event(payload)
        else:
            return kind in _OTHER
        return True

    def end_answer(self) -> None:
        """Add the call whose answer is complete, if there is one."""
        if self._answer:
            self.conversation.call(self._answer, self._model, None, self._at_ms)
            self._answer = []

    def _add_item(self, item: Value, at_ms: int) -> None:
        kind, role = read_text(item.get("type")), read_text(item.get("role"))
        raw = encode({name: value for name, value in item.items() if name not in _UNSENT})
        is_of_model = role == "assistant" if kind == "message" else not kind.endswith(_RESULTS)
        if is_of_model:
            self._at_ms = self._at_ms if self._answer else at_ms
            self._answer.append(raw)
            return
        self.end_answer()
        self.conversation.add(raw)

    def _compact(self, payload: Value) -> None:
        self.end_answer()
        history = [encode(item) for item in read_list(payload.get("replacement_history")) if isinstance(item, dict)]
        if not history and (text := read_text(payload.get("message"))):
            history = [encode({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})]
        self.conversation.restart(history)

    def _add_event(self, payload: Value) -> None:
        if payload.get("type") == "token_count":
            usage = _read_usage(read_map(read_map(payload.get("info")).get("last_token_usage")))
            # It comes behind the answer, and sometimes only behind the results of its calls.
            self.end_answer()
            calls = self.conversation.calls
            if calls and calls[-1].usage is None:
                self.conversation.amend(usage)
        elif payload.get("type") == "thread_rolled_back":
            self._roll_back(read_number(payload.get("num_turns")) or 0)

    def _roll_back(self, turns: int) -> None:
        """Go back to before the newest prompts of the user."""
        self.end_answer()
        trail = self.conversation.trail
        prompts = [i for i, raw in enumerate(trail) if b'"role":"user"' in raw[:200]]
        if turns and turns <= len(prompts):
            self.conversation.truncate(prompts[-turns])


def _read_usage(usage: Value) -> Usage | None:
    whole = read_number(usage.get("input_tokens"))
    if not whole:
        return None
    return Usage(
        whole,
        read_number(usage.get("output_tokens")),
        read_number(usage.get("cached_input_tokens")),
        read_number(usage.get("cache_write_input_tokens")),
        read_number(usage.get("reasoning_output_tokens")),
    )
