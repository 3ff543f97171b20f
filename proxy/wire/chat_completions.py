"""Chat Completions (`/v1/chat/completions`), as OpenAI defined them and as many servers speak them."""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from proxy.model.exchange import Answer
from proxy.model.messages import Message, MessageStructure, ToolCall
from proxy.wire.format import Format
from proxy.wire.identity import (
    Item,
    ItemPosition,
    ItemReader,
    NormalPart,
    Part,
    collapse,
    digest_form,
    load_elements,
    name_role,
    normalize_parts,
    weigh,
)
from proxy.wire.json_values import (
    change_members,
    join_array,
    list_elements,
    load_lenient,
    normalize_arguments,
    normalize_object,
    read_member,
    read_object,
    read_objects,
    read_text,
    set_member,
)
from proxy.wire.messages import (
    THINKING,
    are_ids_invalid,
    digest_reasoning,
    format_arguments,
    is_empty,
    is_not_text,
    read_content,
    read_role,
)
from proxy.wire.streams import (
    DATA_LINE,
    END,
    GrowingText,
    IndexedSlots,
    ServerEvent,
    UsageNames,
    finish,
    finish_object,
    merge,
    read_error,
    set_members,
)

_NAME = "chat_completions"
_LONGEST_ID = 40

# Identity
_TEXTS = frozenset({"text"})
_FUNCTION = ("function", None, "")
_REASONING_PARTS = THINKING | {"reasoning", "reasoning_content"}

# Structure
_REASONING_MEMBERS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
_TEXT_ROLES = frozenset({"system", "tool"})
_SAID = ("thinking", "text", "summary", "data")
_REMOVED = b'"[The reasoning of this message was removed.]"'

# Responses
_PADDING = "obfuscation"
# The standard names first, then DeepSeek's, Moonshot's, and those of Anthropic's models behind LiteLLM and OpenRouter.
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


class _Function(msgspec.Struct, gc=False):
    """The function of a tool call."""

    name: str | None = None
    arguments: object = None


class _ToolCall(msgspec.Struct, gc=False):
    """A tool call, as far as it participates in identity."""

    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _ChatMessage(msgspec.Struct, gc=False):
    """The members of a message that participate in its identity."""

    role: str = ""
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None


def _read_item(message: _ChatMessage, position: ItemPosition) -> Item:
    """Read the identity of a message: role, name, content, tool calls and the call that it answers, nothing else.

    Reasoning, refusals, annotations and other members never count, nor does white space at the end of a response, which
    aider drops. `developer` is `system`. The older `function_call` counts unless it is null. The form distinguishes
    `function` from `tool` messages, though both have the role tool.
    """
    content: object = message.content or None
    if isinstance(content, list):
        content = collapse(normalize_parts(content, position, _TEXTS, _REASONING_PARTS))
    if message.role == "assistant" and isinstance(content, str):
        content = content.rstrip() or None
    answered = message.tool_call_id or None
    results = (answered,) if answered else ()
    role = "system" if message.role == "developer" else message.role
    weight = len(content) if isinstance(content, str) else weigh(content)
    if message.tool_calls or message.function_call is not None:
        calls, ids, call_weight = _normalize_calls(message, position)
        form = digest_form((_NAME, role, content, message.name, answered, *calls))
        return Item(name_role(role), form, ids, results, weight + call_weight)
    form = digest_form((_NAME, role, content, message.name, answered))
    return Item(name_role(role), form, (), results, weight)


def _normalize_calls(message: _ChatMessage, position: ItemPosition) -> tuple[list[NormalPart], tuple[str, ...], int]:
    """Return a message's calls, their ids and weight. An older `function_call` is normalised without any id."""
    calls: list[NormalPart] = []
    ids: list[str] = []
    whole: list[object] = []  # decoded once, however many calls are of another kind
    weight = 0
    for place, call in enumerate(message.tool_calls or ()):
        function = call.function
        if function is not None and call.type in _FUNCTION:
            arguments = normalize_arguments(function.arguments)
            calls.append((call.id or None, function.name, arguments))
            weight += len(arguments)
        else:
            whole = whole or load_elements(position, "tool_calls")
            calls.append(normalize_object(whole[place], "index"))
            weight += weigh(calls[-1])
        ids += [call.id] if call.id else []
    if message.function_call is not None:
        arguments = normalize_arguments(message.function_call.arguments)
        calls.append((message.function_call.name, arguments))
        weight += len(arguments)
    return calls, tuple(ids), weight


