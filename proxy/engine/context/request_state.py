"""The state of a request that the decision what to send is made from: epoch, history, tokens and budget."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from proxy.context.budget import Budget, TokenRatio, has_reference, is_surely_below_soft_mark
from proxy.context.conversation import MemoryText, PlanInputs, TurnsPolicy
from proxy.context.epoch_decision import LATE, UNREAD, CacheCostAccount, Holdout, RequestFacts
from proxy.context.pricing import Tariff
from proxy.context.strategies.turns import find_prompt
from proxy.context.verbatim import estimate_reasoning
from proxy.engine.context.epoch_planner import DraftedPlan
from proxy.engine.context.epoch_scope import EpochAccount
from proxy.engine.context.history_counter import (
    count_answered,
    decode_messages,
    estimate_protected,
    find_kept,
    is_head_of,
)
from proxy.engine.context.session_caches import ContextCaches
from proxy.engine.context.session_context import SessionContext
from proxy.engine.context.tool_offers import NO_OFFERS, NO_RECALLED, REFUSED_MS, ToolOffers
from proxy.engine.conversations.bodies import MeasuredHistory
from proxy.engine.models import CacheCalibrator, Models, OverflowWatch
from proxy.engine.ports import Clock
from proxy.engine.request import ManagedRequest
from proxy.engine.runtime import EngineBus
from proxy.model import Value
from proxy.model.card import LimitKey
from proxy.model.epoch import Epoch, EpochReason, Plan, Recalled, Rung
from proxy.model.exchange import Headers
from proxy.model.log import Record
from proxy.wire import FORMATS
from proxy.wire.body import ByteRange

_NO_HOLDOUT, _TURNS = Holdout(), TurnsPolicy()


class RequestState(Value):
    """The state of one request.

    All tokens, also the budget's, are in the proxy's own count. `ratio` converts them to the model's.
    """

    request: ManagedRequest
    context: SessionContext
    epoch: Epoch | None  # the one that applies
    epoch_account: EpochAccount  # of the view under `epoch`
    epoch_tokens: int  # of the messages that are sent for `epoch`
    changed: Mapping[int, bytes]  # later messages that are sent without their reasoning, by index
    history: MeasuredHistory
    kept: int | None  # tokens at the beginning that were sent before; None if it continues the last request
    budget: Budget
    tariff: Tariff
    ratio: TokenRatio
    protected: int  # tokens that no epoch may replace, according to the last plan
    now: float  # monotonic seconds
    may_be_holdout: bool = False  # the session is only observed if the log has no epoch of it
    is_refused: bool = False  # the upstream refused the epoch within the last day
    is_overflowed: bool = False  # the last response of the view shows that its request was too long
    tool: bytes = b""  # the raw tool to recall with that a new epoch offers; empty if none
    tool_tokens: int = 0  # by which it makes the preamble longer, or shorter
    is_alternating: bool = False  # the upstream was found to refuse two messages of a role in a row
    recalled: Mapping[int, Recalled] = NO_RECALLED  # what a model recalled, by the last message of its answer
    is_due: bool | None = None  # as in `RequestFacts`
    memory: MemoryText | None = None  # of the strategy `snapshot`, once it was asked for

    @property
    def view(self) -> str:
        """The name of its view."""
        return self.request.view

    @property
    def client_tokens(self) -> int:
        """Tokens of the client's own request."""
        return self.history.tokens

    @property
    def tokens(self) -> int:
        """Tokens of what is sent if no epoch opens."""
        history, depth = self.history, self.depth
        recalled = self.count_recalled(depth) if self.recalled and self.has_tool else 0
        removed = self.count_removed(self.changed) if self.changed else 0
        return history.tokens - history.count_to(depth) + self.epoch_tokens + recalled - removed

    @property
    def depth(self) -> int:
        """The number of messages that the epoch replaces."""
        return self.epoch.depth if self.epoch is not None else 0

    @property
    def growth(self) -> float:
        """The tokens that a call of this conversation has added on average."""
        return (self.history.tokens - self.history.head.tokens) / (1 + self.history.answers)

    def find_drafted(self) -> DraftedPlan | None:
        """Return the plan that was drafted for an earlier request, or this one, and holds for this one; else None."""
        return self.context.find_drafted(self.request, self.epoch)

    def count_removed(self, places: Iterable[int]) -> int:
        """Estimate the tokens of the signed reasoning in these messages."""
        return estimate_reasoning(sum([self.history.structures[place].signed for place in places]))

    def count_recalled(self, depth: int) -> int:
        """Count the tokens of the hidden rounds that are sent behind the first `depth` messages."""
        return sum([each.tokens for place, each in self.recalled.items() if place >= depth])

    @property
    def has_tool(self) -> bool:
        """Whether the tool to recall with is sent under the epoch that applies."""
        return self.epoch is not None and bool(self.epoch.tool)

    @property
    def stable(self) -> int:
        """Tokens at the beginning of what is sent that an epoch which opens leaves as they are."""
        is_same = self.tool == (self.epoch.tool if self.epoch is not None else b"")
        return self.history.head.tokens + min(0, self.tool_tokens) if is_same else 0

    def list_bound(self) -> list[int]:
        """Return the messages whose reasoning is sent now, and would be removed behind another beginning."""
        if not (self.history.signed and self.context.reasoning.binds_in(self.request)):
            return []
        return [place for place in self.history.signed if place >= self.depth and place not in self.changed]

    @property
    def account(self) -> CacheCostAccount:
        """The account of cache costs under the epoch that applies."""
        return self.epoch_account.account

    @property
    def facts(self) -> RequestFacts:
        """The facts of this request on which the decision about an epoch depends."""
        request, context, bound = self.request, self.context, self.list_bound()
        unread = UNREAD if not context.is_known else "" if request.is_certain else LATE
        unshortened, tip = context.unshortened.get(self.view, (0, b""))
        return RequestFacts(
            self.tokens,
            self.budget,
            self.tariff,
            self.protected,
            self.kept,
            stable=self.stable,
            idle=self.account.compute_idle(self.now),
            is_side=request.is_side,
            lost=self._price_lost(bound),
            is_in_loop=bool(bound) and self.history.structures[-1].role != "user",
            needs_thinking=bool(bound) and FORMATS[request.wire].needs_thinking(request.split),
            unread=unread,
            may_be_holdout=self.may_be_holdout,
            is_repeat=context.was_sent(self.view, request),
            is_retry=request.lineage is not None and request.lineage.relation == "retry",
            is_refused=self.is_refused,
            is_overflowed=self.is_overflowed,
            unshortened=unshortened,
            is_unshortened=(unshortened, tip) == (self.tokens, request.chain.tip),
            is_due=self.is_due,
            due_as="memory" if request.strategy == "snapshot" else "turn",
        )

    def list_inputs(self, why: EpochReason, *, is_anew: bool = False) -> PlanInputs:
        """Return the inputs of a plan for an epoch that opens for this reason.

        If it `is_anew`, it carries on nothing of the active epoch.
        """
        context, request, frozen = self.context, self.request, self.epoch
        if is_anew or (frozen is not None and bool(frozen.tool) is not bool(self.tool)):
            frozen = None  # its ledger says otherwise how originals can be read
        return PlanInputs(
            self.budget,
            frozen,
            context.list_pinned(request.nodes),
            context.list_reports(request.nodes, self.view),
            depth=self.account.depth,
            must_fit=why == "overflow",
            is_bound=context.reasoning.binds_in(request),
            excluded=request.clearing.excluded if request.clearing is not None else (),
            has_tool=bool(self.tool),
            tool_tokens=self.tool_tokens,
            is_alternating=self.is_alternating,
            recalled={place: each.tokens for place, each in self.recalled.items()} if self.tool else {},
            memory=self.memory,
        )

    @property
    def planned_facts(self) -> RequestFacts:
        """The facts with what the drafted plan leaves. Without such a plan, the same as `facts`.

        A plan that replaces nothing leaves all, of what came since as well.
        """
        drafted = self.find_drafted()
        if drafted is None:
            return self.facts
        planned = self.history.head.tokens + self.tool_tokens + drafted.tokens
        planned = planned if drafted.through else max(planned, self.tokens)
        return replace(self.facts, planned=planned)

    def _price_lost(self, bound: Sequence[int]) -> float:
        """Return the price of the reasoning that an epoch takes from the messages which stay behind it.

        The model may have to think it again, as output. What stays are at most the newest tokens up to the low mark.
        """
        if not bound:
            return 0.0
        over = self.history.sums[-1] - self.budget.compute_low_mark(self.protected)
        first = bisect_left(self.history.sums, over) + 1 if over > 0 else 0
        lost = self.count_removed(place for place in bound if place >= first)
        return lost * self.tariff.prices.find_rates(self.tokens).output

    def find_account(self, epoch: Epoch | None) -> EpochAccount:
        """Return the account of the view under an epoch, or under none."""
        if epoch is self.epoch:
            return self.epoch_account
        return self.context.get_account(self.view, epoch.id if epoch is not None else "", self.budget)

    def with_epoch(self, epoch: Epoch, epoch_tokens: int, tool_tokens: int) -> "RequestState":
        """Return the state of the same request under another epoch, for which, its tool included, so many are sent."""
        changed = self.context.reasoning.find_changed(self.request, epoch)
        account = self.find_account(epoch)
        return replace(
            self,
            epoch=epoch,
            epoch_account=account,
            epoch_tokens=epoch_tokens,
            changed=changed,
            tool=epoch.tool,
            tool_tokens=tool_tokens,
        )

    def to_model_tokens(self, tokens: int) -> int:
        """Convert our tokens to the model's."""
        return self.ratio.apply(tokens)


