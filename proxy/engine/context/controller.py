"""What is sent for a request: its own bytes, or an epoch in place of the beginning of its history."""

import logging
from collections.abc import Awaitable
from functools import partial

from msgspec.structs import replace

from proxy.context.budget import Budget, is_below_soft_mark
from proxy.context.epoch_decision import BOUND, HELD_OUT, NO_ROOM, SIDE, Decision, decide, record_use
from proxy.engine.boundary import attempt, attempt_now
from proxy.engine.context.accounting import Sending, SentObserver, UsageAccounting, list_labels
from proxy.engine.context.fallback import Commit, FallbackChain, Footing, is_fruitless
from proxy.engine.context.refusal_retry import Reach, RefusalRetries
from proxy.engine.context.request_state import RequestState, StateReader, UncountedState
from proxy.engine.context.session_context import SessionContext
from proxy.engine.ports import Clock
from proxy.engine.request import ManagedRequest
from proxy.engine.round import RetrySource
from proxy.engine.runtime import EventBus
from proxy.model.epoch import Epoch, Pin, Plan
from proxy.model.events import CeilingExceeded, Planned, RungFailed
from proxy.model.exchange import Headers, Mode
from proxy.wire import FORMATS, MANAGED_WIRES
from proxy.wire.headers import find

_SHARE = 0.1
_HEADER = b"x-palimpsest-pin"

_UNPROVEN = "the upstream has not accepted this credential yet"
_SENT_BEFORE = "the same history goes out as it did before"
# How long a call below its ceiling waits for a plan; one that comes later serves the next call.
_SOFT_WAIT = 0.25
_RECORDED_ONLY = "calls of this wire are recorded, not managed"
# Text and JSON have about as many in every language that uses Latin letters; a header needs no better estimate.
_BYTES_OF_A_TOKEN = 4
# So long after a refusal no epoch opens in a view.
_REFUSED_MS = 24 * 60 * 60 * 1000
REFUSED = "the upstream refused the last epoch"
MUST_STAY = "the rest must stay as it is"
NOT_CUT = "it could not be cut; the server's log says why"
_UNREAD = "what the log knows of this session could not be read"
_LATE = "what the log knows of this session could not be read in time"
_STOOD_DOWN = frozenset({BOUND, NO_ROOM, REFUSED, SIDE, _UNREAD, _LATE})

_log = logging.getLogger("palimpsest.managing")


def find_objection(tokens: int, usable: int) -> str:
    """Why pins of so many tokens together are too much; empty where they are not."""
    most = int(_SHARE * usable)
    if tokens <= most:
        return ""
    return (
        f"pins may have {most} tokens together in a conversation, {_SHARE:g} of its budget; these would have {tokens}"
    )


def is_pinning(subject: ManagedRequest) -> bool:
    """Whether a request asks that its newest message stay."""
    return find(subject.headers, _HEADER).strip().lower() == b"true"


def refuse_pin(subject: ManagedRequest, reason: str) -> Headers:
    """What the client is told of a pin that is not taken; nothing where it asked for none."""
    if not is_pinning(subject):
        return ()
    return ((b"x-palimpsest-notice", f"not pinned: {reason}".encode("ascii", "replace")),)


class Pinning:
    """Takes pins that come with requests."""

    def __init__(self, lookout: StateReader, clock: Clock) -> None:
        self._lookout = lookout
        self._clock = clock

    async def take(self, subject: ManagedRequest, ceiling: int | None) -> tuple[Pin | None, Headers]:
        """The pin of a request's newest message, which holds at once; or what the client is told of the refusal."""
        if not is_pinning(subject):
            return None, ()
        if not subject.nodes:
            return None, refuse_pin(subject, "there is no message")
        self._lookout.memory.forget_lost()
        context = await self._lookout.memory.contexts.open(subject, subject.until - self._clock.monotonic())
        newest, places = len(subject.nodes) - 1, context.list_pinned(subject.nodes)
        if newest in places:
            return None, ()
        path = await self._lookout.memory.paths.follow(subject)
        tokens = sum(path.count(place, place + 1) for place in (*places, newest))
        usable = self._lookout.find_budget(subject, ceiling).usable
        ratio = self._lookout.find_ratio(subject)
        if problem := find_objection(ratio.apply(tokens), ratio.apply(usable)):
            return None, refuse_pin(subject, problem)
        pin = Pin(subject.session.id, subject.nodes[newest], is_on=True, at_ms=self._clock.now_ms())
        context.pin(pin)
        return pin, ()


