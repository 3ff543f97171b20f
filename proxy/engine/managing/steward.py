"""What is sent for a request: its own bytes, or an epoch in place of the beginning of its history.

Rule: below the soft mark nothing is rewritten of our own accord, and while bytes prove that a request is there nothing
is counted. Whatever goes wrong here is no failed call: the request goes on as the client sent it.
"""

import logging
from collections.abc import Awaitable
from functools import partial

from msgspec.structs import replace

from proxy.context.account import Account, Sent, note_sent, note_use
from proxy.context.budget import Budget, has_room_for
from proxy.context.economics import Decision, decide
from proxy.context.savings import Trip, estimate_client_read, estimate_saving
from proxy.engine.boundary import attempt, attempt_now
from proxy.engine.bus import EventBus
from proxy.engine.managing.case import Case
from proxy.engine.managing.ladder import Commit, Footing, Ladder
from proxy.engine.managing.lessons import Lesson, Lessons
from proxy.engine.managing.lookout import Lookout, find_key
from proxy.engine.managing.paths import count_shared
from proxy.engine.managing.pinning import Pinning, is_pinning, refuse_pin
from proxy.engine.managing.rescuing import Rescues, Tell
from proxy.engine.managing.sending import Sending, list_labels
from proxy.engine.managing.subject import Subject
from proxy.engine.ports import Clock, Upstream
from proxy.engine.rescue import Rescuer
from proxy.model.events import Planned, RungFailed
from proxy.model.exchange import Mode
from proxy.model.plan import Plan
from proxy.wire.standing import find_management

_MANAGED_WIRES = frozenset({"chat_completions"})
_UNPROVEN = "the upstream has not accepted this credential yet"
_SENT_BEFORE = "the same history goes out as it did before"
_UNREAD = "what the log knows of this session could not be read"
_NONE_BORE = "an epoch was to open, and another request's or none bore"

_log = logging.getLogger("palimpsest.managing")


