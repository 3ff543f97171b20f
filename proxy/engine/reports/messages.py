"""The messages of a request in the log, and where they stand.

Rule: found out of the recorded bytes as they were when the request came; what cannot be is NotFound, with the reason.
"""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.engine.ports import LogReader
from proxy.engine.reports.conversation import find_format, read_request
from proxy.model.errors import NotFound
from proxy.model.lineage import root_of_chain
from proxy.model.log import ExchangeRow
from proxy.wire.body import SplitBody, split_body


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
