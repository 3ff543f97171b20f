"""A client's request as it was resolved: its session, its upstream, and its messages as managing needs them."""

from collections.abc import Callable, Sequence

import msgspec

from proxy.engine.body_cache import Holding
from proxy.engine.lineage.chain import Chain
from proxy.engine.ports import Upstream
from proxy.model.exchange import Headers, Kind, Mode, SessionKey
from proxy.model.lineage import Step
from proxy.model.manifest import Manifest, compute_digest
from proxy.wire.body import SplitBody


class ManagedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose body was split, with its place in a session. `wire` and `items_key` are its format's.

    `step` is None while the upstream has not accepted its credential: what is known of the session may not be used then
    (BEHAVIOUR B2). `target` is the path and query that it asks `upstream` for. `is_new`: it is the first of its
    session, and continues no other. `most_output` is the limit it asks for, 0 where it does not say. `holding` tells
    how much of its body the log has, None where that is all of it. `until` is when, on the monotonic clock, it has
    waited for the log for long enough. `is_certain` is as in `lineage`.
    """

    exchange: str
    session: SessionKey
    wire: str
    items_key: str
    model: str
    most_output: int
    split: SplitBody
    chain: Chain
    step: Step | None
    headers: Headers
    target: bytes
    upstream: Upstream
    is_new: bool = False
    holding: Holding | None = None
    until: float = 0.0
    is_certain: bool = True

    @property
    def nodes(self) -> Sequence[bytes]:
        """The nodes of its messages behind the preamble."""
        return self.chain.nodes

    @property
    def is_side(self) -> bool:
        """True if it is beside the conversation."""
        return self.step is not None and self.step.is_side

    def list_raws(self, start: int = 0) -> list[bytes]:
        """Return the raw messages behind the preamble, from one index on."""
        content = self.split.content
        return [content[span.start : span.end] for span in self.split.items[self.chain.preamble.count + start :]]

    def list_unkept(self) -> frozenset[int]:
        """Return the indexes of messages that the log has not whole: nothing may replace them (BEHAVIOUR B32c)."""
        if self.holding is None:
            return frozenset()
        first = self.chain.preamble.count
        return frozenset(i - first for i in self.holding.list_unkept(self.split.items) if i >= first)

    def list_digests(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Return the digests under which the log has the messages from one index up to another."""
        first, content = self.chain.preamble.count, self.split.content
        raws = [content[span.start : span.end] for span in self.split.items[first + start : first + stop]]
        return tuple([compute_digest(raw if self.holding is None else self.holding.cut(raw)) for raw in raws])

    def list_leading(self) -> list[bytes]:
        """Return the raw messages of the preamble."""
        content = self.split.content
        return [content[span.start : span.end] for span in self.split.items[: self.chain.preamble.count]]


class ResolvedRequest(msgspec.Struct, frozen=True, gc=False):
    """A client's request with what was resolved from it: its session, its upstream, what of its body is new.

    `step` is its place in the session, None where that is not known. `managed` is what managing needs of it, None where
    the body was not understood or has no place. `is_stream`: a streamed response is asked for. `build_body` builds the
    manifest of the body: called once, and before anything else is resolved, since later bodies refer to it.
    """

    exchange: str
    mode: Mode
    kind: Kind
    wire: str
    session: SessionKey
    upstream: Upstream
    model: str
    opened_ms: int
    build_body: Callable[[], Manifest]
    is_stream: bool = False
    step: Step | None = None
    managed: ManagedRequest | None = None