class EpochMemory(Protocol):
    """Says what is shown of memory in a new epoch of the strategy `snapshot`."""

    async def add(self, state: RequestState, seconds: float) -> RequestState:
        """Return a state with what memory has, after at most so many seconds. Any other strategy's stays as it is."""
        ...

    async def show(self, state: RequestState) -> RequestState:
        """Return a state with what memory has already: nothing is made of turns that it lacks."""
        ...


class _NoMemory:
    """Nothing is remembered."""

    async def add(self, state: RequestState, seconds: float) -> RequestState:
        return state

    async def show(self, state: RequestState) -> RequestState:
        return state


NO_MEMORY = _NoMemory()


class OutgoingRequest(Value):
    """What is sent upstream for a request, with its plan and labels."""

    rung: Rung  # the fallback level
    body: bytes
    tokens: int = 0  # of `body`, in the proxy's own count
    epoch: Epoch | None = None
    is_opened: bool = False  # no call was sent under `epoch` before
    plan: Plan | None = None  # None if there was nothing to decide
    labels: Headers = ()  # response headers
    is_managed: bool = False  # another form may be sent if the upstream refuses this one
    is_mendable: bool = False  # if the upstream refuses its reasoning because of an epoch, it is sent without
    is_guarded: bool = False  # a refusal is likely: the head of the response waits for its content
    records: tuple[Record, ...] = ()  # what is recorded with its round
    state: RequestState | None = None  # what it was decided from; None if nothing was counted
    removed: tuple[int, ...] = ()  # indexes of the messages whose signed reasoning is not sent, and stood there before
    note: str = ""  # what is told of the removed reasoning
    failed: str = ""  # why the levels before this one failed; empty if none did
    matching: int = 0  # of its tokens, those at the beginning that were sent before
    idle: float | None = None  # seconds since that; None if nothing was sent under its epoch before

    def add(self, labels: Headers, *records: Record) -> "OutgoingRequest":
        """Return a copy with more labels, and more to record with its round."""
        if not (labels or records):
            return self
        return replace(self, labels=(*self.labels, *labels), records=(*self.records, *records))