class ChatCompletions(Format):
    """The Chat Completions format, which most clients and nearly all servers use."""

    name = _NAME
    title, short_name = "chat completions", "chat"
    path_ending = "/chat/completions"
    items_key = "messages"
    limit_keys = ("max_completion_tokens", "max_tokens")
    end_marker = re.compile(DATA_LINE + rb"\[DONE\]")
    foreign_signs = ()
    signed_names = (b"reasoning_details", b"thinking_blocks", b"thinking")
    reader = ItemReader(_NAME, _ChatMessage, _read_item)

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """Return the response in a non-streamed body."""
        choices = read_objects(value.get("choices"))
        error, reasons = read_error(value), []
        for choice in choices:
            error = error or read_error({"error": choice.get("error")})
            if reason := read_text(choice.get("finish_reason")):
                reasons.append(reason)
        return Answer(dict(value), _USAGE.read(value.get("usage")), ",".join(reasons), error=error)

    def _assemble(self, events: Iterable[ServerEvent]) -> tuple[dict[str, object], bool, str]:
        is_ended, error = False, ""
        head: dict[str, object] = {}
        choices: dict[int, list[dict[str, object]]] = {}  # what the chunks have of each
        for event in events:
            chunk = event.value
            if event.data.startswith(END):
                is_ended = True
                continue
            if chunk is None:
                continue
            told, groq = chunk.pop("choices", None), chunk.get("x_groq")
            # An `error` member is kept with the rest, but an object that is itself an error could not be recognised
            # later.
            if not error and (told is None or event.name == "error"):
                error = read_error(chunk, is_error=event.name == "error")
            for sent in told if isinstance(told, list) else ():
                if not isinstance(sent, dict):
                    continue
                if "usage" in sent:
                    _set_usage(head, sent.pop("usage"))  # where Moonshot has it
                index = sent.pop("index", 0)
                choices.setdefault(index if type(index) is int else 0, []).append(sent)
            if isinstance(groq, dict):
                _set_usage(head, groq.get("usage"))
            chunk.pop(_PADDING, None)
            if not chunk.items() <= head.items():  # mostly true of the first and the last chunk only
                set_members(head, chunk)
        joined = [_join_choice(index, choices[index]) for index in sorted(choices)]
        value = {**head, "object": "chat.completion", "choices": joined}
        if not value.get("usage"):
            value.pop("usage", None)  # null in all chunks: a non-streamed response would not have it
        return value, is_ended, error

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """Return the message of each choice."""
        read, messages = self.reader.read_value, [each.get("message") for each in read_objects(value.get("choices"))]
        return tuple(
            [
                (read({**message, "role": message.get("role") or "assistant"}),) if isinstance(message, dict) else ()
                for message in messages
            ]
        )

    def list_echoes(self, answer: bytes) -> list[bytes]:
        """Return the message of the first choice. A client can continue only one of several."""
        messages = [read_member(choice, "message") for choice in list_elements(read_member(answer, "choices"))[:1]]
        return [message for message in messages if message]

    def _read_structure(
        self, message: Mapping[str, object], markers: tuple[str, ...], says_json: bool
    ) -> MessageStructure:
        role, content, calls = read_role(message), message.get("content"), message.get("tool_calls")
        answered = read_text(message.get("tool_call_id"))
        reasoning = [message[name] for name in _REASONING_MEMBERS if message.get(name)]
        if isinstance(content, list):
            reasoning += [part for part in read_objects(content) if read_text(part.get("type")) in THINKING]
        ids = [read_text(call.get("id")) for call in read_objects(calls)] if calls else []
        flaws: list[str] = []
        if not ids and not message.get("function_call") and is_empty(content):
            flaws.append("empty")
        if role in _TEXT_ROLES and is_not_text(content):
            flaws.append("not text")
        if calls == []:
            flaws.append("no calls")
        if are_ids_invalid([*ids, answered] if role == "tool" else ids, _LONGEST_ID):
            flaws.append("id")
        return MessageStructure(
            role,
            tuple(filter(None, ids)),
            (answered,) if answered else (),
            digest_reasoning(reasoning),
            markers,
            says_json,
            tuple(flaws),
            _count_signed(message) if reasoning else 0,
        )

    def strip_reasoning(self, raw: bytes) -> bytes:
        """Return a message without its signed reasoning, with calls, text and unsigned reasoning as they are."""
        if not any([name in raw for name in self.signed_names]):
            return raw
        message = read_object(raw.decode(errors="replace"))
        if message is None or message.get("role") != "assistant":
            return raw
        signed = {name for name, _ in _list_signed(message)}
        if not signed:
            return raw
        content = message.get("content")
        is_thought_only = "content" in signed and isinstance(content, list) and all(map(_is_thinking, content))

        def change(name: str, member: bytes) -> bytes | None:
            if name != "content" or name not in signed:
                return None if name in signed else member
            if is_thought_only:
                return b"null"
            return join_array(part for part in list_elements(member) if not _is_thinking(load_lenient(part)))

        stripped = change_members(raw, change)
        is_silent = is_thought_only or not content
        has_calls = message.get("tool_calls") or message.get("function_call")
        return set_member(stripped, "content", _REMOVED) if is_silent and not has_calls else stripped

    def _read_message(self, message: Mapping[str, object]) -> Message:
        answered = read_text(message.get("tool_call_id"))
        content = message.get("content")
        refusal = read_text(message.get("refusal"))
        text, media = (content, ()) if isinstance(content, str) else read_content(content)
        calls = message.get("tool_calls")
        old_call = message.get("function_call")
        role = read_role(message)
        return Message(
            role,
            "\n".join(filter(None, (text, refusal))) if refusal else text,
            tuple(_list_calls(calls, old_call)) if calls or old_call else (),
            (answered,) if answered else (),
            media,
            name=read_text(message.get("name")) if role == "user" else "",
        )


