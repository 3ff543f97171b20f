"""A client's request as it was resolved: its session, its upstream, and its messages as managing needs them."""

from collections.abc import Sequence

from proxy.engine.body_cache import Holding
from proxy.engine.lineage.chain import Chain
from proxy.engine.ports import Upstream
from proxy.model.exchange import ClientRequest, Kind, Mode, SessionKey
from proxy.model.lineage import Step
from proxy.model.manifest import compute_digest
from proxy.wire.body import SplitBody


class ResolvedRequest(ClientRequest, frozen=True, gc=False, kw_only=True):
    """A client's request with what was resolved from it: the exchange that it begins, its session, its upstream.

    `wire` is the name of its format, empty where its body streams through unread. `ceiling` is the one that it asks
    for, in the model's tokens. `step` is its place in the session, None where that is not known. `is_stream`: a
    streamed response is asked for.
    """

    exchange: str
    session: SessionKey
    upstream: Upstream
    mode: Mode
    kind: Kind
    wire: str
    opened_ms: int
    model: str = ""
    ceiling: int | None = None
    is_stream: bool = False
    step: Step | None = None


class ManagedRequest(ResolvedRequest, frozen=True, gc=False, kw_only=True):
    """A request whose body was split, with its place in a session: what managing needs. `items_key` is its format's.

    `step` is None while the upstream has not accepted its credential: what is known of the session may not be used then
    (BEHAVIOUR B2). `is_new`: it is the first of its session, and continues no other. `most_output` is the limit it asks
    for, 0 where it does not say. `holding` tells how much of its body the log has, None where that is all of it.
    `until` is when, on the monotonic clock, it has waited for the log for long enough. `is_certain` is as in `lineage`.
    """

    items_key: str
    split: SplitBody
    chain: Chain
    most_output: int = 0
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
