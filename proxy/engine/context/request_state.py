"""The state of a request when it is decided what to send: its epoch, its history, its tokens, its budget."""

from collections.abc import Sequence

import msgspec

from proxy.context.budget import Budget, TokenRatio, is_surely_below_soft_mark
from proxy.context.epoch_decision import LATE, UNREAD, CacheCostAccount, Holdout, RequestFacts
from proxy.context.model_catalog import may_bind_reasoning
from proxy.context.pricing import Tariff
from proxy.context.verbatim import find_unanswered, find_verbatim, iterate_groups
from proxy.engine.context.history_cache import MeasuredHistory, PartialHistory, count_shared, is_head_of
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.session_context import EpochAccount, SessionContext
from proxy.engine.models import CacheCalibrator, Models
from proxy.engine.ports import Clock
from proxy.engine.request import ManagedRequest
from proxy.model.card import LimitKey
from proxy.model.epoch import Epoch, EpochReason, Pin, Plan, Rung
from proxy.model.exchange import Headers
from proxy.wire import FORMATS
from proxy.wire.body import ByteRange

# Reasons for which an epoch opens in spite of signed reasoning: the user's request, or the window.
_OVER_SIGNED: tuple[EpochReason, ...] = ("overflow", "manual")

_NO_HOLDOUT = Holdout()
# Milliseconds after a refusal in which no epoch opens in a view (BEHAVIOUR B8a).
_REFUSED_MS = 24 * 60 * 60 * 1000


class RequestState(msgspec.Struct, frozen=True, gc=False):
    """The state of one request. Tokens are as we count them, the budget's too; `ratio` converts them to the model's.

    `epoch` is the one that applies, None where none does, and `epoch_account` the account of the view under it;
    `frozen` are the tokens of what is sent for it. `kept` are the tokens at the request's beginning that were sent
    before, None where it continues the last request. `protected` are those that no epoch may replace, as the last
    plan found them. `now` is in monotonic seconds. `may_be_held_out`: its session is only observed where the log has
    no epoch of it; `is_refused`: the upstream refused the epoch of late.
    """

    request: ManagedRequest
    context: SessionContext
    epoch: Epoch | None
    epoch_account: EpochAccount
    frozen: int
    history: MeasuredHistory
    kept: int | None
    budget: Budget
    tariff: Tariff
    ratio: TokenRatio
    protected: int
    now: float
    may_be_held_out: bool = False
    is_refused: bool = False

    @property
    def view(self) -> str:
        """The model asked for."""
        return self.request.model

    @property
    def client_tokens(self) -> int:
        """Tokens of the client's own request."""
        return self.history.tokens

    @property
    def tokens(self) -> int:
        """Tokens of what is sent if no epoch opens."""
        depth = self.epoch.depth if self.epoch is not None else 0
        return self.history.tokens - self.history.count_to(depth) + self.frozen

    @property
    def account(self) -> CacheCostAccount:
        """The account of cache costs under the epoch that applies."""
        return self.epoch_account.account

    @property
    def facts(self) -> RequestFacts:
        """The facts of this request that the decision about an epoch depends on."""
        request, context = self.request, self.context
        unread = UNREAD if not context.is_known else "" if request.is_certain else LATE
        in_vain, tip = context.in_vain.get(self.view, (0, b""))
        return RequestFacts(
            self.tokens,
            self.budget,
            self.tariff,
            self.protected,
            self.kept,
            stable=self.history.head.tokens,
            idle=self.account.compute_idle(self.now),
            is_side=request.is_side,
            is_bound=self.is_bound,
            unread=unread,
            may_be_held_out=self.may_be_held_out,
            is_repeat=context.was_sent(self.view, request),
            is_retry=request.step is not None and request.step.relation == "retry",
            is_refused=self.is_refused,
            in_vain=in_vain,
            is_tried=(in_vain, tip) == (self.tokens, request.chain.tip),
        )

    def is_unsigned(self, epoch: Epoch) -> bool:
        """Return whether signed reasoning is removed from what is sent under an epoch (B37).

        A signature covers what came before it, so it is removed where the client's beginning is replaced, or the
        upstream has refused it.
        """
        if self.view in self.context.unsigned:
            return bool(self.history.signed)
        return epoch.why in _OVER_SIGNED and self.is_bound

    @property
    def is_bound(self) -> bool:
        """True if its messages have signed reasoning that is valid only behind the unchanged beginning."""
        return bool(self.history.signed) and may_bind_reasoning(self.view)

    def find_account(self, epoch: Epoch | None) -> EpochAccount:
        """Return the account of the view under an epoch, or under none."""
        if epoch is self.epoch:
            return self.epoch_account
        return self.context.get_account(self.view, epoch.id if epoch is not None else "", self.budget)

    def with_epoch(self, epoch: Epoch, frozen: int) -> "RequestState":
        """Return the state of the same request under another epoch, for which `frozen` tokens are sent."""
        return msgspec.structs.replace(self, epoch=epoch, epoch_account=self.find_account(epoch), frozen=frozen)

    def to_model_tokens(self, tokens: int) -> int:
        """Convert our tokens to the model's."""
        return self.ratio.apply(tokens)


