"""What a wire format must answer. Rule: formats share this Protocol, not a base class; three APIs evolve apart."""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from proxy.model.exchange import Answer
from proxy.wire.sse import ServerEvent


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
    def end_marker(self) -> re.Pattern[bytes]:
        """Matches at a line that ends a stream as a whole; searched in raw bytes."""
        ...

    def read_answer(self, value: Mapping[str, object]) -> Answer:
        """The answer in a non-streamed body."""
        ...

    def read_events(self, events: Iterable[ServerEvent]) -> Answer:
        """The answer a stream adds up to, as far as it came; lenient: what is not understood is passed over."""
        ...