class StateReader:
    """Reads the states of requests. Tokens and budgets are in the proxy's own count.

    `holdout` selects the sessions that are only observed. `is_asked` returns whether somebody asked that a session of
    the strategy `snapshot` begins anew.
    """

    def __init__(
        self,
        caches: ContextCaches,
        models: Models,
        bus: EngineBus,
        clock: Clock,
        holdout: Holdout = _NO_HOLDOUT,
        *,
        offers: ToolOffers = NO_OFFERS,
        scan_messages: int = _TURNS.scan_messages,
        is_asked: Callable[[str], bool] = lambda session: False,
    ) -> None:
        self.caches = caches
        self.offers = offers
        self.models = models
        self.holdout = holdout
        self.overflows = OverflowWatch(models, bus)
        self.calibrator = CacheCalibrator(models.counter, models.providers, self.overflows, bus)
        self._scan = scan_messages
        self.clock = clock
        self._is_asked = is_asked

    def find_ratio(self, request: ManagedRequest) -> TokenRatio:
        """Return how many tokens the model counts for each token that the proxy counts."""
        return self.models.counter.find_ratio(request.session.upstream, request.model)

    def find_budget(self, request: ManagedRequest, protected: int = 0) -> Budget:
        """Return the budget of a request. A ceiling that the request asks for replaces the configured one.

        `protected` are the tokens that must stay, for which a client's trigger does not count (`Budget.begin_at`).
        """
        asked = request.most_output or None, request.ceiling, request.strategy
        ratio = self.find_ratio(request).value
        budget = self.models.budget(find_key(request), *asked).scale(ratio)
        trigger = request.clearing.trigger if request.clearing is not None else None
        return budget if trigger is None else budget.begin_at(int(trigger / ratio), protected)

    def find_tariff(self, request: ManagedRequest, history: MeasuredHistory, *, is_rewritten: bool = False) -> Tariff:
        """Return the prices of a request's input. `is_rewritten`: an epoch applies to it."""
        key = find_key(request)
        card = self.models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        leading, form = request.chain.preamble.count, FORMATS[request.wire]
        terms = form.read_cache_terms(request.split, leading, history.list_markers())
        is_marked = is_rewritten and form.takes_markers
        return self.calibrator.find_tariff(key.upstream, key.model, card, terms, is_rewritten=is_marked)

    def find_tariff_of(self, upstream: str, model: str) -> Tariff:
        """Return the prices of a model's input when there is no request."""
        return self.calibrator.find_tariff(upstream, model, self.models.card(upstream, model))

    def is_overflowed(self, request: ManagedRequest) -> bool:
        """Return whether the last response of the request's view shows that its request was too long."""
        return self.overflows.is_due(request.session.id, request.model)

    def is_due(
        self,
        request: ManagedRequest,
        epoch: Epoch | None,
        budget: Budget,
        history: MeasuredHistory | None = None,
        epoch_tokens: int = 0,
    ) -> bool | None:
        """Return whether the strategy of a request calls for an epoch now; None: the price decides.

        Without a history the bytes of the request prove it to be below its soft mark.
        """
        if request.strategy == "turns":
            return self._is_turn_due(request, epoch)
        if request.strategy == "epochs":
            return None
        if self._is_asked(request.session.id):
            return True
        tokens = self.caches.prompts.find(request, epoch.id if epoch is not None else "")
        if tokens is not None:
            return tokens > self.find_ratio(request).apply(budget.soft)
        depth = epoch.depth if epoch is not None else 0
        return history is not None and count_answered(history, epoch_tokens, depth) > budget.soft

    def _is_turn_due(self, request: ManagedRequest, epoch: Epoch | None) -> bool:
        depth = epoch.depth if epoch is not None else 0
        if not any(item.role == "user" for item in request.chain.items[depth + 1 :]):
            return False
        first = max(0, len(request.nodes) - self._scan)
        prompt = find_prompt(decode_messages(request, first))
        if prompt is None and first:
            first, prompt = 0, find_prompt(decode_messages(request))
        return prompt is not None and first + prompt > depth

    def is_below(self, request: ManagedRequest, budget: Budget) -> bool:
        """Return whether cached counts and the bytes of the rest prove that a request is below the soft mark."""
        known, shared = self.caches.histories.find(request)
        if known is None or not is_head_of(known.head, request):
            return is_surely_below_soft_mark(budget, request.split.content)
        return is_surely_below_soft_mark(
            budget, _list_uncounted(request, shared), known.head.tokens + known.count_to(shared)
        )

    async def read(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch | None, budget: Budget, keep: bool = True
    ) -> RequestState:
        """Return the state of a request, with its new messages counted. Memory keeps nothing of it if not `keep`."""
        history = await self.caches.histories.follow(request)
        epoch_tokens = await self._weigh(request, context, epoch, keep) if epoch is not None else 0
        return self._make(request, context, epoch, budget, history=history, epoch_tokens=epoch_tokens, is_kept=keep)

    def read_now(
        self, request: ManagedRequest, context: SessionContext, epoch: Epoch, budget: Budget
    ) -> RequestState | None:
        """Return what `read` does for a request under an epoch if that takes no waiting, else None."""
        tokens = _find_size(request, context, epoch)
        history = self.caches.histories.follow_now(request) if tokens is not None else None
        if tokens is None or history is None:
            return None
        return self._make(request, context, epoch, budget, history=history, epoch_tokens=tokens)

    def _make(
        self,
        request: ManagedRequest,
        context: SessionContext,
        epoch: Epoch | None,
        budget: Budget,
        *,
        history: MeasuredHistory,
        epoch_tokens: int,
        is_kept: bool = True,
    ) -> RequestState:
        is_refused = context.recalled.is_refused(request.view, self.clock.now_ms())
        recalled = context.recalled.find(request)
        tool = self.offers.choose(request, epoch, history.structures, recalled, is_refused=is_refused)
        tool_tokens = self.offers.count(request, tool)
        preamble, applied = history.head.tokens + tool_tokens, epoch.id if epoch is not None else ""
        account = context.get_account(request.view, applied, budget.lift(preamble), is_kept=is_kept)
        depth = epoch.depth if epoch is not None else 0
        sent = recalled if epoch is not None and epoch.tool else NO_RECALLED
        kept = find_kept(history, account.before, epoch_tokens, depth, sent)
        if account.head not in (None, history.head):
            kept = 0  # a provider's cache matches only from the very beginning
        if request.clearing is not None and request.clearing.trigger is not None:
            staying = context.list_pinned(request.nodes) | request.list_unkept()
            budget = self.find_budget(request, estimate_protected(history, staying))
        budget = budget.lift(preamble)
        return RequestState(
            request=request,
            context=context,
            epoch=epoch,
            epoch_account=account,
            epoch_tokens=epoch_tokens,
            changed=context.reasoning.find_changed(request, epoch),
            history=history,
            kept=kept,
            budget=budget,
            tariff=self.find_tariff(request, history, is_rewritten=epoch is not None and epoch.depth > 0),
            ratio=self.find_ratio(request),
            protected=_find_protected(request, context, history, budget, account.account),
            now=self.clock.monotonic(),
            may_be_holdout=self.holdout.has(request.session.id),
            is_refused=epoch is not None
            and epoch.why == "refused"
            and self.clock.now_ms() - epoch.opened_ms < REFUSED_MS,
            is_overflowed=self.is_overflowed(request),
            tool=tool,
            tool_tokens=tool_tokens,
            is_alternating=self._is_alternating(request, context),
            recalled=recalled,
            is_due=self.is_due(request, epoch, budget, history, epoch_tokens),
        )

    def _is_alternating(self, request: ManagedRequest, context: SessionContext) -> bool:
        """Return whether the upstream was found to refuse two messages of a role in a row within the last day."""
        found_ms = context.alternating.get(request.view)
        is_fresh = found_ms is not None and self.clock.now_ms() - found_ms < REFUSED_MS
        return is_fresh or self.models.is_alternating(request.session.upstream, request.model)

    async def _weigh(self, request: ManagedRequest, context: SessionContext, epoch: Epoch, is_kept: bool) -> int:
        """Count the tokens of what is sent for an epoch, and keep the count if told to."""
        tokens = _find_size(request, context, epoch)
        if tokens is None:
            tokens = await self.caches.histories.count_messages(request, epoch.rendered)
            tokens += self.offers.count(request, epoch.tool)
            if is_kept:
                context.sizes[epoch.id] = tokens
        return tokens


