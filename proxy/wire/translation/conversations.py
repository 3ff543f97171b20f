"""A conversation of one wire format as one of another: what is said, calls with their results, and media.

Reasoning is left out: only the provider that wrote it can use it. So are cache markers and ids of items. A result
stands directly behind its call, and a call without one has a note in its place unless it is the last.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from proxy.model.messages import Message, ToolCall
from proxy.wire.format import Format
from proxy.wire.json_values import format_json, read_object, read_objects, read_text

_NO_RESULT = "(no result)"
_LEFT_OUT = "(what was said before is left out)"
_DATA_URL = re.compile(r"data:([\w.+/-]{1,80})?(?:;[\w=.-]{1,80})*;base64,(.*)", re.DOTALL)
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_ID = 40
_MOST_DEPTH = 3
_KINDS = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
    **dict.fromkeys(("input_audio", "audio"), "audio"),
}

Value = dict[str, object]


class Attachment(msgspec.Struct, frozen=True, gc=False):
    """An image, a document or audio: as base64 in `data` with its type, or at a `url`."""

    kind: str
    mime: str = ""
    data: str = ""
    url: str = ""
    name: str = ""

    @property
    def address(self) -> str:
        """Return its URL, which has all of it if it has none of its own."""
        return self.url or f"data:{self.mime};base64,{self.data}"


class Utterance(msgspec.Struct, frozen=True, gc=False):
    """What one side says at once. `results` are pairs of a call's id and its output, behind the calls of an answer."""

    role: str
    text: str
    attachments: tuple[Attachment, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[tuple[str, str, tuple[Attachment, ...]], ...] = ()


class TranslatedConversation(msgspec.Struct, frozen=True, gc=False):
    """The members of a request that hold a conversation: raw messages or items, and the system prompt as a text.

    Where the system prompt is a message it is the first one, and `instructions` is empty.
    """

    items: tuple[bytes, ...]
    instructions: str = ""


def translate(
    source: Format, target: Format, raws: Sequence[bytes], leading: Sequence[bytes] = (), instructions: str = ""
) -> TranslatedConversation:
    """Return a conversation for another format. `leading` are the raw messages of its system prompt."""
    system = "\n\n".join(filter(None, (instructions, *(source.parse_message(raw).text for raw in leading))))
    written = _WRITERS[target.name](_fit_ids(_place_results(_read(source, raws))))
    if target.instructions_key or not system:
        return TranslatedConversation(tuple([_encode(each) for each in written]), system)
    spoken: list[Value] = [{"role": "system", "content": system}, *written]
    return TranslatedConversation(tuple([_encode(each) for each in spoken]))


def read_instructions(source: Format, member: bytes) -> str:
    """Return the text of a raw member with the system prompt."""
    return source.parse_message(b'{"role":"system","content":%b}' % member).text if member else ""


def _encode(value: Mapping[str, object]) -> bytes:
    return format_json(value).encode(errors="replace")


def _read(source: Format, raws: Sequence[bytes]) -> Iterator[Utterance]:
    """Yield what is said, consecutive parts of an answer as one."""
    answer: Utterance | None = None
    for raw in raws:
        message, attachments = source.parse_message(raw), _list_attachments(raw)
        role = "assistant" if message.role == "assistant" else message.role
        if role != "assistant":
            if answer is not None:
                yield answer
            answer = None
            yield from _read_other(raw, message, attachments)
        elif message.text or message.calls or attachments:
            answer = _join(answer, Utterance(role, message.text, attachments, message.calls))
    if answer is not None:
        yield answer


def _join(before: Utterance | None, more: Utterance) -> Utterance:
    if before is None:
        return more
    text = "\n".join(filter(None, (before.text, more.text)))
    return Utterance(before.role, text, before.attachments + more.attachments, before.calls + more.calls)


def _read_other(raw: bytes, message: Message, attachments: tuple[Attachment, ...]) -> Iterator[Utterance]:
    """Yield the results in a message, and what is said beside them."""
    if not message.results:
        yield Utterance("system" if message.role == "system" else "user", message.text, attachments)
        return
    several = len(message.outputs) == len(message.results)
    media = _list_result_attachments(raw)
    found = [
        (id, message.outputs[i] if several else "" if i else message.text, media.get(id, () if i else attachments))
        for i, id in enumerate(message.results)
    ]
    yield Utterance("tool", "", results=tuple(found))
    if message.beside:
        yield Utterance("user", "\n".join(message.beside))


def _place_results(spoken: Iterator[Utterance]) -> Iterator[Utterance]:
    """Yield what is said with each result behind its call, also where it came late or never; orphans go."""
    every = list(spoken)
    outputs: dict[str, list[tuple[str, str, tuple[Attachment, ...]]]] = {}
    for each in every:
        for result in each.results:
            outputs.setdefault(result[0], []).append(result)
    for place, each in enumerate(every):
        if each.role == "tool":
            continue
        yield each
        if not each.calls:
            continue
        found = [outputs[call.id].pop(0) if outputs.get(call.id) else None for call in each.calls]
        is_last = all(other.role == "tool" for other in every[place + 1 :])
        if is_last and not any(found):
            continue
        yield Utterance(
            "tool",
            "",
            results=tuple(result or (call.id, _NO_RESULT, ()) for call, result in zip(each.calls, found, strict=True)),
        )


def _fit_ids(spoken: Iterator[Utterance]) -> list[Utterance]:
    """Return what is said with ids of calls that every format takes."""
    fitted: dict[str, str] = {}

    def fit(id: str) -> str:
        if id not in fitted:
            bare = _UNFIT.sub("_", id)[:_LONGEST_ID]
            taken = set(fitted.values())
            fitted[id] = bare if bare and bare not in taken else f"call_{len(fitted) + 1}"
        return fitted[id]

    return [
        Utterance(
            each.role,
            each.text,
            each.attachments,
            tuple(ToolCall(fit(call.id), call.name, call.arguments) for call in each.calls),
            tuple((fit(id), text, media) for id, text, media in each.results),
        )
        for each in spoken
    ]


# Media


def _list_attachments(raw: bytes) -> tuple[Attachment, ...]:
    value = read_object(raw.decode(errors="replace")) or {}
    content = value.get("content") if "content" in value else value.get("output")
    return tuple(_walk(content, 0))


def _list_result_attachments(raw: bytes) -> Mapping[str, tuple[Attachment, ...]]:
    """Return the media of each result in a message that has several, by the id of its call."""
    value = read_object(raw.decode(errors="replace")) or {}
    parts = [part for part in read_objects(value.get("content")) if read_text(part.get("type")) == "tool_result"]
    return {read_text(part.get("tool_use_id")): tuple(_walk(part.get("content"), 1)) for part in parts}


def _walk(content: object, depth: int) -> Iterator[Attachment]:
    for part in read_objects(content):
        kind = _KINDS.get(read_text(part.get("type")))
        if kind is not None:
            found = _read_attachment(kind, part)
            if found is not None:
                yield found
        elif depth < _MOST_DEPTH and read_text(part.get("type")) == "tool_result":
            yield from _walk(part.get("content"), depth + 1)


def _read_attachment(kind: str, part: Value) -> Attachment | None:
    """Return the medium in a part, or None if it only names what a provider has stored."""
    inner = next(
        (each for name in ("source", "image_url", "file", "input_audio") if isinstance(each := part.get(name), dict)),
        part,
    )
    name = read_text(inner.get("filename")) or read_text(part.get("title"))
    if inner.get("type") == "base64":
        return Attachment(kind, read_text(inner.get("media_type")), read_text(inner.get("data")), name=name)
    if kind == "audio":
        form = read_text(inner.get("format")) or "wav"
        return Attachment(kind, f"audio/{form}", data, name=name) if (data := read_text(inner.get("data"))) else None
    given = next(filter(None, (read_text(inner.get(key)) for key in ("url", "image_url", "file_data", "file_url"))), "")
    if (found := _DATA_URL.fullmatch(given)) is not None:
        return Attachment(kind, found[1] or "application/octet-stream", found[2], name=name)
    return Attachment(kind, url=given, name=name) if given.startswith(("http:", "https:")) else None


def _describe(attachment: Attachment) -> str:
    where = attachment.url or attachment.name or attachment.mime
    return f"({attachment.kind}{f' {where}' if where else ''})"


# Writing


def _write_chat(spoken: Sequence[Utterance]) -> Iterator[Value]:
    for each in spoken:
        if each.role == "tool":
            for id, text, _ in each.results:
                yield {"role": "tool", "tool_call_id": id, "content": text}
            # Results of this format have no media: these follow as the user's.
            if shown := [_write_chat_part(medium) for _, _, media in each.results for medium in media]:
                yield {"role": "user", "content": shown}
            continue
        message: Value = {"role": each.role, "content": each.text or (None if each.calls else "")}
        if each.attachments and each.role == "user":
            words = [{"type": "text", "text": each.text}] if each.text else []
            message["content"] = [*words, *map(_write_chat_part, each.attachments)]
        if each.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in each.calls
            ]
        yield message


