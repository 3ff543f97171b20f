"""What a reference stands for, as text in pages.

Rule: the same reference has the same pages, for ever; a page that is not the last says how to get the next.
"""

import re
from typing import NamedTuple

from proxy.context.original import PAGE, write_original
from proxy.engine.ports import LogReader
from proxy.model.errors import NotFound
from proxy.wire.telling import read_told

_ID = re.compile(r"(?:ref:)?([a-z0-9]{10})")
_WHERE = "`palimpsest diff SESSION N` and GET /-/api/sessions/SESSION/epochs/N name those there are"


class OriginalPage(NamedTuple):
    """Part of an original, or all of it: then it is the only page."""

    reference: str
    session: str
    text: str
    number: int
    pages: int

    @property
    def content(self) -> bytes:
        """As it is given out; a lone surrogate of a message has no bytes, so a question mark stands for it."""
        return self.text.encode("utf-8", "replace")


async def load_page(log: LogReader, reference: str, number: int | None = 1) -> OriginalPage:
    """A page of what a reference stands for, counted from 1; None: all of it. Raises NotFound."""
    found = _ID.fullmatch(reference.strip().lower())
    if found is None:
        raise NotFound(f"{reference[:40]!r} is no reference: one is `ref:` and ten letters and digits; {_WHERE}")
    name = found[1]
    try:
        stored = await log.load_original(name)
    except NotFound as error:
        raise NotFound(f"{error}; {_WHERE}") from error
    text = write_original([read_told(stored.original.wire, raw) for raw in stored.messages])[stored.original.offset :]
    if number is None:
        return OriginalPage(name, stored.session, text, 1, 1)
    count = max(1, -(-len(text) // PAGE))
    if not 1 <= number <= count:
        raise NotFound(f"ref:{name} has {count} page{'s' * (count > 1)}, counted from 1, and no page {number}")
    part = text[(number - 1) * PAGE : number * PAGE]
    if number < count:
        part += (
            f"\n[page {number} of {count} of ref:{name}; the next: `palimpsest expand {name} --page {number + 1}`"
            f" or GET /-/api/refs/{name}?page={number + 1}]\n"
        )
    return OriginalPage(name, stored.session, part, number, count)
