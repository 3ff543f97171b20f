"""Whether a model sees now what a search found: word for word, in short, or not at all.

What counts is the newest call of the session's conversation: what was sent for it, and what it brought.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proxy.engine.ports import Index, LogReader
from proxy.engine.recall.scope import find_visible
from proxy.engine.recorded.conversation import load_history
from proxy.engine.recorded.lookup import find_newest_call, load_sent_epoch
from proxy.model.epoch import Epoch, Replaced, Written
from proxy.model.errors import NotFound
from proxy.model.lru import LruCache
from proxy.model.search import OURS, Hit, Visibility

_MOST_SESSIONS = 64


class _SentCall(NamedTuple):
    """What was sent for the newest call of a session: nodes that are sent whole, nodes in short, and texts of ours."""

    exchange: str
    whole: frozenset[bytes]
    short: frozenset[bytes]
    texts: tuple[str, ...]


class VisibilityReader:
    """Judges hits. What was sent for the newest call of a session is kept until there is another call."""

    def __init__(self, log: LogReader, index: Index) -> None:
        self._log = log
        self._index = index
        self._sent: LruCache[str, _SentCall] = LruCache(_MOST_SESSIONS)

    async def judge(self, hits: Iterable[Hit]) -> list[Visibility | None]:
        """Return for each hit whether the model sees it; None where the newest call of its session cannot be read."""
        calls: dict[str, _SentCall | None] = {}
        found: list[Visibility | None] = []
        for hit in hits:
            if hit.session not in calls:
                calls[hit.session] = await self._load(hit.session)
            call = calls[hit.session]
            found.append(None if call is None else await self._judge(hit, call))
        return found

    async def _judge(self, hit: Hit, call: _SentCall) -> Visibility:
        if hit.kind in OURS:
            entry = await self._index.find_entry(hit.reference)
            text = entry.text.strip() if entry is not None else ""
            return "sent" if text and any(text in each for each in call.texts) else "not_sent"
        if hit.node in call.whole or hit.exchange == call.exchange:
            return "sent"
        return "in_short" if hit.node in call.short else "not_sent"

    async def _load(self, session: str) -> _SentCall | None:
        """Load what was sent for the newest call of a session, None if that cannot be read."""
        try:
            row = await find_newest_call(self._log, session)
            known = self._sent.get(session)
            if known is None or known.exchange != row.id:
                epoch = await load_sent_epoch(self._log, row)
                known = _describe(row.id, (await load_history(self._log, row)).nodes, epoch)
                self._sent.put(session, known)
        except NotFound:
            return None
        return known


def _describe(exchange: str, nodes: Sequence[bytes], epoch: Epoch | None) -> _SentCall:
    short: set[bytes] = set()
    texts: list[str] = []
    for edit in epoch.list_edits() if epoch is not None else ():
        if isinstance(edit, Written):
            short.update(nodes[edit.start : edit.stop])
            texts.append(edit.text)
        elif isinstance(edit, Replaced) and edit.text:
            short.update(nodes[edit.place : edit.place + 1])
            texts.append(edit.text)
    return _SentCall(exchange, find_visible(nodes, epoch), frozenset(short), tuple(texts))
