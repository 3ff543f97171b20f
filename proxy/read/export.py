"""A session written out: as one JSON document, as JSON lines, as messages, or as a handoff in Markdown.

An export is made piece by piece, so that memory holds one exchange with its bodies, whatever the session's size. What
cannot be found raises before the first piece.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import msgspec

from proxy.context.references import list_argument_lines
from proxy.context.verbatim import may_bind_reasoning
from proxy.engine.ports import LogReader
from proxy.engine.recorded.conversation import load_conversation, load_history
from proxy.engine.recorded.documents import write_json
from proxy.engine.recorded.lookup import find_session, pick_branch, read_exchanges
from proxy.model.epoch import Epoch, read_view
from proxy.model.errors import NotFound
from proxy.model.log import ExchangeRow
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


class Export(NamedTuple):
    """The pieces of a document, and a function that reads the exchanges it is made of from the log again."""

    pieces: AsyncIterator[bytes]
    read: Callable[[], AsyncIterator[ExchangeRow]]


class Handoff(NamedTuple):
    """What a handoff tells: the last exchange, the epoch that applies to it, the epoch's ledger, the messages after it.

    Without an epoch all messages after the system prompt are in `messages`.
    """

    end: ExchangeRow
    epoch: Epoch | None
    ledger: Sequence[Message]
    messages: Sequence[Message]


async def open_export(log: LogReader, prefix: str, form: Form, tip: str = "") -> Export:
    """Begin an export of the session whose id has this prefix, whole or one branch by its tip. Raises NotFound."""
    session = await find_session(log, prefix)
    branch = pick_branch(await log.list_branches(session), tip) if tip else None
    read = partial(read_exchanges, log, session, branch)
    if form == "openai":
        items = (await load_conversation(log, session, branch)).items
        return Export(_yield_one(write_json([msgspec.Raw(item) for item in items])), read)
    return Export(_yield_lines(log, read()) if form == "jsonl" else _yield_document(log, session, read()), read)


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


async def load_handoff(log: LogReader, prefix: str, tip: str = "") -> Handoff:
    """Load the newest conversation of the session whose id has this prefix, or that of a branch. Raises NotFound."""
    session = await find_session(log, prefix)
    branch = pick_branch(await log.list_branches(session), tip) if tip else None
    end, items = await load_conversation(log, session, branch)
    messages = [FORMATS[end.wire].parse_message(item) for item in items]
    leading = next((i for i, each in enumerate(messages) if each.role != "system"), len(messages))
    epoch = await _find_epoch(log, end)
    ledger = [FORMATS[end.wire].parse_message(raw) for raw in epoch.rendered] if epoch is not None else []
    return Handoff(end, epoch, ledger, messages[leading + (epoch.depth if epoch is not None else 0) :])


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


def write_handoff(handoff: Handoff) -> str:
    """Render a handoff in Markdown. The same log gives the same text."""
    return "\n".join(_render_handoff(handoff)) + "\n"


def _render_handoff(handoff: Handoff) -> Iterator[str]:
    end, epoch = handoff.end, handoff.epoch
    yield f"# Handoff of session {end.session}"
    yield ""
    yield f"Up to exchange {end.n} with {end.model or 'no model'}, as recorded by palimpsest. {_NOTE}"
    if epoch is not None and may_bind_reasoning(epoch.view):
        yield ""
        yield _BOUND
    if epoch is not None:
        yield ""
        yield f"## The first {epoch.depth} messages, in short"
        yield from render_messages(handoff.ledger)
    yield ""
    yield "## Word for word"
    yield from render_messages(handoff.messages)
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
