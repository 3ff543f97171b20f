"""A session written out: as one JSON document, as JSON lines, as messages, or as a handoff in Markdown.

An export is made piece by piece, so that memory holds one exchange with its bodies, whatever the session's size. What
cannot be found raises before the first piece.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Literal, get_args

import msgspec

from proxy.context.references import list_argument_lines
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import load_conversation, load_history
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import find_session, pick_branch, read_exchanges
from proxy.model.epoch import Epoch, read_view
from proxy.model.errors import NotFound
from proxy.model.log import BranchRow, ExchangeRow
from proxy.model.messages import Message
from proxy.read.calls import describe_whole
from proxy.wire import FORMATS

Form = Literal["json", "jsonl", "openai"]
FORMS: tuple[Form, ...] = get_args(Form)

_BACKTICKS = re.compile(r"^`{3,}", re.MULTILINE)
_NOTE = (
    "Whoever goes on from here has what is below and nothing else: the system prompt and the tools are the new client's"
    " own. What a `ref:` names is not lost: `palimpsest expand ID` writes it, or GET `/-/api/refs/ID` of the proxy."
)
_BOUND = (
    "The signed reasoning that the client's history has from behind an epoch is accepted only through the proxy. To"
    " send that history elsewhere, remove such reasoning; there is none below."
)


async def open_export(log: LogReader, prefix: str, form: Form, tip: str = "") -> AsyncIterator[bytes]:
    """Begin an export of the session whose id has this prefix, whole or one branch by its tip. Raises NotFound.

    The pieces of the document are returned.
    """
    session, branch = await _find(log, prefix, tip)
    if form == "openai":
        items = (await load_conversation(log, session, branch)).items
        return _yield_one(write_json([msgspec.Raw(item) for item in items]))
    rows = read_exchanges(log, session, branch)
    return _yield_lines(log, rows) if form == "jsonl" else _yield_document(log, session, rows)


async def read_exported(log: LogReader, prefix: str, tip: str = "") -> AsyncIterator[ExchangeRow]:
    """Yield the exchanges that an export of this session, or of one branch, is made of. Raises NotFound."""
    async for row in read_exchanges(log, *await _find(log, prefix, tip)):
        yield row


async def _find(log: LogReader, prefix: str, tip: str) -> tuple[str, BranchRow | None]:
    session = await find_session(log, prefix)
    return session, pick_branch(await log.list_branches(session), tip) if tip else None


async def _yield_one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def _yield_lines(log: LogReader, rows: AsyncIterator[ExchangeRow]) -> AsyncIterator[bytes]:
    async for row in rows:
        yield write_json(await describe_whole(log, row))


async def _yield_document(log: LogReader, session: str, rows: AsyncIterator[ExchangeRow]) -> AsyncIterator[bytes]:
    """Yield `{"session": …, "exchanges": […]}` on one line."""
    yield b'{"session":%b,"exchanges":[' % msgspec.json.encode(session)
    separator = b""
    async for row in rows:
        yield separator + write_json(await describe_whole(log, row))[:-1]
        separator = b","
    yield b"]}\n"


async def write_handoff(log: LogReader, prefix: str, tip: str = "") -> str:
    """Write the newest conversation of the session whose id has this prefix, or that of a branch, in Markdown.

    The same log gives the same text. Raises NotFound.
    """
    end, items = await load_conversation(log, *await _find(log, prefix, tip))
    messages = [FORMATS[end.wire].parse_message(item) for item in items]
    leading = next((i for i, each in enumerate(messages) if each.role != "system"), len(messages))
    epoch = await _find_epoch(log, end)
    rest = messages[leading + (epoch.depth if epoch is not None else 0) :]
    return "\n".join(_render_handoff(end, epoch, rest)) + "\n"


async def _find_epoch(log: LogReader, end: ExchangeRow) -> Epoch | None:
    """Return the newest epoch that applies to a request, preferably one for the request's own model."""
    epochs = [epoch for epoch in (await log.load_context(end.session)).epochs if epoch.depth]
    if not epochs:
        return None
    try:
        nodes = (await load_history(log, end)).nodes
    except NotFound:
        return None
    found = [epoch for epoch in epochs if epoch.depth <= len(nodes) and nodes[epoch.depth - 1] == epoch.through]
    own = [epoch for epoch in found if read_view(epoch.view)[0] == end.model]
    return next(reversed(own or found), None)


def _render_handoff(end: ExchangeRow, epoch: Epoch | None, rest: Sequence[Message]) -> Iterator[str]:
    """Yield the lines of a handoff: of the epoch that applies to the last exchange, and the messages after it."""
    yield f"# Handoff of session {end.session}"
    yield ""
    yield f"Up to exchange {end.n} with {end.model or 'no model'}, as recorded by palimpsest. {_NOTE}"
    if epoch is not None and may_bind_reasoning(epoch.view):
        yield ""
        yield _BOUND
    if epoch is not None:
        yield ""
        yield f"## The first {epoch.depth} messages, in short"
        yield from render_messages([FORMATS[end.wire].parse_message(raw) for raw in epoch.rendered])
    yield ""
    yield "## Word for word"
    yield from render_messages(rest)
    if epoch is not None and epoch.originals:
        yield ""
        yield "## References"
        yield ""
        for each in epoch.originals:
            last = each.place + len(each.digests) - 1
            what = f"message {each.place}" if last == each.place else f"messages {each.place} to {last}"
            where = f", from character {each.offset:,}" if each.offset else ""
            yield f"- `palimpsest expand {each.id}`: {what}{where}"


def render_messages(messages: Sequence[Message]) -> Iterator[str]:
    """Yield messages as lines of Markdown."""
    for message in messages:
        answers = f" (answers {', '.join(message.results)})" if message.results else ""
        yield ""
        yield f"### {message.role or 'unknown'}{answers}"
        yield ""
        if message.text:
            yield from _render_fence(message.text) if message.role == "tool" else (message.text,)
        for medium in message.media:
            yield f"({medium})"
        for call in message.calls:
            yield f"calls `{call.name}` ({call.id}):"
            yield from _render_fence("\n".join(list_argument_lines(call.arguments)))


def _render_fence(text: str) -> tuple[str, str, str]:
    """Return the text between fences that are longer than any in the text itself."""
    longest = max((len(ticks) for ticks in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return fence, text, fence
