"""A conversation as its client would go on with it. Rule: the client's own items, byte for byte, then the answer's."""

from collections.abc import Callable, Mapping, Sequence

from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.encoding import decode_content
from proxy.wire.format import Format
from proxy.wire.headers import find
from proxy.wire.responses import Responses

_CAP = 2**31
_ASSISTANT = b'{"role":"assistant","content":%b}'
_USER = b'{"role":"user","content":%b}'


def _read_choices(answer: bytes) -> list[bytes]:
    """The first choice's message: of several, a client can go on with only one."""
    messages = [_read_member(choice, "message") for choice in _read_elements(answer, "choices")[:1]]
    return [message for message in messages if message]


def _read_content(answer: bytes) -> list[bytes]:
    content = _read_member(answer, "content")
    return [_ASSISTANT % content] if content else []


def _read_output(answer: bytes) -> list[bytes]:
    return _read_elements(answer, "output")


def _read_member(content: bytes, name: str) -> bytes:
    split = split_body(content, name)
    return split.member(name) if split else b""


def _read_elements(content: bytes, name: str) -> list[bytes]:
    split = split_body(content, name)
    return [content[span.start : span.end] for span in split.items] if split else []


_WIRES: Mapping[str, tuple[Format, Callable[[bytes], list[bytes]]]] = {
    ChatCompletions.name: (ChatCompletions(), _read_choices),
    AnthropicMessages.name: (AnthropicMessages(), _read_content),
    Responses.name: (Responses(), _read_output),
}


def find_newest(rows: Sequence[ExchangeRow]) -> ExchangeRow:
    """The newest exchange in a wire format we read. Raises NotFound."""
    for row in reversed(rows):
        if row.wire in _WIRES:
            return row
    raise NotFound("this session has no call in a known wire format; export it with --json instead")


def continue_conversation(row: ExchangeRow, request: bytes) -> list[bytes]:
    """The items of a request and of the answer it got, in JSON. Raises NotFound if the request cannot be read."""
    form, read_answer = _WIRES[row.wire]
    encoding = find(row.headers, b"content-encoding").decode("latin-1")
    try:
        body = decode_content(request, encoding, _CAP)
    except ValueError as error:
        raise NotFound(f"the newest request cannot be read: {error}") from error
    whole = _read_member(body, form.items_key)
    items = [_USER % whole] if whole.startswith(b'"') else _read_elements(body, form.items_key)
    return items + (read_answer(row.rounds[-1].answer) if row.rounds else [])
