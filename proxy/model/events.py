"""Facts the engine publishes. Rule: one frozen value per fact, past tense, declared when it is published."""

import msgspec

from proxy.model.exchange import Completeness, Kind


class ExchangeRecorded(msgspec.Struct, frozen=True, gc=False):
    """A round's outcome was handed to the log. Sizes in bytes, times in seconds.

    `is_readable`: a reading will follow, or ReadingFailed. Where it is not final, another round of the exchange
    follows, and the client gets nothing of this one.
    """

    exchange: str
    session: str
    kind: Kind
    wire: str
    upstream: str
    status: int
    completeness: Completeness
    request_size: int
    received_size: int
    first_byte_s: float
    total_s: float
    is_readable: bool = False
    is_final: bool = True


class ReadingFailed(msgspec.Struct, frozen=True, gc=False):
    """The bytes of an answer could not be interpreted; they are in the log all the same."""

    exchange: str
    error: str


Event = ExchangeRecorded | ReadingFailed
