"""A conversation as its client would continue it: the client's own items, byte for byte, then those of the response.

Items are those of the client's wire format: chat messages, Responses input items, Anthropic messages.
What references stand for is read here, too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.context.references import PAGE, render_original
from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.lineage.identity import parse_json_string
from proxy.engine.ports import LogReader
from proxy.engine.recorded.lookup import read_back, read_exchanges
from proxy.model.epoch import OUTSIDE, Original
from proxy.model.errors import Erased, NotFound
from proxy.model.figures import SessionHead
from proxy.model.lineage import compute_chain_root, extend_chain
from proxy.model.log import BranchRow, ExchangeRow
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, decode_content, split_body
from proxy.wire.format import Format
from proxy.wire.headers import read_encoding
from proxy.wire.identity import count_preamble

# What a compressed request may decompress to: more is a decompression bomb.
_MAX_DECODED_BYTES = 64 * 1024 * 1024


class Conversation(NamedTuple):
    """What a client would continue: the exchange that it ends with, and all items, as JSON, up to its response."""

    end: ExchangeRow
    items: list[bytes]


class MessageList(NamedTuple):
    """A request's messages after its preamble, which is its first `leading` ones, and their nodes."""

    row: ExchangeRow
    leading: int
    raws: Sequence[bytes]
    nodes: Sequence[bytes]


def _read_member(content: bytes, name: str) -> bytes:
    split = split_body(content, name)
    return split.member(name) if split else b""


def find_format(row: ExchangeRow | SessionHead) -> Format:
    """Return the wire format of an exchange. Raises NotFound where it has none."""
    if row.wire not in FORMATS:
        raise NotFound(f"exchange {row.n} is in no known wire format")
    return FORMATS[row.wire]


async def load_conversation(log: LogReader, session: str, branch: BranchRow | None = None) -> Conversation:
    """Load a session's conversation, or that of a branch, up to the exchange that `find_end` returns.

    Without a branch, an exchange whose request cannot be read is skipped in favour of the newest before it. A request
    that continues a stored response holds only what is new: the items before it are put in front. Raises NotFound where
    a part of the conversation cannot be read.
    """
    end, stored = await _find_end(log, session, branch)
    if branch is None:
        end = await _find_readable(log, end)
    parts: list[list[bytes]] = []
    row: ExchangeRow | None = end
    while row is not None:
        body = await load_body(log, row)
        answer = FORMATS[row.wire].list_echoes(row.rounds[-1].answer) if row.rounds else []
        parts.append(list_inputs(body, FORMATS[row.wire]) + answer)
        n = _pop_previous(row, body, stored)
        row = (await log.list_exchanges(session, n - 1, 1))[0] if n else None
    return Conversation(end, [item for part in reversed(parts) for item in part])


async def load_nodes(log: LogReader, session: str, branch: BranchRow) -> list[bytes]:
    """Return the nodes of all messages of a branch, its last response included. Raises NotFound."""
    end, items = await load_conversation(log, session, branch)
    read = [FORMATS[end.wire].reader.read_item(item) for item in items]
    root = compute_chain_root((await log.find_session(session)).upstream)
    return extend_chain(root, [item.form for item in read[count_preamble(read) :]])


async def find_end(log: LogReader, session: str, branch: BranchRow | None = None) -> ExchangeRow:
    """Return the exchange that a session's conversation, or that of a branch, ends with. Raises NotFound."""
    return (await _find_end(log, session, branch))[0]


def pick_end(rows: Sequence[ExchangeRow], branch: BranchRow | None = None) -> ExchangeRow:
    """Return the exchange that a conversation ends with: the newest at a branch's tip, one with a response if any has.

    Without a branch it is the newest of all that is not a side call, else the newest. Auxiliary calls, which are the
    proxy's own, never count. Raises NotFound.
    """
    rows = [row for row in rows if _is_conversation(row)]
    if not rows:
        raise NotFound("this session has no call in a known wire format; export it with --json instead")
    if branch is None:
        return next((row for row in reversed(rows) if not row.is_side), rows[-1])
    ended = [row for row in rows if row.tip == branch.tip]
    if not ended:
        raise NotFound("the calls of this branch are not in the log (any more)")
    return next((row for row in reversed(ended) if row.rounds and row.rounds[-1].answer), ended[-1])


def _is_conversation(row: ExchangeRow) -> bool:
    return row.wire in FORMATS and row.kind != "auxiliary"


async def _find_end(log: LogReader, session: str, branch: BranchRow | None) -> tuple[ExchangeRow, dict[str, int]]:
    """Return the last exchange, and the numbers of all exchanges by the ids of their stored responses."""
    kept: list[ExchangeRow] = []  # at most one: the rows of a long session do not fit into memory
    stored: dict[str, int] = {}
    async for row in read_exchanges(log, session):
        if row.wire in FORMATS and FORMATS[row.wire].previous_key and row.rounds and row.rounds[-1].answer:
            name = parse_json_string(_read_member(row.rounds[-1].answer, "id"))
            if name:
                stored[name] = row.n
        rows = [*kept, row]
        try:
            kept = [pick_end(rows, branch)]
        except NotFound:
            kept = [row for row in rows if _is_conversation(row)][:1]
    return pick_end(kept, branch), stored


