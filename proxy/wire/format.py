"""What a wire format must answer. Rule: formats share this Protocol, not a base class; three APIs evolve apart."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from proxy.model.exchange import Answer
from proxy.wire.body import ByteRange
from proxy.wire.identity import Item
from proxy.wire.streams import ServerEvent


class Format(Protocol):
    """One wire format: where its messages stand, how its streams end, what its answers say."""

    @property
    def name(self) -> str:
        """`chat_completions`, `responses` or `anthropic_messages`."""
        ...

    @property
    def items_key(self) -> str:
        """The top-level member whose array elements are the conversation."""
        ...

    @property
    def orders_key(self) -> str:
        """The member beside the conversation that tells the model who it is; empty where only messages do."""
        ...

    @property
    def previous_key(self) -> str:
        """The member that names, by its id, a stored answer which the request goes on from; empty if there is none."""
        ...

    @property
    def end_marker(self) -> re.Pattern[bytes]:
        """Matches at a line that ends a stream as a whole; searched in raw bytes."""
        ...

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """The answer in a non-streamed body."""
        ...

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """The answer a stream adds up to, as far as it came; lenient: what is not understood is passed over."""
        ...

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        """The conversation's elements at these spans of a request body; spans of what is new are enough.

        Total: whatever stands there has a form. The leading items of role system are the preamble, which is no part of
        the chain: `identity.count_preamble` counts them, in a list that begins where the conversation does.
        """
        ...

    def read_input(self, member: bytes) -> list[Item]:
        """The elements in the raw member under `items_key` where it is no array: a plain string is one user message
        on the Responses wire; nowhere else is there any.
        """
        ...

    def read_orders(self, member: bytes) -> bytes:
        """What makes the raw member under `orders_key` the same when it comes again. Total."""
        ...

    def read_reply(self, value: Mapping[str, object]) -> tuple[tuple[Item, ...], ...]:
        """For each alternative of an answer (`Answer.value`), what a client adds to its history in echoing it.

        `read_items` of the echo gives the same forms. An error has no alternatives.
        """
        ...

    def read_ids(self, value: Mapping[str, object]) -> tuple[str, ...]:
        """The ids by which later requests may refer to the items of an answer, in their order; none on most wires."""
        ...
