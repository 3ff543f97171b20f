"""A call as text: what its request added to the conversation, and the answer."""

from collections.abc import Iterator, Sequence

from proxy.cli.terminal import Screen, make_plain, paint
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import find_format
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
from proxy.model.messages import Message
from proxy.read.dialogue import list_answer, load_request_messages

_MOST_LINES, _MOST_CHARACTERS = 40, 4000
_INDENT = "    "


async def load_call_text(log: LogReader, row: ExchangeRow, screen: Screen, *, is_whole: bool) -> list[str]:
    """Load the lines of a call's request and answer. Unless it `is_whole`, only what it added, cut to size."""
    try:
        form = find_format(row)
    except NotFound:
        return ["The request cannot be shown: it is in no known wire format; --raw request writes its bytes."]
    raws, leading, problem = list[bytes](), 0, ""
    try:
        raws, leading = await load_request_messages(log, row, form)
    except NotFound as error:
        problem = f"The request cannot be shown: {error}."
    lines, answer = [problem] * bool(problem), list_answer(row, form)
    first = 0 if is_whole else leading + min(row.base, max(0, len(raws) - leading - 1))
    if first:
        before = "1 message" if first == 1 else f"{first:,} messages"
        lines.append(paint(f"… {before} before these, the system prompt included; --all shows them", "dim", screen))
    for message in map(form.parse_message, raws[first:]):
        lines += _format_message(message, message.role or "unknown role", screen, is_whole=is_whole)
    if not answer and not problem:  # else the answer may be missing for the same reason
        lines.append(paint("no answer was recorded", "dim", screen))
    for message in map(form.parse_message, answer):
        lines += _format_message(message, "answer", screen, is_whole=is_whole)
    return lines


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
