"""What is sent for a request: its own bytes, or an epoch in place of the beginning of its history.

Rule: below the soft mark nothing is rewritten of our own accord, and while bytes prove that a request is there nothing
is counted. Whatever goes wrong here is no failed call: the request goes on as the client sent it.
"""

import logging

from proxy.context.account import Account, Sent, note_sent, note_use
from proxy.context.budget import Budget, is_surely_below
from proxy.context.economics import Decision, decide
from proxy.context.savings import Trip, estimate_client_read, estimate_saving
from proxy.engine.bus import EventBus
from proxy.engine.managing.case import Case, find_kept
from proxy.engine.managing.contexts import Context
from proxy.engine.managing.ladder import Commit, Footing, Ladder
from proxy.engine.managing.memory import Memory
from proxy.engine.managing.paths import Path, list_members
from proxy.engine.managing.sending import Sending, list_labels
from proxy.engine.managing.subject import Subject
from proxy.engine.modelling import Models
from proxy.engine.ports import Clock
from proxy.model.epoch import Epoch
from proxy.model.events import RungFailed
from proxy.model.exchange import Mode
from proxy.model.plan import Plan
from proxy.wire.standing import find_management

_MANAGED_WIRES = frozenset({"chat_completions"})
_UNPROVEN = "the upstream has not accepted this credential yet"

_log = logging.getLogger("palimpsest.managing")


class Steward:
    """Decides for each managed request what is sent."""

    def __init__(self, memory: Memory, ladder: Ladder, models: Models, bus: EventBus, clock: Clock) -> None:
        self._memory = memory
        self._contexts = memory.contexts
        self._paths = memory.paths
        self._ladder = ladder
        self._models = models
        self._bus = bus
        self._clock = clock

    async def prepare(self, subject: Subject, mode: Mode, ceiling: int | None, commit: Commit) -> Sending:
        """What to send. Never fails: what cannot be managed goes as the client sent it."""
        if subject.wire not in _MANAGED_WIRES:
            return Sending(subject.split.content)
        if exemption := _find_exemption(subject, mode):
            return self._stand_aside(subject, mode, exemption)
        try:
            return await self._manage(subject, ceiling, commit)
        except Exception as error:  # noqa: BLE001 - a boundary: a fault of ours must not fail the call
            _log.exception("a request could not be managed; it goes on as it came")
            problem = f"{type(error).__name__}: {error}"
            self._bus.publish(RungFailed(subject.exchange, subject.session.id, "plan", problem))
            plan = Plan(subject.exchange, 0, subject.model, "original", reason=problem)
            return Sending(subject.split.content, plan=plan)

    async def _manage(self, subject: Subject, ceiling: int | None, commit: Commit) -> Sending:
        self._memory.forget_lost()
        context = await self._contexts.open(subject)
        upstream, model = subject.session.upstream, subject.model
        ratio = self._models.find_ratio(upstream, model)
        budget = self._models.find_budget(upstream, model, subject.most_output or None, ceiling).scale(ratio.value)
        epoch = context.find(model, subject)
        known, shared = self._paths.find(subject)
        if epoch is None and _is_below(subject, budget, known, shared):
            account = context.read_account(model, "", budget)
            context.write_account(model, "", note_use(account, self._clock.monotonic()))
            return Sending(subject.split.content, is_guarded=_is_risky(budget, subject))
        case = await self._look_at(subject, context, epoch, budget, (known, shared))
        decision = decide(case.account, case.facts)
        footing = await self._ladder.climb(case, decision.why, commit)
        saving = _estimate(case, footing)
        account = self._charge(case, footing)
        context.choose(model, subject, footing.epoch.id if footing.epoch is not None else "")
        self._contexts.shrink()
        return self._report(case, footing, decision, account, saving)

    async def _look_at(
        self, subject: Subject, context: Context, epoch: Epoch | None, budget: Budget, known: tuple[Path | None, int]
    ) -> Case:
        path = await self._paths.follow(subject, *known)
        upstream, model = subject.session.upstream, subject.model
        frozen = await self._weigh(subject, context, epoch) if epoch is not None else 0
        depth = epoch.depth if epoch is not None else 0
        before = context.paths.get((model, epoch.id if epoch is not None else ""))
        return Case(
            subject=subject,
            context=context,
            epoch=epoch,
            frozen=frozen,
            path=path,
            kept=find_kept(path, before, frozen, depth),
            budget=budget,
            tariff=self._models.find_tariff(upstream, model, path.list_markers()),
            ratio=self._models.find_ratio(upstream, model),
            protected=context.protected.get(model, 0),
            now=self._clock.monotonic(),
        )

    async def _weigh(self, subject: Subject, context: Context, epoch: Epoch) -> int:
        """The tokens of what is sent for an epoch, counted once."""
        tokens = context.sizes.get(epoch.id)
        if tokens is None:
            tokens = context.sizes[epoch.id] = await self._paths.count_messages(subject, epoch.rendered)
        return tokens

    def _charge(self, case: Case, footing: Footing) -> Account:
        """The account of what holds, with this request."""
        key = (case.view, footing.epoch.id if footing.epoch is not None else "")
        low = case.budget.find_low(case.context.protected.get(case.view, 0))
        kept = case.path.head.tokens if footing.is_opened else case.kept
        account = case.context.read_account(*key, case.budget)
        account = note_sent(account, Sent(footing.tokens, kept=kept, at=case.now), case.tariff, low)
        case.context.write_account(*key, account)
        case.context.paths[key] = case.subject.nodes
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
            "" if footing.is_opened else decision.reason,
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
            is_guarded=case.budget.is_near_window(footing.tokens),
        )

    def _stand_aside(self, subject: Subject, mode: Mode, reason: str) -> Sending:
        """A request that is not managed though its session may be; what that costs is told."""
        content = subject.split.content
        labels = ((b"x-palimpsest-mode", f"observe; {reason}".encode("ascii", "replace")),) if mode == "manage" else ()
        context = self._contexts.get(subject.session.id)
        epoch = context.find(subject.model, subject) if context is not None else None
        known, _ = self._paths.find(subject)
        if context is None or epoch is None or known is None:
            plan = Plan(subject.exchange, 0, subject.model, "original", reason=reason) if mode == "manage" else None
            return Sending(content, plan=plan, labels=labels)
        budget = self._models.find_budget(subject.session.upstream, subject.model, None, None)
        account = context.read_account(subject.model, epoch.id, budget)
        tariff = self._models.find_tariff(subject.session.upstream, subject.model, known.list_markers())
        saving = tariff.price_size(account.sent) - tariff.price_rewritten(known.tokens, known.head.tokens)
        told = self._models.find_ratio(subject.session.upstream, subject.model).apply(known.tokens)
        plan = Plan(
            subject.exchange, 0, subject.model, "original", "", "none", reason, told, told, 0, account.owed, saving
        )
        return Sending(content, plan=plan, labels=labels)