class ContextController:
    """Decides for each managed request what is sent."""

    def __init__(
        self,
        lookout: StateReader,
        ladder: FallbackChain,
        rescues: RefusalRetries,
        books: UsageAccounting,
        bus: EventBus,
        watcher: SentObserver,
    ) -> None:
        self._memory = lookout.memory
        self._lookout = lookout
        self._ladder = ladder
        self._rescues = rescues
        self._books = books
        self._bus = bus
        self._watcher = watcher
        self._clock = lookout.clock
        self._pinning = Pinning(lookout, lookout.clock)

    @property
    def lookout(self) -> StateReader:
        """What looks at requests; others that look at sessions share its memory."""
        return self._lookout

    @property
    def ladder(self) -> FallbackChain:
        """What opens epochs; others that open some do it there."""
        return self._ladder

    def glance(self, subject: ManagedRequest, mode: Mode, ceiling: int | None) -> Sending | None:
        """What to send where that is told at once; None for what takes a closer look.

        Most calls are short ones of sessions in which nothing was ever managed: nothing is looked up for those.
        """
        return attempt_now(partial(self._glance, subject, mode, ceiling), _note_blindness)

    def _glance(self, subject: ManagedRequest, mode: Mode, ceiling: int | None) -> Sending | None:
        self._watcher.note_arrival(subject)
        content = subject.split.content
        if is_pinning(subject):
            return None
        if subject.wire not in MANAGED_WIRES:
            return Sending(content, labels=self._tell_unmanaged(subject, mode))
        if mode != "manage" or ceiling is not None or subject.step is None:
            return None
        if not self._memory.contexts.is_blank(subject):
            return None
        budget = self._lookout.find_budget(subject)
        if not (subject.chain.is_plain and is_below_soft_mark(budget, len(content))) or _find_exemption(subject, mode):
            return None
        if self._lookout.holdout.has(subject.session.id):
            return None
        self._watcher.note_asked(subject)
        return Sending(content, is_managed=True, is_guarded=_is_risky(budget, subject))

    async def prepare(self, subject: ManagedRequest, mode: Mode, ceiling: int | None, commit: Commit) -> Sending:
        """What to send. Never fails: what cannot be managed goes as the client sent it."""
        sending = await self._try(subject, self._prepare(subject, mode, ceiling, commit))
        if sending.complete is None:
            self._publish(subject, sending)
        return sending

    def _publish(self, subject: ManagedRequest, sending: Sending) -> None:
        if sending.plan is not None:
            self._bus.publish(Planned(subject.session.id, sending.plan))

    async def _prepare(self, subject: ManagedRequest, mode: Mode, ceiling: int | None, commit: Commit) -> Sending:
        if subject.wire not in MANAGED_WIRES:
            labels = self._tell_unmanaged(subject, mode)
            return Sending(subject.split.content, labels=labels).add(refuse_pin(subject, _RECORDED_ONLY))
        if exemption := _find_exemption(subject, mode):
            return self._stand_aside(subject, mode, exemption).add(refuse_pin(subject, exemption))
        if await self._is_held_out(subject):
            return self._hold_out(subject, ceiling).add(refuse_pin(subject, HELD_OUT))
        pin, told = await self._pinning.take(subject, ceiling)
        self._watcher.note_asked(subject)
        return (await self._try(subject, self._manage(subject, ceiling, commit))).add(told, pin)

    async def _try(self, subject: ManagedRequest, work: Awaitable[Sending]) -> Sending:
        problems: list[Exception] = []
        return await attempt(work, problems.append) or self._give_up(subject, problems[0])

    def _give_up(self, subject: ManagedRequest, error: Exception) -> Sending:
        """The client's own request, after a fault of ours."""
        _log.error("a request could not be managed; it goes on as it came", exc_info=error)
        problem = f"{type(error).__name__}: {error}"
        self._bus.publish(RungFailed(subject.exchange, subject.session.id, "plan", problem))
        plan = Plan(subject.exchange, 0, subject.model, "original", reason=problem)
        return Sending(subject.split.content, plan=plan, labels=_label_observed(NOT_CUT))

    def _inquire(self, subject: ManagedRequest) -> None:
        """Have the upstream asked for its models, for nobody knows how much this one takes; beside the calls."""
        attempt_now(partial(self._lookout.models.ask, subject.upstream, subject.headers), _note_blindness)

    def stand_by(self, subject: ManagedRequest, sending: Sending, reach: Reach) -> RetrySource:
        """Who cuts a managed request that is refused as too long, and tells the client of it."""
        return self._rescues.stand_by(subject, sending, reach)

    async def _is_held_out(self, subject: ManagedRequest) -> bool:
        """Whether its session is only observed; not where an epoch was opened in it before, or nobody can tell."""
        if not self._lookout.holdout.has(subject.session.id):
            return False
        self._memory.forget_lost()
        context = await self._memory.contexts.open(subject, subject.until - self._clock.monotonic())
        return context.is_known and not context.epochs

    def _hold_out(self, subject: ManagedRequest, ceiling: int | None) -> Sending:
        """A request that would be managed in another session.

        Its tokens are told by its provider; what they are to be compared with is known here.
        """
        budget = self._lookout.find_budget(subject, ceiling)
        if not self._lookout.is_below(subject, budget) and (exemption := self._find_sign(subject)):
            return self._stand_aside(subject, "manage", exemption)
        usable = self._lookout.find_ratio(subject).apply(budget.usable)
        plan = Plan(subject.exchange, 0, subject.model, "original", reason=HELD_OUT, usable=usable)
        labels = () if self._lookout.is_below(subject, budget) else _label_observed(HELD_OUT)
        return Sending(subject.split.content, plan=plan, labels=labels)

    async def _manage(self, subject: ManagedRequest, ceiling: int | None, commit: Commit) -> Sending:
        self._memory.forget_lost()
        context = await self._memory.contexts.open(subject, subject.until - self._clock.monotonic())
        model, budget = subject.model, self._lookout.find_budget(subject, ceiling)
        if budget.window is None:
            self._inquire(subject)
        epoch = context.find(model, subject)
        if epoch is None and self._lookout.is_below(subject, budget):
            standing = context.get_standing(model, "", budget)
            standing.account = record_use(standing.account, self._clock.monotonic())
            is_guarded = _is_risky(budget, subject)
            return Sending(subject.split.content, is_managed=True, is_guarded=is_guarded, ceiling=ceiling)
        if epoch is None and (exemption := self._find_sign(subject)):
            return self._stand_aside(subject, "manage", exemption)
        if epoch is not None and (sending := self._keep(subject, context, epoch, budget)) is not None:
            return replace(sending, ceiling=ceiling)
        case = await self._lookout.look_at(subject, context, epoch, budget)
        decision = self._decide(case)
        footing = await self._climb(case, decision, commit)
        _choose(case, footing)
        sending = replace(self._books.enter(case, footing, decision), ceiling=ceiling)
        return self._tell_excess(case, footing, decision, sending.add(_tell_own(case, footing, decision)))

    async def _climb(self, case: RequestState, decision: Decision, commit: Commit) -> Footing:
        """What the request is sent as; above the ceiling it waits for a running summary and its plan together (B8b)."""
        if decision.why != "hard":
            return await self._ladder.climb(case, decision.why, commit, seconds=min(_SOFT_WAIT, self._ladder.seconds))
        began = self._clock.monotonic()
        if not is_fruitless(case, decision.why):
            await self._watcher.wait(case.subject)
        left = self._ladder.seconds - (self._clock.monotonic() - began)
        return await self._ladder.climb(case, decision.why, commit, seconds=max(0.0, left))

    def _tell_excess(self, case: RequestState, footing: Footing, decision: Decision, sending: Sending) -> Sending:
        """The same, with what is to be said of a request that goes out above its ceiling: by header, event and plan."""
        if not case.budget.usable or footing.tokens <= case.budget.usable or sending.plan is None:
            return sending
        reason = decision.reason or (MUST_STAY if footing.is_opened or _is_tried(case) else NOT_CUT)
        tokens, usable = case.tell(footing.tokens), case.tell(case.budget.usable)
        subject = case.subject
        self._bus.publish(CeilingExceeded(subject.exchange, subject.session.id, case.view, tokens, usable, reason))
        told = f"above the ceiling: {tokens} tokens of {usable}; {reason}"
        labels = ((b"x-palimpsest-notice", told.encode("ascii", "replace")),)
        return replace(sending, plan=replace(sending.plan, reason=told)).add(labels)

    def _keep(self, subject: ManagedRequest, context: SessionContext, epoch: Epoch, budget: Budget) -> Sending | None:
        """What goes on under its epoch whatever its new messages count: that is done once it is on its way.

        None where it depends on their count, or they are so much that it is done elsewhere.
        """
        ahead = self._lookout.look_ahead(subject, context, epoch, budget)
        if ahead is None or not _is_kept(ahead.case):
            return None
        footing = self._ladder.keep(ahead.case)
        if footing is None:
            return None
        _choose(ahead.case, footing)
        plan = Plan(subject.exchange, 0, subject.model, footing.rung, epoch.id)
        return Sending(
            footing.body,
            plan=plan,
            labels=list_labels(plan, epoch, is_opened=footing.is_opened),
            is_managed=True,
            is_guarded=budget.is_near_window(footing.tokens),
            keep=partial(self._books.keep, subject, footing),
            complete=partial(self._complete, ahead, footing, plan),
        )

    def _complete(self, ahead: UncountedState, footing: Footing, plan: Plan) -> Sending:
        """What is left to do for a request that is on its way; `plan` is what is known without."""
        note = partial(self._note, ahead, footing)
        sending = attempt_now(note, _note_blindness) or Sending(footing.body, plan=plan, is_managed=True)
        self._publish(ahead.case.subject, sending)
        return sending

    def _note(self, ahead: UncountedState, footing: Footing) -> Sending:
        case = self._lookout.count(ahead)
        return self._books.note(case, replace(footing, tokens=case.tokens), self._decide(case))

    def _decide(self, case: RequestState) -> Decision:
        """Whether an epoch opens; none where the log may know of another (B10) and the ceiling does not ask for one
        (B8b), for what was sent before (B5), or where the upstream has refused the last one (B8a).
        """
        decision = decide(case.account, case.facts)
        is_known = case.context.is_known
        # Nobody can tell whether a session that may be only observed is; above the ceiling others are cut all the same.
        is_asked = decision.why == "hard" and not self._lookout.holdout.has(case.subject.session.id)
        if decision.why is not None and not is_asked and not (is_known and case.subject.is_certain):
            return Decision(None, decision.pressure, _LATE if is_known else _UNREAD)
        if decision.why is not None and (
            case.context.was_sent(case.view, case.subject) or _is_cheap_retry(case, decision)
        ):
            return Decision(None, decision.pressure, _SENT_BEFORE)
        if decision.why is not None and self._is_refused(case.epoch):
            return Decision(None, decision.pressure, REFUSED)
        return decision

    def _is_refused(self, epoch: Epoch | None) -> bool:
        return epoch is not None and epoch.why == "refused" and self._clock.now_ms() - epoch.opened_ms < _REFUSED_MS

    def _tell_unmanaged(self, subject: ManagedRequest, mode: Mode) -> Headers:
        """What the client is told of a large request on a wire that is not managed; its size is told by its bytes."""
        if mode != "manage":
            return ()
        budget = self._lookout.find_budget(subject)
        is_large = len(subject.split.content) >= _BYTES_OF_A_TOKEN * budget.soft
        return ((b"x-palimpsest-mode", b"observe; recorded-only"),) if is_large else ()

    def _find_sign(self, subject: ManagedRequest) -> str:
        """What in the messages says that they are managed already; those that were managed before are not looked at.

        Not asked under an epoch of ours: what looks like one there is an echo, and as it came it would be too long.
        """
        known, shared = self._memory.paths.find(subject)
        seen = subject.chain.preamble.count + shared if known is not None else 0
        return FORMATS[subject.wire].find_management(subject.split, seen)

    def _stand_aside(self, subject: ManagedRequest, mode: Mode, reason: str) -> Sending:
        """A request that is not managed though its session may be; what that costs is told."""
        content = subject.split.content
        is_told = mode == "manage" and not self._lookout.is_below(subject, self._lookout.find_budget(subject))
        labels = _label_observed(reason) if is_told else ()
        context = self._memory.contexts.get(subject.session.id)
        epoch = context.find(subject.model, subject) if context is not None else None
        known, _ = self._memory.paths.find(subject)
        if context is None or epoch is None or known is None:
            plan = Plan(subject.exchange, 0, subject.model, "original", reason=reason) if mode == "manage" else None
            return Sending(content, plan=plan, labels=labels)
        budget = self._lookout.find_budget(subject)
        account = context.get_standing(subject.model, epoch.id, budget).account
        tariff = self._lookout.find_tariff(subject, known)
        saving = tariff.price_repeated(account.sent) - tariff.price_rewritten(known.tokens, known.head.tokens)
        told = self._lookout.find_ratio(subject).apply(known.tokens)
        plan = Plan(
            subject.exchange, 0, subject.model, "original", "", "none", reason, told, told, 0, account.owed, saving
        )
        return Sending(content, plan=plan, labels=labels)


