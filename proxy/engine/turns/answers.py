"""What programs send and get back as parts: messages made of parts, and the parts of an answer, also while it comes."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from proxy.context.references import render_file_part
from proxy.engine.call.response_reader import ReadResponse, is_event_stream, read_received
from proxy.engine.call.response_stream import LocalClient
from proxy.model.errors import BadRequest
from proxy.model.exchange import Headers, Usage
from proxy.model.parts import (
    FileRefPart,
    MessagePart,
    PatchPart,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from proxy.model.results import FinishReason
from proxy.wire.format import Format
from proxy.wire.json_values import read_object
from proxy.wire.messages import read_reasoning
from proxy.wire.streams import EVENT_END, read_events

OnPart = Callable[[MessagePart], Awaitable[object] | object]
"""Is called with each part of an answer as it comes; an awaitable that it returns is awaited before the next one."""

_FINISHED: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_A_FILE = "Here is a file."
_NO_TEXT = "a message is a text or a list of parts: text, tool (the result of a call), file_ref or patch"


class ReadAnswer(msgspec.Struct, frozen=True):
    """What an answer says. `finish` is `error` if its provider broke it off; `error` has its words, if it has any."""

    text: str
    reasoning: str
    calls: tuple[ToolPart, ...]
    finish: FinishReason
    usage: Usage | None = None
    error: str = ""


def write_messages(form: Format, message: str | Sequence[MessagePart]) -> list[bytes]:
    """Return the raw messages that bring the results of tools first, and then what the user says.

    Raises BadRequest for a message that says nothing, and for parts that only a model makes.
    """
    message = list_parts(message)
    raws, said = list[bytes](), list[str]()
    for part in message:
        if isinstance(part, ToolPart):
            raws.append(_write_result(part))
        elif isinstance(part, TextPart):
            said.append(part.text)
        elif isinstance(part, FileRefPart):
            said.append(render_file_part(part))
        elif isinstance(part, PatchPart):
            said.append(part.unified_diff)
        else:
            raise BadRequest(f"{_NO_TEXT}; not {part!r:.100}")
    if said and isinstance(next(part for part in message if not isinstance(part, ToolPart)), FileRefPart):
        said.insert(0, _A_FILE)  # a message that begins with a reference looks as if somebody else managed the context
    if text := "\n\n".join(filter(None, said)):
        raws.append(form.write_message("user", msgspec.json.encode(text)))
    if not raws:
        raise BadRequest(f"the message says nothing; {_NO_TEXT}")
    return raws


def write_answer(parts: Sequence[MessagePart]) -> list[bytes]:
    """Return the raw messages of an answer that its parts tell, as `on_part` gets them: text, calls, their results.

    What is said behind results is the next message of the model's. Thoughts are not sent again, so they are left out.
    """
    raws, said, calls, results = list[bytes](), list[str](), list[ToolPart](), list[bytes]()
    for part in (*parts, None):
        if (part is None or isinstance(part, TextPart)) and (results or part is None):
            message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
            if calls:
                message["tool_calls"] = [_write_call(call) for call in calls]
            if said or calls:
                raws += (msgspec.json.encode(message), *results)
            said, calls, results = [], [], []
        if isinstance(part, TextPart):
            said.append(part.text)
        elif isinstance(part, ToolPart):
            calls.append(part)
            if part.output is not None or part.error_message is not None:
                results.append(_write_result(part))
    return raws


def _write_call(call: ToolPart) -> dict[str, Any]:
    arguments = call.input if isinstance(call.input, str) else msgspec.json.encode(call.input or {}).decode()
    return {"id": call.tool_call_id, "type": "function", "function": {"name": call.tool_name, "arguments": arguments}}


def list_parts(message: str | Sequence[MessagePart]) -> Sequence[MessagePart]:
    """Return the parts of a message. Raises BadRequest for what is neither a text nor a list."""
    if isinstance(message, str):
        return (TextPart(message),)
    if not isinstance(message, list | tuple):
        raise BadRequest(f"{_NO_TEXT}; not {message!r:.100}")
    return message


def _write_result(part: ToolPart) -> bytes:
    output = part.output
    if output is None:
        output = part.status.error_message
    if not part.tool_call_id or not isinstance(output, str):
        raise BadRequest("the result of a tool has the tool_call_id of its call, and an output, which is a text")
    return msgspec.json.encode({"role": "tool", "tool_call_id": part.tool_call_id, "content": output})


def read_answer(form: Format, headers: Headers, content: bytes, known: ReadResponse | None = None) -> ReadAnswer:
    """Return what a complete answer says, which is `known` if that has the same bytes. Raises ValueError if it is none.

    It has others where an answer was stitched of several rounds, or its record was redacted.
    """
    if known is not None and known.content == content:
        answer, raw = known.answer, known.plain
    else:
        answer, raw = read_received(form, headers, content, len(content))
    echoes = form.list_echoes(raw)
    reasoning, text, calls = read_message(form, echoes[0]) if echoes else ("", "", ())
    # Some servers say "stop" though they call tools.
    finish = _FINISHED.get(answer.finish.partition(",")[0], "error" if answer.finish or answer.error else "stop")
    if calls and finish == "stop":
        finish = "tool_use"
    return ReadAnswer(text, reasoning, calls, "error" if answer.error else finish, answer.usage, answer.error)


def read_message(form: Format, raw: bytes) -> tuple[str, str, tuple[ToolPart, ...]]:
    """Return the reasoning, the text and the calls in a raw message."""
    message = form.parse_message(raw)
    reasoning = read_reasoning(read_object(raw.decode("utf-8", "replace")) or {})
    calls = [ToolPart(call.name, call.id, _read_arguments(call.arguments)) for call in message.calls]
    return reasoning, message.text, tuple(calls)


def _read_arguments(text: str) -> Any:
    """Return arguments as JSON values, or the text that the model wrote if it is no JSON."""
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except msgspec.DecodeError:
        return text


class PartReader:
    """Calls `on_part` with the parts of an answer, in their order.

    Of a stream, text and reasoning come in pieces as they arrive, each as a part of its own: joined, they are all that
    was said. A call comes once it is whole.
    """

    def __init__(self, form: Format, step: int, on_part: OnPart) -> None:
        self._form = form
        self._step = step
        self._on_part = on_part
        self._unread = b""
        self._is_stream = self._is_begun = self._is_streamed = False

    async def take(self, piece: bytes, headers: Headers) -> None:
        """Pass on what a piece of a stream says."""
        self._is_stream = self._is_stream or is_event_stream(headers, piece)
        if not self._is_stream:
            return
        unread = self._unread + piece
        end = max((found.end() for found in EVENT_END.finditer(unread)), default=0)
        self._unread = unread[end:]
        answer = self._form.read_events(read_events(unread[:end]))
        for part in _list_said(self._form, msgspec.json.encode(answer.value)) if end else ():
            self._is_streamed = True
            await self._tell(part)

    async def finish(self, answer: ReadAnswer) -> None:
        """Pass on what is known at the end."""
        if not self._is_streamed:
            for said in (ReasoningPart(answer.reasoning), TextPart(answer.text)):
                if said.text:
                    await self._tell(said)
        for call in answer.calls:
            await self._tell(call)
        usage = answer.usage
        tokens = None if usage is None or usage.input is None else usage.input + (usage.output or 0)
        await self._tell(StepFinishPart(self._step, tokens))

    async def _tell(self, part: MessagePart) -> None:
        if not self._is_begun:
            self._is_begun = True
            await tell(self._on_part, StepStartPart(self._step))
        await tell(self._on_part, part)


async def tell(on_part: OnPart, part: MessagePart) -> None:
    """Call a function of a program, sync or async, with a part."""
    waiting = on_part(part)
    if isinstance(waiting, Awaitable):
        await waiting


def _list_said(form: Format, answer: bytes) -> Iterator[MessagePart]:
    for raw in form.list_echoes(answer):
        reasoning, text, _ = read_message(form, raw)
        if reasoning:
            yield ReasoningPart(reasoning)
        if text:
            yield TextPart(text)


def read_response(form: Format, response: LocalClient, known: ReadResponse | None = None) -> ReadAnswer:
    """Return what a successful response says; one that cannot be read is an error of its provider's."""
    try:
        return read_answer(form, response.headers, response.content, known)
    except ValueError as error:
        return ReadAnswer("", "", (), "error", None, str(error))