def _find_exemption(subject: Subject, mode: Mode) -> str:
    """Why a request is not managed; empty where it is."""
    if mode != "manage":
        return f"{mode} was asked for"
    if subject.step is None:
        return _UNPROVEN
    return find_management(subject.wire, subject.split)


def _is_below(subject: Subject, budget: Budget, known: Path | None, shared: int) -> bool:
    """Whether bytes prove that a request is below the soft mark, beside what of it was counted before."""
    content = subject.split.content
    if known is None or known.head.members != list_members(subject):
        return is_surely_below(budget, content)
    end = subject.split.items[subject.chain.preamble.count + shared - 1].end
    return is_surely_below(budget, content[end:], known.head.tokens + known.count_to(shared))


def _is_risky(budget: Budget, subject: Subject) -> bool:
    """Whether the upstream may refuse a request as too long that is below the soft mark of its budget."""
    return budget.window is None and len(subject.split.content) >= _SAFE_BYTES


# No model has a window of fewer tokens; a request of so many bytes has fewer tokens than bytes.
_SAFE_BYTES = 4096


def _estimate(case: Case, footing: Footing) -> float | None:
    """What a request saves against the client's own, as far as the cache is known; before it is answered."""
    before = case.context.paths.get(case.account_key)
    if before is None:
        return None
    facts = case.facts
    matching = case.path.head.tokens + case.path.count_to(min(len(before), len(case.subject.nodes)))
    stays = case.path.head.tokens if footing.is_opened else facts.kept
    sent_read = case.tariff.expect_read(min(footing.tokens, case.account.sent if stays is None else stays))
    client_read = estimate_client_read(case.tariff, matching, facts.idle)
    return estimate_saving(Trip(case.client_tokens, footing.tokens, client_read, sent_read), case.tariff)
