"""A call as text: what its request added to the conversation, and the answer."""

from collections.abc import Iterator, Sequence

from proxy.cli.terminal import Screen, make_plain, paint
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.messages import Message
from proxy.read.dialogue import CallMessages, load_call

_MOST_LINES, _MOST_CHARACTERS = 40, 4000
_INDENT = "    "


async def load_call_text(log: LogReader, row: ExchangeRow) -> CallMessages[Message]:
    """Load the request and the answer of an exchange as messages."""
    try:
        form = find_format(row)
    except NotFound:
        return CallMessages(missing="it is in no known wire format; --raw request writes its bytes")
    call = await load_call(log, row, form)
    preamble, messages, answer = (
        [form.parse_message(raw) for raw in raws] for raws in (call.preamble, call.messages, call.answer)
    )
    return CallMessages(preamble, messages, call.known, answer, call.missing)


def format_call_text(call: CallMessages[Message], screen: Screen, *, is_whole: bool) -> Iterator[str]:
    """Yield the lines of a call's request and answer. Unless it `is_whole`, only what it added, cut to size."""
    if call.missing:
        yield f"The request cannot be shown: {call.missing}."
    shown = call.messages if is_whole else call.messages[min(call.known, max(0, len(call.messages) - 1)) :]
    if is_whole:
        for message in call.preamble:
            yield from _format_message(message, message.role, screen, is_whole=True)
    elif skipped := len(call.preamble) + len(call.messages) - len(shown):
        before = "1 message" if skipped == 1 else f"{skipped:,} messages"
        yield paint(f"… {before} before these, the system prompt included; --all shows them", "dim", screen)
    for message in shown:
        yield from _format_message(message, message.role or "unknown role", screen, is_whole=is_whole)
    if not call.answer and not call.missing:  # else the answer may be missing for the same reason
        yield paint("no answer was recorded", "dim", screen)
    for message in call.answer:
        yield from _format_message(message, "answer", screen, is_whole=is_whole)


def _format_message(message: Message, head: str, screen: Screen, *, is_whole: bool) -> Iterator[str]:
    yield ""
    yield paint(make_plain(f"{head} ({message.name})" if message.name else head), "bold", screen)
    lines = make_plain(message.text).splitlines()
    kept = lines if is_whole else _cut(lines)
    yield from (f"{_INDENT}{line}".rstrip() for line in kept)
    if len(kept) < len(lines):
        yield _INDENT + paint(f"… {len(lines) - len(kept):,} more lines; --all shows them", "dim", screen)
    for call in message.calls:
        arguments = call.arguments if is_whole or len(call.arguments) <= _MOST_CHARACTERS else "…"
        yield from (f"{_INDENT}{line}" for line in make_plain(f"→ {call.name} {arguments}").splitlines())
    for medium in message.media:
        yield _INDENT + paint(make_plain(f"[{medium}]"), "dim", screen)


def _cut(lines: Sequence[str]) -> Sequence[str]:
    """Return the first lines, at least one. A line may be as long as the others together."""
    kept: list[str] = []
    left = _MOST_CHARACTERS
    for line in lines[:_MOST_LINES]:
        left -= len(line)
        if kept and left < 0:
            break
        kept.append(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…")
    return kept
