"""A conversation as its client would continue it: the client's own items, byte for byte, then those of the response.

Items are those of the client's wire format: chat messages, Responses input items, Anthropic messages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.lineage.naming import read_text
from proxy.engine.ports import LogReader
from proxy.engine.reports.lookup import read_back, read_exchanges
from proxy.model.errors import NotFound
from proxy.model.lineage import root_of_chain
from proxy.model.log import BranchRow, ExchangeRow
from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.body import SplitBody, decode_content, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.headers import find
from proxy.wire.responses import Responses

_CAP = 64 * 1024 * 1024  # of a compressed request: what a small one may unfold to
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
    split = split_body(content, name, most_items=len(content))  # all of them
    return [content[span.start : span.end] for span in split.items] if split else []


_WIRES: Mapping[str, tuple[Format, Callable[[bytes], list[bytes]]]] = {
    ChatCompletions.name: (ChatCompletions(), _read_choices),
    AnthropicMessages.name: (AnthropicMessages(), _read_content),
    Responses.name: (Responses(), _read_output),
}


def pick_end(rows: Sequence[ExchangeRow], branch: BranchRow | None = None) -> ExchangeRow:
    """The exchange that a conversation ends with: the newest at a branch's tip, answered if any is.

    Without a branch it is the newest of all that is no side call, else the newest. No call of our own is in one. Raises
    NotFound.
    """
    rows = [row for row in rows if _may_hold(row)]
    if not rows:
        raise NotFound("this session has no call in a known wire format; export it with --json instead")
    if branch is None:
        return next((row for row in reversed(rows) if not row.is_side), rows[-1])
    ended = [row for row in rows if row.tip == branch.tip]
    if not ended:
        raise NotFound("the calls of this branch are not in the log (any more)")
    return next((row for row in reversed(ended) if row.rounds and row.rounds[-1].answer), ended[-1])


def _may_hold(row: ExchangeRow) -> bool:
    """Whether a client's conversation may be in it."""
    return row.wire in _WIRES and row.kind != "auxiliary"


class Conversation(NamedTuple):
    """What a client would go on with: the exchange that it ends with, and all items up to the answer, in JSON."""

    end: ExchangeRow
    items: list[bytes]


async def load_conversation(log: LogReader, session: str, branch: BranchRow | None = None) -> Conversation:
    """A session's conversation, or that of a branch, up to the answer it ends with (`pick_end`).

    Without a branch a call that cannot be read ends nothing: the newest before it does. A request that names a stored
    answer holds only what is new: what came before is put in front. Raises NotFound where a part of it cannot be read.
    """
    end, stored = await _survey(log, session, branch)
    if branch is None:
        end = await _find_readable(log, end)
    parts: list[list[bytes]] = []
    row: ExchangeRow | None = end
    while row is not None:
        body = read_request(row, await log.load_request(row.id))
        parts.append(_list_items(row, body))
        n = _find_previous(row, body, stored)
        row = (await log.list_exchanges(session, n - 1, 1))[0] if n else None
    return Conversation(end, [item for part in reversed(parts) for item in part])


async def _find_readable(log: LogReader, end: ExchangeRow) -> ExchangeRow:
    """The exchange itself where its request can be read, else the newest before it that was read. Raises NotFound."""
    try:
        read_request(end, await log.load_request(end.id))
    except NotFound as error:
        async for row in read_back(log, end.session):
            if row.n < end.n and row.tip and not row.is_side and await _is_readable(log, row):
                return (await log.list_exchanges(row.session, row.n - 1, 1))[0]
        raise NotFound(f"{error}; a branch of the session can be named: --branch TIP") from error
    return end


async def _is_readable(log: LogReader, row: ExchangeRow) -> bool:
    try:
        return _may_hold(row) and bool(read_request(row, await log.load_request(row.id)))
    except NotFound:
        return False


async def find_end(log: LogReader, session: str, branch: BranchRow | None = None) -> ExchangeRow:
    """The exchange that a session's conversation, or that of a branch, ends with. Raises NotFound."""
    return (await _survey(log, session, branch))[0]