def _is_kept(case: RequestState) -> bool:
    """Whether no epoch opens, however little the new messages count: where none does at the most, none does at less.

    Not told where an epoch was in vain: what must stay is then estimated by what is counted.
    """
    if case.account.ineffective or case.budget.is_ceiling_unreachable(case.protected):
        return False
    return decide(case.account, case.facts).why is None


def _is_cheap_retry(case: RequestState, decision: Decision) -> bool:
    """Whether the log has this very history, and nothing but its price asks for an epoch; memory may have lost it."""
    step = case.subject.step
    return step is not None and step.relation == "retry" and decision.why != "hard"


def _is_tried(case: RequestState) -> bool:
    """Whether a plan was made for this very request that makes it no shorter."""
    return case.context.fruitless.get(case.view) == (case.tokens, case.subject.tip)


def _choose(case: RequestState, footing: Footing) -> None:
    """Send this history, and what goes on from it, so from now on."""
    case.context.choose(case.view, case.subject, _name(footing.epoch))
    if footing.epoch is not None:
        case.context.cover(footing.epoch, case.subject.chain.items)


def _label_observed(reason: str) -> Headers:
    """What the client is told of a request that is not managed though it otherwise could be."""
    told = reason if reason == HELD_OUT else f"stood-down:{reason}"
    return ((b"x-palimpsest-mode", f"observe; {told}".encode("ascii", "replace")),)