class Steward:
    """Decides for each managed request what is sent."""

    def __init__(
        self, lookout: Lookout, ladder: Ladder, rescues: Rescues, lessons: Lessons, bus: EventBus, clock: Clock
    ) -> None:
        self._memory = lookout.memory
        self._lookout = lookout
        self._ladder = ladder
        self._rescues = rescues
        self._lessons = lessons
        self._bus = bus
        self._clock = clock
        self._pinning = Pinning(lookout, clock)

    @property
    def lookout(self) -> Lookout:
        """What looks at requests; others that look at sessions share its memory."""
        return self._lookout

    def glance(self, subject: Subject, mode: Mode, ceiling: int | None) -> Sending | None:
        """What to send where that is told at once; None for what takes a closer look.

        Most calls are short ones of sessions in which nothing was ever managed: nothing is looked up for those.
        """
        return attempt_now(partial(self._glance, subject, mode, ceiling), _note_blindness)

    def _glance(self, subject: Subject, mode: Mode, ceiling: int | None) -> Sending | None:
        content = subject.split.content
        if is_pinning(subject):
            return None
        if subject.wire not in _MANAGED_WIRES:
            return Sending(content)
        if mode != "manage" or ceiling is not None or subject.step is None:
            return None
        if not self._memory.contexts.is_blank(subject):
            return None
        budget = self._lookout.find_budget(subject)
        if not (subject.chain.is_plain and has_room_for(budget, len(content))) or _find_exemption(subject, mode):
            return None
        return Sending(content, is_managed=True, is_guarded=_is_risky(budget, subject))

    async def prepare(self, subject: Subject, mode: Mode, ceiling: int | None, commit: Commit) -> Sending:
        """What to send. Never fails: what cannot be managed goes as the client sent it."""
        sending = await self._try(subject, self._prepare(subject, mode, ceiling, commit))
        if sending.plan is not None:
            self._bus.publish(Planned(subject.session.id, sending.plan))
        return sending

    async def _prepare(self, subject: Subject, mode: Mode, ceiling: int | None, commit: Commit) -> Sending:
        if subject.wire not in _MANAGED_WIRES:
            return Sending(subject.split.content).add(refuse_pin(subject, "calls of this wire are not managed"))
        if exemption := _find_exemption(subject, mode):
            return self._stand_aside(subject, mode, exemption).add(refuse_pin(subject, exemption))
        pin, told = await self._pinning.take(subject, ceiling)
        return (await self._try(subject, self._manage(subject, ceiling, commit))).add(told, pin)

    async def _try(self, subject: Subject, work: Awaitable[Sending]) -> Sending:
        problems: list[Exception] = []
        return await attempt(work, problems.append) or self._give_up(subject, problems[0])

    def _give_up(self, subject: Subject, error: Exception) -> Sending:
        """The client's own request, after a fault of ours."""
        _log.error("a request could not be managed; it goes on as it came", exc_info=error)
        problem = f"{type(error).__name__}: {error}"
        self._bus.publish(RungFailed(subject.exchange, subject.session.id, "plan", problem))
        plan = Plan(subject.exchange, 0, subject.model, "original", reason=problem)
        return Sending(subject.split.content, plan=plan)

    def inquire(self, subject: Subject, upstream: Upstream) -> None:
        """Have the upstream asked for its models where nobody knows how much this one takes; beside the calls."""
        attempt_now(partial(self._inquire, subject, upstream), _note_blindness)

    def _inquire(self, subject: Subject, upstream: Upstream) -> None:
        models, key = self._lookout.models, find_key(subject)
        card = models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        if card.window is None:
            models.ask(upstream, subject.headers)

    def stand_by(self, subject: Subject, sending: Sending, commit: Commit, tell: Tell) -> Rescuer:
        """Who cuts a managed request that is refused as too long, and tells the client of it."""
        return self._rescues.stand_by(subject, sending, commit, tell)

    async def _manage(self, subject: Subject, ceiling: int | None, commit: Commit) -> Sending:
        self._memory.forget_lost()
        context = await self._memory.contexts.open(subject)
        model, budget = subject.model, self._lookout.find_budget(subject, ceiling)
        epoch = context.find(model, subject)
        if epoch is None and self._lookout.is_below(subject, budget):
            standing = context.get_standing(model, "", budget)
            standing.account = note_use(standing.account, self._clock.monotonic())
            is_guarded = _is_risky(budget, subject)
            return Sending(subject.split.content, is_managed=True, is_guarded=is_guarded, ceiling=ceiling)
        if epoch is None and (exemption := self._find_sign(subject)):
            return self._stand_aside(subject, "manage", exemption)
        case = await self._lookout.look_at(subject, context, epoch, budget)
        decision = _decide(case)
        footing = await self._ladder.climb(case, decision.why, commit)
        saving = _estimate_saving(case, footing)
        self._expect(case, footing)
        account = self._charge(case, footing)
        context.choose(model, subject, footing.epoch.id if footing.epoch is not None else "")
        if footing.epoch is not None:
            context.cover(footing.epoch, subject.chain.items)
        sending = self._report(case, footing, decision, account, saving)
        return replace(sending, ceiling=ceiling)

    def _find_sign(self, subject: Subject) -> str:
        """What in the messages says that they are managed already; those that were managed before are not looked at.

        Not asked under an epoch of ours: what looks like one there is an echo, and as it came it would be too long.
        """
        known, shared = self._memory.paths.find(subject)
        seen = subject.chain.preamble.count + shared if known is not None else 0
        return find_management(subject.wire, subject.split, seen)

    def _expect(self, case: Case, footing: Footing) -> None:
        """Learn from the answer, once it is there."""
        upstream, matching = case.subject.session.upstream, _find_matching(case, footing)
        expected = case.tariff.cache.find_read(matching)
        stable = matching if footing.is_opened else None
        self._lessons.wait_for(case.subject.exchange, 0, Lesson(upstream, case.view, footing.tokens, expected, stable))

    def _charge(self, case: Case, footing: Footing) -> Account:
        """The account of what holds, with this request."""
        standing = case.find_standing(footing.epoch)
        if case.subject.is_side:
            standing.account = note_use(standing.account, case.now)
            return standing.account
        low = case.budget.find_low(case.context.protected.get(case.view, 0))
        kept = case.path.head.tokens if footing.is_opened else case.kept
        sent = Sent(footing.tokens, kept=kept, at=case.now)
        account = standing.account = note_sent(standing.account, sent, case.tariff, low)
        standing.before, standing.head = case.subject.nodes, case.path.head
        return account

    def _report(
        self, case: Case, footing: Footing, decision: Decision, account: Account, saving: float | None
    ) -> Sending:
        subject, epoch = case.subject, footing.epoch
        plan = Plan(
            subject.exchange,
            0,
            case.view,
            footing.rung,
            epoch.id if epoch is not None else "",
            decision.pressure,
            "" if footing.is_opened else decision.reason or _NONE_BORE,
            case.tell(case.client_tokens),
            case.tell(footing.tokens),
            case.tell(case.budget.usable),
            account.owed,
            saving,
        )
        is_own = footing.rung == "original"
        return Sending(
            footing.body,
            None if is_own else self._memory.sent.keep(subject, footing.body),
            plan,
            list_labels(plan, epoch, is_opened=footing.is_opened),
            is_managed=True,
            is_guarded=case.budget.is_near_window(footing.tokens),
        )

    def _stand_aside(self, subject: Subject, mode: Mode, reason: str) -> Sending:
        """A request that is not managed though its session may be; what that costs is told."""
        content = subject.split.content
        labels = ((b"x-palimpsest-mode", f"observe; {reason}".encode("ascii", "replace")),) if mode == "manage" else ()
        context = self._memory.contexts.get(subject.session.id)
        epoch = context.find(subject.model, subject) if context is not None else None
        known, _ = self._memory.paths.find(subject)
        if context is None or epoch is None or known is None:
            plan = Plan(subject.exchange, 0, subject.model, "original", reason=reason) if mode == "manage" else None
            return Sending(content, plan=plan, labels=labels)
        budget = self._lookout.find_budget(subject)
        account = context.get_standing(subject.model, epoch.id, budget).account
        tariff = self._lookout.find_tariff(subject, known)
        saving = tariff.price_size(account.sent) - tariff.price_rewritten(known.tokens, known.head.tokens)
        told = self._lookout.find_ratio(subject).apply(known.tokens)
        plan = Plan(
            subject.exchange, 0, subject.model, "original", "", "none", reason, told, told, 0, account.owed, saving
        )
        return Sending(content, plan=plan, labels=labels)