def _write_chat_part(medium: Attachment) -> Value:
    if medium.kind == "image":
        return {"type": "image_url", "image_url": {"url": medium.address}}
    if medium.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": medium.data, "format": medium.mime.partition("/")[2]}}
    if medium.data:
        return {"type": "file", "file": {"filename": medium.name or "document", "file_data": medium.address}}
    return {"type": "text", "text": _describe(medium)}


def _write_responses(spoken: Sequence[Utterance]) -> Iterator[Value]:
    for each in spoken:
        for id, text, media in each.results:
            parts = [_write_responses_part(medium) for medium in media]
            output: object = [{"type": "input_text", "text": text}, *parts] if parts else text
            yield {"type": "function_call_output", "call_id": id, "output": output}
        if each.role == "tool":
            continue
        kind = "output_text" if each.role == "assistant" else "input_text"
        content: list[Value] = [{"type": kind, "text": each.text}] if each.text or not each.calls else []
        content += [_write_responses_part(medium) for medium in each.attachments if each.role == "user"]
        if content:
            yield {"type": "message", "role": each.role, "content": content}
        for call in each.calls:
            yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _write_responses_part(medium: Attachment) -> Value:
    if medium.kind == "image":
        return {"type": "input_image", "image_url": medium.address}
    if medium.kind == "document" and medium.data:
        return {"type": "input_file", "filename": medium.name or "document", "file_data": medium.address}
    if medium.kind == "document":
        return {"type": "input_file", "file_url": medium.url}
    return {"type": "input_text", "text": _describe(medium)}


