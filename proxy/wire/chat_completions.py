"""Chat Completions (`/v1/chat/completions`), as OpenAI defined them and many servers spell them.

Rule: assemble into what the non-streamed answer would have been; every fragment that is understood counts, and nothing
that a server invents raises.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from proxy.model.exchange import Answer
from proxy.wire import chat_identity
from proxy.wire.body import ByteRange
from proxy.wire.identity import Item
from proxy.wire.json_values import read_objects, read_text
from proxy.wire.streams import (
    DATA_LINE,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    assemble,
    finish,
    finish_object,
    merge,
    read_error,
    read_fields,
    set_members,
)

_END = "[DONE]"
_PADDING = "obfuscation"

# After the standard names: DeepSeek's, Moonshot's, and those of Anthropic's models behind LiteLLM and OpenRouter.
_USAGE = UsageNames(
    input=("prompt_tokens",),
    output=("completion_tokens",),
    cached=(
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "cache_read_input_tokens",
    ),
    written=(
        "prompt_tokens_details.cache_write_tokens",
        "prompt_tokens_details.cache_creation_tokens",
        "cache_creation_input_tokens",
    ),
    reasoning=("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),
)


class ChatCompletions:
    """The wire that most clients and nearly all servers speak."""

    name = "chat_completions"
    items_key = "messages"
    orders_key = ""
    previous_key = ""
    end_marker = re.compile(DATA_LINE + rb"\[DONE\]")

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """The answer in a non-streamed body."""
        choices = read_objects(value.get("choices"))
        errors = (read_error(value), *(read_error({"error": choice.get("error")}) for choice in choices))
        return Answer(
            value=dict(value),
            usage=_USAGE.read(value.get("usage")),
            finish=",".join(filter(None, (read_text(choice.get("finish_reason")) for choice in choices))),
            error=next(filter(None, errors), ""),
        )

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """The answer a stream adds up to, in the shape of a non-streamed one."""
        return assemble(_ChatStream(), events, self.read_answer)

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """The messages at these spans of a request body."""
        return chat_identity.READER.read_items(content, spans)

    def read_input(self, member: bytes) -> list[Item]:
        """The messages in a conversation that is no array. There are none: this wire knows only arrays."""
        return []

    def read_orders(self, member: bytes) -> bytes:
        """There are none beside the messages."""
        return b""

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """For each alternative of an answer, what a client adds to its history."""
        return chat_identity.read_alternatives(value)

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """None: no request refers to a stored message."""
        return ()


class _ChatStream:
    """What has come of an answer."""

    def __init__(self) -> None:
        self.is_ended = False
        self.error = ""
        self._head: dict[str, object] = {}
        self._choices: dict[int, _Choice] = {}

    def take(self, event: ServerEvent) -> None:
        """Add an event."""
        if event.data.startswith(_END):
            self.is_ended = True
            return
        chunk = read_fields(event)
        if chunk is None:
            return
        choices, groq = chunk.pop("choices", None), chunk.get("x_groq")
        # An `error` member is kept with the rest; an object that is itself an error would not be known for one later.
        if not self.error and (choices is None or event.name == "error"):
            self.error = read_error(chunk, is_error=event.name == "error")
        for choice in read_objects(choices):
            self._take_choice(choice)
        if isinstance(groq, dict):
            self._take_usage(groq.get("usage"))
        chunk.pop(_PADDING, None)
        set_members(self._head, chunk)

    def finish(self) -> dict[str, object]:
        """The object so far."""
        choices = [self._choices[index].finish(index) for index in sorted(self._choices)]
        value = {**self._head, "object": "chat.completion", "choices": choices}
        if not value.get("usage"):
            value.pop("usage", None)  # null in all chunks: a non-streamed answer would not have it
        return value

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            set_members(self._head, {"usage": usage})

    def _take_choice(self, sent: dict[str, object]) -> None:
        if "usage" in sent:
            self._take_usage(sent.pop("usage"))  # Moonshot's place
        index = sent.pop("index", 0)
        place = index if type(index) is int else 0
        choice = self._choices.get(place)
        if choice is None:
            choice = self._choices[place] = _Choice()
        choice.take(sent)


class _Choice:
    """One of an answer's alternatives."""

    def __init__(self) -> None:
        self._message: dict[str, object] = {}
        self._calls = _Calls()
        self._rest: dict[str, object] = {}

    def take(self, sent: dict[str, object]) -> None:
        """Add a chunk's part of this choice. Some servers end with the whole message in place of a delta."""
        delta, message = sent.pop("delta", None), sent.pop("message", None)
        if delta and isinstance(delta, dict):
            if "tool_calls" in delta:
                self._calls.take(read_objects(delta.pop("tool_calls")))
            merge(self._message, delta)
        elif isinstance(message, dict):
            self._message, self._calls = message, _Calls()
        for key, value in sent.items():
            if value is None:
                self._rest.setdefault(key)
            elif key == "logprobs" or isinstance(value, list):
                merge(self._rest, {key: value})
            else:
                set_members(self._rest, {key: value})

    def finish(self, index: int) -> dict[str, object]:
        """The choice so far."""
        message = {"role": "assistant", "content": None, **finish_object(self._message)}
        message["role"] = message["role"] or "assistant"
        calls = self._calls.finish()
        if calls:
            message["tool_calls"] = calls
        return {"index": index, "message": message, "finish_reason": None, **finish_object(self._rest)}


class _Calls:
    """A message's tool calls, in fragments that servers number and name in several ways."""

    def __init__(self) -> None:
        self._places = IndexedSlots[dict[str, object]]()

    def take(self, fragments: list[dict[str, object]]) -> None:
        """Add fragments of calls."""
        for fragment in fragments:
            index = fragment.pop("index", None)
            place = self._places.locate(index)
            call = self._places.get(place)
            if call is None or _begins_another(call, fragment, is_placed=index is not None):
                call = self._places.put(place, {})
            merge(call, fragment)

    def finish(self) -> list[object]:
        """The calls so far."""
        return [finish(call) for call in self._places.ordered()]


def _begins_another(call: Mapping[str, object], fragment: Mapping[str, object], *, is_placed: bool) -> bool:
    """Whether a fragment is of another call than the one at its place.

    Without an index a new id tells. With one it does not by itself: some versions of vLLM make up an id for each
    fragment, while Ollama and Gemini give all calls the index 0. The latter send each call with its name.
    """
    call_id, known_id = fragment.get("id"), call.get("id")
    if not call_id or call_id == known_id:
        return False
    function = fragment.get("function")
    return not is_placed or bool(known_id and isinstance(function, dict) and function.get("name"))
