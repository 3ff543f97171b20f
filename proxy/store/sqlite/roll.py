"""Which named sessions the log may hold: of one that it cannot, nothing is looked up. Rule: never no in error.

The file is ours alone to write: there is nothing but what it had when it was opened and what was appended since.
On the event loop, a page at a time; before the file has been gone through (4 us a session), it may hold any.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Opening, SessionKey
from proxy.model.record import Record
from proxy.store.sqlite.sieve import Sieve
from proxy.store.storable import fit_text

_MOST_NEWEST = 4096

_log = logging.getLogger(__name__)

# the row ids and keys of some named sessions behind a row id, in order; none behind the last
ListNamed = Callable[[int], Awaitable[Sequence[tuple[int, str]]]]


class Roll:
    """Sessions without a name are not in it: their ids are made for one call, and never asked for before it."""

    def __init__(self) -> None:
        self._sieve = Sieve()
        self._newest: set[str] = set()
        self._is_whole = False

    def note(self, records: Iterable[Record]) -> None:
        """These are being appended."""
        for record in records:
            if isinstance(record, Opening) and record.session.family:
                name = fit_text(record.session.id)
                if name not in self._newest:  # a conversation has many calls, and four places in 4 MB are far apart
                    self._sieve.add(name)
                    self._remember(name)

    def _remember(self, name: str) -> None:
        if len(self._newest) >= _MOST_NEWEST:
            self._newest.clear()
        self._newest.add(name)

    def may_hold(self, session: SessionKey) -> bool:
        """False where the log surely has no such session, not even among what still has to be written."""
        return not self._is_whole or not session.family or self._sieve.may_hold(fit_text(session.id))

    async def read(self, list_named: ListNamed) -> None:
        """Go through what the file has."""
        last = 0
        try:
            while page := await list_named(last):
                for _, key in page:
                    self._sieve.add(key)
                last, _ = page[-1]
        except StoreUnavailable as error:
            _log.warning("new sessions are looked up in the log until the next start, which takes longer: %s", error)
            return
        self._is_whole = True