def _list_signed(message: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the blocks of signed or encrypted reasoning, with the name of the member that they stand in.

    LiteLLM has them in `thinking_blocks`, OpenRouter in `reasoning_details`, Anthropic in the content. The blocks of
    one member belong together: if one is signed, all are.
    """
    for name in ("thinking_blocks", "reasoning_details", "content"):
        member = message.get(name)
        parts = read_objects(member) if member and isinstance(member, list) else []
        blocks = [part for part in parts if name != "content" or _is_thinking(part)]
        if name == "thinking_blocks" or any([part.get("signature") or part.get("data") for part in blocks]):
            yield from ((name, part) for part in blocks)


def _count_signed(message: Mapping[str, object]) -> int:
    blocks = list(_list_signed(message))
    return max(1, sum(len(read_text(part.get(name))) for _, part in blocks for name in _SAID)) if blocks else 0


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and read_text(part.get("type")) in THINKING


def _list_calls(calls: object, old_call: object) -> Iterator[ToolCall]:
    for call in [*read_objects(calls), {"function": old_call}]:
        called = call.get("function") or call.get("custom")
        if isinstance(called, dict):
            arguments = called.get("arguments", called.get("input"))
            yield ToolCall(read_text(call.get("id")), read_text(called.get("name")), format_arguments(arguments))


def _set_usage(head: dict[str, object], usage: object) -> None:
    if isinstance(usage, dict):
        set_members(head, {"usage": usage})


def _join_choice(index: int, chunks: Iterable[dict[str, object]]) -> dict[str, object]:
    """Return a choice, given what the chunks have of it. Some servers end with the whole message instead of a delta."""
    message: dict[str, object] = {}
    rest: dict[str, object] = {}
    deltas, calls = list[dict[str, object]](), list[dict[str, object]]()
    for sent in chunks:
        delta, whole = sent.pop("delta", None), sent.pop("message", None)
        if delta and isinstance(delta, dict):
            if "tool_calls" in delta:
                calls += read_objects(delta.pop("tool_calls"))
            deltas.append(delta)
        elif isinstance(whole, dict):
            message, deltas, calls = whole, [], []
        for key, value in sent.items():
            if value is None:
                rest.setdefault(key)
            elif key == "logprobs" or isinstance(value, list):
                merge(rest, {key: value})
            elif value or key not in rest or isinstance(value, int | float):
                rest[key] = value
    merge(message, *deltas)
    message = {"role": "assistant", "content": None, **finish_object(message)}
    message["role"] = message["role"] or "assistant"
    if calls:
        message["tool_calls"] = _join_calls(calls)
    return {"index": index, "message": message, "finish_reason": None, **finish_object(rest)}


def _join_calls(fragments: Iterable[dict[str, object]]) -> list[object]:
    """Return a message's tool calls, given fragments that servers index and name in different ways."""
    slots = IndexedSlots[dict[str, object]]()
    for fragment in fragments:
        index = fragment.pop("index", None)
        place = slots.locate(index)
        call = slots.get(place)
        if call is None or _begins_another(call, fragment, is_placed=index is not None):
            call = slots.put(place, {})
        _extend_name(call, fragment)
        merge(call, fragment)
    return [finish(call) for call in slots.ordered()]


def _extend_name(call: Mapping[str, object], fragment: Mapping[str, object]) -> None:
    """Add a fragment's piece of the name to a call whose arguments have not begun."""
    known, added = call.get("function"), fragment.get("function")
    if not (isinstance(known, dict) and isinstance(added, dict)):
        return
    arguments, piece = known.get("arguments"), read_text(added.get("name"))
    if piece and not (any(arguments.fragments) if isinstance(arguments, GrowingText) else arguments):
        known["name"] = join_name(read_text(known.get("name")), piece)


def join_name(name: str, piece: str) -> str:
    """Return the name of a call with a further piece of it. Some servers repeat the whole name in place of that."""
    return name if piece == name else name + piece


def _begins_another(call: Mapping[str, object], fragment: Mapping[str, object], *, is_placed: bool) -> bool:
    """Return whether a fragment belongs to another call than the one at its place.

    Without an index, a new id begins another call. With an index, a new name is required too: some versions of vLLM
    invent an id for each fragment, while Ollama and Gemini give all calls the index 0, but send each with its name.
    """
    call_id, known_id = fragment.get("id"), call.get("id")
    if not call_id or call_id == known_id:
        return False
    function = fragment.get("function")
    return not is_placed or bool(known_id and isinstance(function, dict) and function.get("name"))