def find_kept(history: MeasuredHistory, before: Sequence[bytes] | None, frozen: int, depth: int) -> int | None:
    """Count the tokens at a request's beginning that were sent before; None where all of the last request is there.

    `before` are the nodes of the last request under the same epoch, which replaces the first `depth` messages: these
    are in both.
    """
    if before is None:
        return None
    shared = count_shared(before, history.nodes)
    if shared == len(before):
        return None
    return history.head.tokens + frozen + history.count(depth, shared)


def estimate_protected(history: MeasuredHistory, pinned: frozenset[int] = frozenset()) -> int:
    """Estimate the tokens that no epoch may replace: the prompt's beginning, and what has to stay word for word.

    `pinned` are the places of messages that must stay for another reason.
    """
    structures = history.structures
    verbatim = find_verbatim(iterate_groups(structures), find_unanswered(structures), pinned=pinned)
    earlier = sum(history.count(places.start, places.stop) for places in verbatim.list_earlier())
    return history.head.tokens + history.count(verbatim.tail, len(structures)) + earlier


class UncountedState(msgspec.Struct, frozen=True, gc=False):
    """A state in which the new messages are not counted: in its history each has its bytes, which are more."""

    state: RequestState
    begun: PartialHistory


class OutgoingRequest(msgspec.Struct, frozen=True, gc=False):
    """The form of a request that is sent upstream, with its plan and labels.

    `rung` is the fallback level, `tokens` are those of `body` as we count them, under `epoch`; `is_opened`: no call was
    sent under that before. `plan` is None where nothing was to be decided. `labels` are response headers. `is_managed`:
    another form may be sent where the upstream refuses it; `is_guarded`: a refusal is likely, so that the head of the
    response waits for what comes (BEHAVIOUR B20a). `pin` is of a
    message that is pinned with this call. `uncounted` is the state of a request that is counted once it was sent: its
    plan and labels have no tokens yet. `state` is the one it was decided in, None where nothing was counted.
    """

    rung: Rung
    body: bytes
    tokens: int = 0
    epoch: Epoch | None = None
    is_opened: bool = False
    plan: Plan | None = None
    labels: Headers = ()
    is_managed: bool = False
    is_guarded: bool = False
    pin: Pin | None = None
    uncounted: UncountedState | None = None
    state: RequestState | None = None

    def add(self, labels: Headers, pin: Pin | None = None) -> "OutgoingRequest":
        """Return the same with more labels, and with a pin."""
        return msgspec.structs.replace(self, labels=(*self.labels, *labels), pin=pin) if labels or pin else self


