"""A resolved client request: its session, its upstream, and its messages in the form that context management needs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import field
from msgspec.structs import replace

from proxy.context.budget import has_token_bound
from proxy.engine.conversations.bodies import KeptPart, Measures
from proxy.engine.lineage.chain import Chain
from proxy.engine.ports import Upstream
from proxy.model import Value
from proxy.model.epoch import ClearingTerms, Strategy, name_view
from proxy.model.exchange import ClientRequest, Kind, Mode, SessionKey
from proxy.model.lineage import Lineage
from proxy.model.manifest import compute_digest
from proxy.model.shared_list import extend_shared
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, append_item
from proxy.wire.identity import Item

_CEILING = b"x-palimpsest-ceiling"
_LONGEST_NUMBER = 9
UNREADABLE = "its body could not be read"
"""How the reasons begin why a request is not read, and so not managed (`ResolvedRequest.unread`)."""
NO_NOTES: Mapping[int, bytes] = {}


class Arrival(Value):
    """What is known of a call before its body is read.

    `session` is the one that it belongs to, whatever its headers say. `is_whole`: its body was made here, with all of
    its history, and must be understood. `kind` is what it is recorded as.
    """

    session: SessionKey | None = None
    is_whole: bool = False
    kind: Kind = "managed"


PLAIN_ARRIVAL = Arrival()


class SessionName(NamedTuple):
    """The session that a request names. `is_proven`: its upstream has accepted the credential lately."""

    key: SessionKey
    named: str
    is_proven: bool = True


class Counted(NamedTuple):
    """What is sent for a request whose tokens are to be counted, and what is sent if that is refused.

    `shortened` are the tokens by which `body` is shorter than `own`.
    """

    body: bytes
    own: bytes
    shortened: int = 0


class ResolvedRequest(ClientRequest, frozen=True, gc=False, kw_only=True):
    """A client's request with the exchange that it begins, its session and its upstream."""

    exchange: str
    session: SessionKey
    upstream: Upstream
    mode: Mode
    kind: Kind
    wire: str  # the name of its format; empty if its body streams through unread
    opened_ms: int
    model: str = ""
    ceiling: int | None = None  # the one that it asks for, in the model's tokens
    is_pinning: bool = False  # it asks to pin its newest message
    is_stream: bool = False  # it asks for a streamed response
    unread: str = ""  # why it is sent as it came, whatever was asked for; empty if it was read message by message
    redirected: bytes = b""  # its body with the response to continue in place of a hidden one, if it has named that
    # What is sent for `body` as it stands: that in its content-encoding, or with references to what the provider
    # stores in place of it. Empty if that is `body`.
    passed: bytes = b""
    unresolved: str = ""  # what the log lacks of what it refers to, if that is not written out
    strategy: Strategy = "epochs"
    lineage: Lineage | None = None  # its place in the session, if known

    def find_sent(self, body: bytes) -> bytes:
        """Return the bytes that are sent for a body."""
        return self.passed if self.passed and body == self.body else body

    def is_as_it_came(self, body: bytes) -> bool:
        """Return whether what is sent for a body are the bytes that the client sent."""
        return self.find_sent(body) == (self.encoded or self.body)


class ManagedRequest(ResolvedRequest, frozen=True, gc=False, kw_only=True):
    """A request whose body was split, with its place in a session.

    `lineage` is None while the upstream has not accepted its credential. What is known of the session must not be used
    then.
    """

    items_key: str  # as in its format
    split: SplitBody
    chain: Chain
    most_output: int = 0  # the output limit that it asks for; 0 if none
    is_new: bool = False  # it is the first of its session, and continues no other
    kept_part: KeptPart | None = None  # how much of its body the log has; None means all
    until: float = 0.0  # the end of its waits for the log, on the monotonic clock
    is_certain: bool = True  # as in `lineage.resolver.Placement`
    measured: Measures = field(default_factory=dict)  # what is known of its messages; what is measured for it is added
    # What it asks the provider to clear, if we do that in its place. `split` then lacks the member that says so.
    clearing: ClearingTerms | None = None

    # Its last message is a nudge of ours, which adds no node to its chain: neither the log nor a later request has it.
    is_nudged: bool = False
    source: str = ""  # the kind of prompt source that it says its newest message is, if any
    # What is sent behind outputs of tools in its messages, by index, as raw JSON strings (`stages/loops`). An
    # epoch shows its messages without.
    notes: Mapping[int, bytes] = NO_NOTES

    @property
    def view(self) -> str:
        """The name of its view."""
        return name_view(self.model, self.strategy)

    @property
    def nodes(self) -> Sequence[bytes]:
        """The nodes of its messages after the preamble."""
        return self.chain.nodes

    @property
    def kept_nodes(self) -> Sequence[bytes]:
        """The nodes of its messages without the end that its client rewrites with each request."""
        lineage = self.lineage
        is_rewritten = lineage is not None and lineage.relation == "volatile" and lineage.base > 0
        return self.nodes[: lineage.base] if lineage is not None and is_rewritten else self.nodes

    @property
    def is_side(self) -> bool:
        """True if it is a side call, which is no part of the conversation (a title, for example)."""
        return self.lineage is not None and self.lineage.is_side

    def list_raws(self, start: int = 0) -> list[bytes]:
        """Return the raw messages after the preamble, from one index on."""
        content = self.split.content
        return [content[span.start : span.end] for span in self.split.items[self.chain.preamble.count + start :]]

    def load_message(self, place: int) -> tuple[bytes, bytes]:
        """Return the node and the raw message at an index after the preamble."""
        span = self.split.items[self.chain.preamble.count + place]
        return self.nodes[place], self.split.content[span.start : span.end]

    def add_notes(self, start: int, changed: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return the messages from an index on that are sent changed: those of `changed`, and those with a note."""
        notes = self.notes and {place: note for place, note in self.notes.items() if place >= start}
        if not notes:
            return changed
        append = FORMATS[self.wire].append_output
        raws = {place: changed.get(place) or self.load_message(place)[1] for place in notes}
        return {**changed, **{place: append(raws[place], note) for place, note in notes.items()}}

    def list_unkept(self) -> frozenset[int]:
        """Return the indexes of messages that the log does not have whole and nothing may replace."""
        if self.kept_part is None:
            return frozenset()
        first = self.chain.preamble.count
        return frozenset(i - first for i in self.kept_part.list_unkept(self.split.items) if i >= first)

    def list_digests(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Return the digests under which the log stores the messages from `start` up to `stop`."""
        first, content = self.chain.preamble.count, self.split.content
        raws = [content[span.start : span.end] for span in self.split.items[first + start : first + stop]]
        return tuple([compute_digest(raw if self.kept_part is None else self.kept_part.cut(raw)) for raw in raws])

    def list_leading(self) -> list[bytes]:
        """Return the raw messages of the preamble."""
        content = self.split.content
        return [content[span.start : span.end] for span in self.split.items[: self.chain.preamble.count]]


def add_nudge(request: ManagedRequest, raw: bytes) -> ManagedRequest:
    """Return a request with a message of ours as its last one, which adds no node to its chain."""
    chain, count = request.chain, len(request.chain.nodes)
    nudged = replace(
        chain,
        nodes=extend_shared(chain.nodes, count, [chain.tip]),
        items=extend_shared(chain.items, count, [Item("user", b"")]),
        is_plain=chain.is_plain and has_token_bound(raw),
    )
    return replace(request, split=append_item(request.split, raw), chain=nudged, is_nudged=True)