def _decide(case: Case) -> Decision:
    """Whether an epoch opens; none does where the log may know of another (B10), or for what was sent before (B5)."""
    decision = decide(case.account, case.facts)
    if not case.context.is_known:
        return Decision(None, decision.pressure, _UNREAD)
    if decision.why is not None and case.context.was_sent(case.view, case.subject):
        return Decision(None, decision.pressure, _SENT_BEFORE)
    return decision


def _note_blindness(error: Exception) -> None:
    _log.error("a request could not be looked at; it goes on without that", exc_info=error)


def _find_exemption(subject: Subject, mode: Mode) -> str:
    """Why a request is not managed; empty where it is."""
    if mode != "manage":
        return f"{mode} was asked for"
    if subject.step is None:
        return _UNPROVEN
    return find_management(subject.wire, subject.split, len(subject.split.items))


def _is_risky(budget: Budget, subject: Subject) -> bool:
    """Whether the upstream may refuse a request as too long that is below the soft mark of its budget."""
    return budget.window is None and len(subject.split.content) >= _SAFE_BYTES


# No model has a window of fewer tokens; a request of so many bytes has fewer tokens than bytes.
_SAFE_BYTES = 4096


def _find_matching(case: Case, footing: Footing) -> int:
    """The tokens at the beginning of what is sent that were sent before."""
    if footing.is_opened:
        return case.path.head.tokens
    return min(footing.tokens, case.account.sent if case.kept is None else case.kept)


def _estimate_saving(case: Case, footing: Footing) -> float | None:
    """What a request saves against the client's own, as far as the cache is known; before it is answered."""
    before = case.find_standing(case.epoch).before
    if before is None:
        return None
    shared = count_shared(before, case.path.nodes)
    client_read = estimate_client_read(
        case.tariff, case.path.head.tokens + case.path.count_to(shared), case.account.find_idle(case.now)
    )
    sent_read = case.tariff.expect_read(_find_matching(case, footing))
    return estimate_saving(Trip(case.client_tokens, footing.tokens, client_read, sent_read), case.tariff)