def _write_messages(spoken: Sequence[Utterance]) -> Iterator[Value]:
    """Yield messages with alternating roles: what the user says stands behind results, in the same message."""
    before: tuple[str, list[Value]] | None = None
    for each in spoken:
        role = "assistant" if each.role == "assistant" else "user"
        blocks = list(_write_blocks(each, role))
        if not blocks:
            continue
        if before is not None and before[0] == role:
            before[1].extend(blocks)
            continue
        if before is not None:
            yield {"role": before[0], "content": before[1]}
        elif role == "assistant":
            yield {"role": "user", "content": [{"type": "text", "text": _LEFT_OUT}]}
        before = role, blocks
    if before is not None:
        yield {"role": before[0], "content": before[1]}


def _write_blocks(each: Utterance, role: str) -> Iterator[Value]:
    for id, text, media in each.results:
        content = [{"type": "text", "text": text}] if text else []
        yield {"type": "tool_result", "tool_use_id": id, "content": [*content, *map(_write_block, media)]}
    if each.text.strip():
        yield {"type": "text", "text": each.text}
    if role == "user":
        yield from map(_write_block, each.attachments)
    for call in each.calls:
        given = read_object(call.arguments)
        found = given if given is not None else {"input": call.arguments} if call.arguments.strip() else {}
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": found}


def _write_block(medium: Attachment) -> Value:
    if medium.kind == "audio":
        return {"type": "text", "text": _describe(medium)}
    if medium.url:
        return {"type": medium.kind, "source": {"type": "url", "url": medium.url}}
    return {"type": medium.kind, "source": {"type": "base64", "media_type": medium.mime, "data": medium.data}}


_WRITERS: Mapping[str, Callable[[Sequence[Utterance]], Iterator[Value]]] = {
    "chat_completions": _write_chat,
    "responses": _write_responses,
    "anthropic_messages": _write_messages,
}
