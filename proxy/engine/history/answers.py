"""The answer to a call: what a client gets of it, and what of that a history goes on with."""

from collections.abc import Sequence
from typing import NamedTuple

from proxy.engine.call.response_reader import is_event_stream
from proxy.engine.call.response_stream import PassingClient
from proxy.engine.ports import Client, LogReader
from proxy.model.errors import NotFound
from proxy.model.exchange import SUCCESS, Headers
from proxy.model.log import ExchangeRow
from proxy.model.messages import RECALL_TOOL
from proxy.wire import FORMATS
from proxy.wire.body import decode_content
from proxy.wire.format import Format
from proxy.wire.headers import find_header
from proxy.wire.json_values import read_object
from proxy.wire.rounds import make_stitcher, read_round


class HeldAnswer(NamedTuple):
    """The raw messages, or items, of an answer; none if it says nothing and calls nothing. `id` is its response's."""

    messages: tuple[bytes, ...]
    id: str = ""


class CapturingClient(PassingClient):
    """Passes a response on unchanged, and keeps its first `cap` bytes."""

    def __init__(self, client: Client, form: Format, cap: int) -> None:
        super().__init__(client)
        self._form = form
        self._cap = cap
        self._pieces: list[bytes] = []
        self._size = 0
        self.status = 0
        self.headers: Headers = ()
        self.is_whole = False

    @property
    def content(self) -> bytes:
        """The body so far. Empty if it has more than is kept."""
        return b"".join(self._pieces) if self._size <= self._cap else b""

    @property
    def is_ending(self) -> bool:
        """Whether the client has the end of its answer, so that it may send the next request already."""
        return self.is_whole or self._form.end_marker.search(self.content) is not None

    def start(self, status: int, headers: Headers) -> None:
        """Send the head. Only the first one counts."""
        if not self.status:
            self.status, self.headers = status, headers
        self._client.start(status, headers)

    def write(self, content: bytes, *, is_last: bool = False) -> bool:
        """Send body bytes. Return as the port says."""
        self._size += len(content)
        if self._size <= self._cap:
            self._pieces.append(content)
        else:
            self._pieces.clear()
        self.is_whole = self.is_whole or is_last
        return self._client.write(content, is_last=is_last)


def read_held_answer(form: Format, headers: Headers, content: bytes, cap: int, *, is_stored: bool) -> HeldAnswer | None:
    """Return the answer in what a client got, or None if it is not complete.

    `is_stored`: the provider keeps its items, so that it finds them again by their ids.
    """
    try:
        plain = decode_content(content, find_header(headers, b"content-encoding").decode("latin-1"), cap)
    except ValueError:
        return None
    end = read_round(form, RECALL_TOOL, plain, is_stream=is_event_stream(headers, plain))
    if end.error or not (end.is_ended or end.finish):
        return None
    messages = end.answer if is_stored else _drop_unreadable(form, end.answer)
    said = map(form.parse_message, messages)
    is_empty = not any([each.text.strip() or each.calls or each.media for each in said])
    return HeldAnswer(() if is_empty else messages, end.id)


def _drop_unreadable(form: Format, items: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return items without reasoning that only a provider that stores it could read, nor the ids that lead to it."""
    kept = []
    for raw in items:
        item = read_object(raw.decode(errors="replace")) or {}
        if item.get("type") != "reasoning" or item.get("encrypted_content") or item.get("content"):
            kept.append(raw)
    return tuple(items if len(kept) == len(items) else map(form.detach, kept))


async def is_answered(log: LogReader, row: ExchangeRow, cap: int) -> bool:
    """Return whether a history may go on with the answer to a call: whether it is complete, and can be read."""
    if not row.rounds or row.rounds[-1].completeness != "complete" or row.rounds[-1].status not in SUCCESS:
        return False
    rounds = 0
    try:
        if len(row.rounds) > 1:
            recalled = (await log.load_context(row.session)).recalled
            rounds = next((len(each.rounds) for each in recalled if each.exchange == row.id), 0)
        answer = await load_held_answer(log, FORMATS[row.wire], row, cap, rounds=rounds, is_stored=True)
    except NotFound:
        return False
    return answer is not None


async def load_held_answer(
    log: LogReader, form: Format, row: ExchangeRow, cap: int, *, rounds: int, is_stored: bool
) -> HeldAnswer | None:
    """Return the answer to a call from the log, or None if it is not complete. Raises NotFound.

    `rounds` is how many rounds the answer has if the model recalled in it, else 0.
    """
    taken = [each for each in row.rounds if each.status in SUCCESS][-max(1, rounds) :]
    if not taken or taken[-1].k != row.rounds[-1].k or taken[-1].completeness != "complete":
        return None
    contents = [await log.load_received(row.id, each.k) for each in taken]
    headers, content = taken[0].headers, contents[-1]
    if rounds:
        is_stream = is_event_stream(headers, contents[0])
        stitcher = make_stitcher(form, RECALL_TOOL, is_stream=is_stream, is_stored=is_stored)
        written = []
        for each in contents:
            written.append(stitcher.feed(each))
            stitcher.end_round()
        content = b"".join((*written, stitcher.finish()))
    return read_held_answer(form, headers, content, cap, is_stored=is_stored)