async def _find_readable(log: LogReader, end: ExchangeRow) -> ExchangeRow:
    """Return this exchange if its request can be read, else the newest before it whose can.

    Raises Erased if its request was erased, and NotFound.
    """
    try:
        await load_body(log, end)
    except NotFound as error:
        async for row in read_back(log, end.session):
            if row.n < end.n and row.tip and not row.is_side and await _is_readable(log, row):
                return (await log.list_exchanges(row.session, row.n - 1, 1))[0]
        if isinstance(error, Erased):
            raise
        raise NotFound(f"{error}; a branch of the session can be named: --branch BRANCH") from error
    return end


async def _is_readable(log: LogReader, row: ExchangeRow) -> bool:
    try:
        return _is_conversation(row) and bool(await load_body(log, row))
    except NotFound:
        return False


def _pop_previous(row: ExchangeRow, body: SplitBody, stored: dict[str, int]) -> int:
    """Return the number of the exchange whose stored response a request continues, 0 for none.

    It is removed from `stored`, so that responses that name each other do not make an endless loop.
    """
    key = FORMATS[row.wire].previous_key
    name = parse_json_string(body.member(key)) if key else ""
    if not name:
        return 0
    if name not in stored:
        raise NotFound(
            f"exchange {row.n} goes on from {name[:100]!r}, which is not in this session; export it with --json instead"
        )
    return stored.pop(name)


async def load_body(log: LogReader, row: ExchangeRow) -> SplitBody:
    """Load the body of a request, decoded and with all its items. Raises NotFound where it cannot be read."""
    return read_body(row, await log.load_request(row.id))


def read_body(row: ExchangeRow | SessionHead, content: bytes) -> SplitBody:
    """Return a request's body, or what was sent for it, as `load_body` does.

    A body that was read when it came is recorded decoded, and sent as it came or without an encoding.
    """
    encoding, key = read_encoding(row.headers), find_format(row).items_key
    if row.is_capped:
        raise NotFound(f"the request of exchange {row.n} cannot be read: not all of it was kept")
    split = split_body(content, key, most_items=len(content)) if encoding else None
    if split is None:
        try:
            body = decode_content(content, encoding, _MAX_DECODED_BYTES)
        except ValueError as error:
            raise NotFound(f"the request of exchange {row.n} cannot be read: {error}") from error
        split = split_body(body, key, most_items=len(body))
    if split is None:
        raise NotFound(f"the request of exchange {row.n} cannot be read: it is no JSON object")
    return split


def list_inputs(body: SplitBody, form: Format) -> list[bytes]:
    """Return the raw items of a request. Responses: `input` may be a string, which is one message of the user."""
    whole = body.member(form.items_key)
    return [b'{"role":"user","content":%b}' % whole] if whole.startswith(b'"') else list_raws(body)


async def load_history(log: LogReader, row: ExchangeRow) -> MessageList:
    """Load the messages of an exchange. Raises NotFound where its request was not read, or cannot be any more."""
    split, chain = await load_chain(log, row, (await log.find_session(row.session)).upstream)
    return MessageList(row, chain.preamble.count, list_raws(split)[chain.preamble.count :], chain.nodes)


async def load_chain(log: LogReader, row: ExchangeRow, upstream: str) -> tuple[SplitBody, Chain]:
    """Load the request of an exchange, split, and its chain of nodes; `upstream` is its session's.

    Raises as `load_history`.
    """
    form, split = find_format(row), await load_body(log, row)
    root = compute_chain_root(upstream)
    chain = make_chain(read_messages(form, split, None, 0, root), None, root)
    if not row.tip or (chain.nodes[-1] if chain.nodes else root) != row.tip:
        raise NotFound(
            f"the messages of exchange {row.n} have no place of their own: it was not read, or goes on from"
            " what is stored elsewhere"
        )
    return split, chain


def split_whole(body: bytes, key: str) -> SplitBody:
    """Split a body, however many items it has. Raises NotFound."""
    split = split_body(body, key, most_items=len(body))
    if split is None:
        raise NotFound("what was sent cannot be taken apart")
    return split


def list_raws(split: SplitBody) -> list[bytes]:
    """Return the raw items of a body."""
    return [split.content[span.start : span.end] for span in split.items]


class OriginalText(NamedTuple):
    """The original that a reference names: its messages, and all of its text."""

    session: str
    original: Original
    messages: Sequence[bytes]
    text: str
    is_summary: bool  # it covers other references, which the text begins with


async def load_original_text(log: LogReader, name: str) -> OriginalText:
    """Load the original that a reference names, given by its id without `ref:`. Raises as `LogReader.load_original`."""
    stored = await log.load_original(name)
    form = FORMATS[stored.original.wire]
    messages = [form.parse_message(raw) for raw in stored.messages]
    is_file = stored.original.place == OUTSIDE
    text = messages[0].text if is_file else render_original(messages)[stored.original.offset :]
    covered = await _list_summary_references(log, stored.session, name)
    return OriginalText(stored.session, stored.original, stored.messages, covered + text, is_summary=bool(covered))


def cut_page(text: str, number: int, characters: int = PAGE) -> tuple[str, int]:
    """Return a page of a text, counted from 1, and how many it has; no text for a page that it does not have."""
    return text[max(0, number - 1) * characters : number * characters], max(1, -(-len(text) // characters))


async def _list_summary_references(log: LogReader, session: str, name: str) -> str:
    """Return a paragraph with the references that a summary covers; empty for the name of anything else."""
    for summary in await log.list_summaries(session):
        if summary.id == name and summary.files:
            return "\n".join(("--- references that the report covers", *(f"ref:{id}" for id in summary.files), "", ""))
    return ""