def _find_size(request: ManagedRequest, context: SessionContext, epoch: Epoch) -> int | None:
    """Return the tokens of what is sent for an epoch, or None if they must be counted: media may have sizes now."""
    is_learning = not request.chain.is_plain and any(map(has_reference, epoch.rendered))
    return None if is_learning else context.sizes.get(epoch.id)


def _find_protected(
    request: ManagedRequest,
    context: SessionContext,
    history: MeasuredHistory,
    budget: Budget,
    account: CacheCostAccount,
) -> int:
    """Return the tokens that the last plan had to keep; if those were too many, at most what must stay now."""
    known = context.protected.get(request.view, 0)
    if not account.ineffective and not budget.is_ceiling_unreachable(known):
        return known
    return min(known, estimate_protected(history, context.list_pinned(request.nodes) | request.list_unkept()))


def _list_uncounted(request: ManagedRequest, shared: int) -> bytes:
    """Return the bytes of a request without its preamble, its tools, and the first `shared` messages."""
    split = request.split
    counted = [ByteRange(split.items[0].start, split.items[request.chain.preamble.count + shared - 1].end)]
    counted += [split.members["tools"]] if "tools" in split.members else []
    uncounted, at = [], 0
    for span in sorted(counted, key=lambda span: span.start):
        uncounted.append(split.content[at : span.start])
        at = span.end
    return b"".join([*uncounted, split.content[at:]])


def find_key(request: ManagedRequest) -> LimitKey:
    """Return the key under which a limit is learned from a request."""
    limiting = FORMATS[request.wire].limit_headers
    beta = b",".join([value for name, value in request.headers if name in limiting]) if limiting else b""
    return LimitKey(request.session.upstream, request.model, beta.decode("latin-1"), request.session.tenant)