async def _survey(log: LogReader, session: str, branch: BranchRow | None) -> tuple[ExchangeRow, dict[str, int]]:
    """The exchange that it ends with, and the numbers of exchanges by the ids of their stored answers."""
    kept: list[ExchangeRow] = []
    stored: dict[str, int] = {}
    async for row in read_exchanges(log, session):
        rows = [*kept, row]
        stored.update(_name_stored([row]))
        try:
            kept = [pick_end(rows, branch)]
        except NotFound:
            kept = [row for row in rows if _may_hold(row)][:1]
    return pick_end(kept, branch), stored


def _name_stored(rows: Sequence[ExchangeRow]) -> Iterator[tuple[str, int]]:
    for row in rows:
        if row.wire in _WIRES and _WIRES[row.wire][0].previous_key and row.rounds and row.rounds[-1].answer:
            name = read_text(_read_member(row.rounds[-1].answer, "id"))
            if name:
                yield name, row.n


def _find_previous(row: ExchangeRow, body: bytes, stored: dict[str, int]) -> int:
    """The exchange whose stored answer a request goes on from, taken out, so that no ring can be walked for ever."""
    key = _WIRES[row.wire][0].previous_key
    name = read_text(_read_member(body, key)) if key else ""
    if not name:
        return 0
    if name not in stored:
        raise NotFound(
            f"exchange {row.n} goes on from {name[:100]!r}, which is not in this session; export it with --json instead"
        )
    return stored.pop(name)


def find_format(row: ExchangeRow) -> Format:
    """The wire format of an exchange. Raises NotFound where it has none."""
    if row.wire not in _WIRES:
        raise NotFound(f"exchange {row.n} is in no known wire format")
    return _WIRES[row.wire][0]


def read_request(row: ExchangeRow, request: bytes) -> bytes:
    """A request's body as it is read, decompressed. Raises NotFound where it cannot be."""
    encoding = find(row.headers, b"content-encoding").decode("latin-1")
    if row.is_capped:
        raise NotFound(f"the request of exchange {row.n} cannot be read: not all of it was kept")
    try:
        body = decode_content(request, encoding, _CAP)
    except ValueError as error:
        raise NotFound(f"the request of exchange {row.n} cannot be read: {error}") from error
    if split_body(body, _WIRES[row.wire][0].items_key) is None:
        raise NotFound(f"the request of exchange {row.n} cannot be read: it is no JSON object")
    return body


def _list_items(row: ExchangeRow, body: bytes) -> list[bytes]:
    form, read_answer = _WIRES[row.wire]
    whole = _read_member(body, form.items_key)
    items = [_USER % whole] if whole.startswith(b'"') else _read_elements(body, form.items_key)
    return items + (read_answer(row.rounds[-1].answer) if row.rounds else [])


class MessageList(NamedTuple):
    """A request's messages behind its preamble, which is its first `leading` ones, and their nodes."""

    row: ExchangeRow
    leading: int
    raws: Sequence[bytes]
    nodes: Sequence[bytes]


async def load_history(log: LogReader, row: ExchangeRow) -> MessageList:
    """The messages of an exchange. Raises NotFound where its request was not read, or cannot be any more."""
    split, chain = await load_chain(log, row, (await log.find_session(row.session)).upstream)
    return MessageList(row, chain.preamble.count, list_raws(split)[chain.preamble.count :], chain.nodes)


async def load_chain(log: LogReader, row: ExchangeRow, upstream: str) -> tuple[SplitBody, Chain]:
    """The request of an exchange in parts, and its chain; `upstream` is its session's. Raises as `load_history`."""
    form = find_format(row)
    split = split_whole(read_request(row, await log.load_request(row.id)), form.items_key)
    root = root_of_chain(upstream)
    chain = make_chain(read_messages(form, split, None, 0, root), None, root)
    if not row.tip or (chain.nodes[-1] if chain.nodes else root) != row.tip:
        raise NotFound(
            f"the messages of exchange {row.n} have no place of their own: it was not read, or goes on from"
            " what is stored elsewhere"
        )
    return split, chain


def split_whole(body: bytes, key: str) -> SplitBody:
    """A body in parts, however many. Raises NotFound."""
    split = split_body(body, key, most_items=len(body))
    if split is None:
        raise NotFound("what was sent cannot be taken apart")
    return split


def list_raws(split: SplitBody) -> list[bytes]:
    """The raw messages of a body."""
    return [split.content[span.start : span.end] for span in split.items]
