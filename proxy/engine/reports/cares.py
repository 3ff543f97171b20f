"""What a person has decided of a session, as JSON.

Rule: a price is told with its unit, a message with where it stands.
"""

from typing import Any, NamedTuple

from proxy.context.savings import RevertPrice
from proxy.model.epoch import Epoch
from proxy.model.log import ExchangeRow
from proxy.wire.telling import read_told

Document = dict[str, Any]

_BEGINNING = 200


class Reversion(NamedTuple):
    """A way back: the epoch that holds from then on, and what it costs against what is sent `now`, in tokens."""

    epoch: Epoch
    quote: RevertPrice
    now: int


class Pinned(NamedTuple):
    """A pinned message: its node, and where it was found; no exchange and no bytes where no branch has it."""

    node: bytes
    exchange: ExchangeRow | None = None
    place: int = 0
    raw: bytes = b""
    tokens: int = 0


def describe_reversion(reversion: Reversion, *, is_done: bool) -> Document:
    """A way back, taken or only asked for; no epoch holds where all is sent as it comes (depth 0)."""
    epoch, quote = reversion.epoch, reversion.quote
    return {
        "is_done": is_done,
        "epoch": epoch.id if is_done else None,
        "depth": epoch.depth,
        "tokens_now": reversion.now,
        "tokens_then": quote.tokens,
        "price": {"once": quote.once, "each": quote.each, "unit": "tokens of uncached input"},
        "is_lasting": quote.is_lasting,
    }


def describe_pinned(pinned: Pinned) -> Document:
    """A pinned message, and how its text begins."""
    if pinned.exchange is None:
        return {"node": pinned.node.hex(), "exchange": None, "place": None, "role": None, "text": None, "tokens": None}
    told = read_told(pinned.exchange.wire, pinned.raw)
    return {
        "node": pinned.node.hex(),
        "exchange": pinned.exchange.n,
        "place": pinned.place,
        "role": told.role,
        "text": told.text[:_BEGINNING],
        "tokens": pinned.tokens,
    }