def _tell_own(case: RequestState, footing: Footing, decision: Decision) -> Headers:
    """The same of one that goes as its client sent it though it is above the soft mark, and not for its price."""
    if footing.rung != "original" or decision.pressure == "none":
        return ()
    if decision.why is None:
        return _label_observed(decision.reason) if decision.reason in _STOOD_DOWN else ()
    return () if _is_tried(case) else _label_observed(NOT_CUT)


def _name(epoch: Epoch | None) -> str:
    return epoch.id if epoch is not None else ""


def _note_blindness(error: Exception) -> None:
    _log.error("a request could not be looked at; it goes on without that", exc_info=error)


def _find_exemption(subject: ManagedRequest, mode: Mode) -> str:
    """Why a request is not managed; empty where it is."""
    if mode != "manage":
        return f"{mode} was asked for"
    if subject.step is None:
        return _UNPROVEN
    return FORMATS[subject.wire].find_management(subject.split, len(subject.split.items))


def _is_risky(budget: Budget, subject: ManagedRequest) -> bool:
    """Whether the upstream may refuse a request as too long that is below the soft mark of its budget."""
    return budget.window is None and len(subject.split.content) >= _SAFE_BYTES


# No model has a window of fewer tokens; a request of so many bytes has fewer tokens than bytes.
_SAFE_BYTES = 4096