class StateReader:
    """Reads the states of requests. Tokens are as we count them, budgets too; `caches` have the earlier ones.

    `holdout` are the sessions that are only observed.
    """

    def __init__(
        self,
        caches: ContextCaches,
        models: Models,
        calibrator: CacheCalibrator,
        clock: Clock,
        holdout: Holdout = _NO_HOLDOUT,
    ) -> None:
        self.caches = caches
        self.models = models
        self.holdout = holdout
        self._calibrator = calibrator
        self.clock = clock

    def find_ratio(self, request: ManagedRequest) -> TokenRatio:
        """Return how many tokens the model counts for each of ours."""
        return self.models.counter.find_ratio(request.session.upstream, request.model)

    def find_budget(self, request: ManagedRequest) -> Budget:
        """Return the budget of a request; the ceiling that it asks for takes the place of the configured one."""
        budget = self.models.budget(find_key(request), request.most_output or None, request.ceiling)
        return budget.scale(self.find_ratio(request).value)

    def find_tariff(self, request: ManagedRequest, history: MeasuredHistory) -> Tariff:
        """Return the prices of a request's input."""
        key = find_key(request)
        card = self.models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        return self._calibrator.find_tariff(key.upstream, key.model, card, history.list_markers())

    def find_tariff_of(self, upstream: str, model: str) -> Tariff:
        """Return the prices of a model's input where no request is at hand."""
        return self._calibrator.find_tariff(upstream, model, self.models.card(upstream, model), ())

    def is_below(self, request: ManagedRequest, budget: Budget) -> bool:
        """Return whether bytes prove that a request is below the soft mark, given what of it was counted before."""
        known, shared = self.caches.histories.find(request)
        if known is None or not is_head_of(known.head, request):
            return is_surely_below_soft_mark(budget, request.split.content)
        return is_surely_below_soft_mark(
            budget, _list_uncounted(request, shared), known.head.tokens + known.count_to(shared)
        )

    async def read(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch | None, budget: Budget
    ) -> RequestState:
        """Return how a request stands; its new messages are counted."""
        history = await self.caches.histories.follow(request)
        frozen = await self._weigh(request, context, epoch) if epoch is not None else 0
        return self._make(request, context, epoch, budget, history=history, frozen=frozen)

    def read_uncounted(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch, budget: Budget
    ) -> UncountedState | None:
        """Return how a request with few new messages stands before these are counted; None for any other."""
        frozen = context.sizes.get(epoch.id)
        begun = self.caches.histories.begin(request) if frozen is not None else None
        if frozen is None or begun is None:
            return None
        return UncountedState(self._make(request, context, epoch, budget, history=begun.history, frozen=frozen), begun)

    def count(self, uncounted: UncountedState) -> RequestState:
        """Count the new messages of a state. Blocks as long as that takes."""
        return msgspec.structs.replace(
            uncounted.state, history=self.caches.histories.finish(uncounted.state.request, uncounted.begun)
        )

    def _make(
        self,
        request: ManagedRequest,
        context: SessionContext,
        epoch: Epoch | None,
        budget: Budget,
        *,
        history: MeasuredHistory,
        frozen: int,
    ) -> RequestState:
        model = request.model
        epoch_account = context.get_account(model, epoch.id if epoch is not None else "", budget)
        kept = find_kept(history, epoch_account.before, frozen, epoch.depth if epoch is not None else 0)
        if epoch_account.head not in (None, history.head):
            kept = 0  # a provider reads from its cache what is alike from the very beginning
        return RequestState(
            request=request,
            context=context,
            epoch=epoch,
            epoch_account=epoch_account,
            frozen=frozen,
            history=history,
            kept=kept,
            budget=budget,
            tariff=self.find_tariff(request, history),
            ratio=self.find_ratio(request),
            protected=_find_protected(request, context, history, budget, epoch_account.account),
            now=self.clock.monotonic(),
            may_be_held_out=self.holdout.has(request.session.id),
            is_refused=epoch is not None
            and epoch.why == "refused"
            and self.clock.now_ms() - epoch.opened_ms < _REFUSED_MS,
        )

    async def _weigh(self, request: ManagedRequest, context: SessionContext, epoch: Epoch) -> int:
        """Count the tokens of what is sent for an epoch, once."""
        tokens = context.sizes.get(epoch.id)
        if tokens is None:
            tokens = context.sizes[epoch.id] = await self.caches.histories.count_messages(request, epoch.rendered)
        return tokens


def _find_protected(
    request: ManagedRequest,
    context: SessionContext,
    history: MeasuredHistory,
    budget: Budget,
    account: CacheCostAccount,
) -> int:
    """Return what the last plan had to keep; if that was too much, no more than has to stay now (BEHAVIOUR B12)."""
    known = context.protected.get(request.model, 0)
    if not account.ineffective and not budget.is_ceiling_unreachable(known):
        return known
    return min(known, estimate_protected(history, context.list_pinned(request.nodes) | request.list_unkept()))


def _list_uncounted(request: ManagedRequest, shared: int) -> bytes:
    """Return the bytes of a request beside its preamble, its tools, and the first messages behind the preamble."""
    split = request.split
    counted = [ByteRange(split.items[0].start, split.items[request.chain.preamble.count + shared - 1].end)]
    counted += [split.members["tools"]] if "tools" in split.members else []
    uncounted, at = [], 0
    for span in sorted(counted, key=lambda span: span.start):
        uncounted.append(split.content[at : span.start])
        at = span.end
    return b"".join([*uncounted, split.content[at:]])


def find_key(request: ManagedRequest) -> LimitKey:
    """Return the key of a limit that is learned from a request (BEHAVIOUR B18)."""
    limiting = FORMATS[request.wire].limit_headers
    beta = b",".join(value for name, value in request.headers if name in limiting)
    return LimitKey(request.session.upstream, request.model, beta.decode("latin-1"), request.session.tenant)
