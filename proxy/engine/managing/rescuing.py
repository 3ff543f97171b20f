"""A request that was refused as too long is cut and sent once more (BEHAVIOUR B8, B18, B20a).

Rule: the limit is learned from what the upstream says; fewer tokens of output are asked for where that is all it takes,
else the context is cut. Where nothing shorter can be had, the upstream's own answer goes on.
"""

import logging
from collections.abc import Callable

import msgspec

from proxy.context.budget import Budget, lower_output
from proxy.engine.boundary import attempt
from proxy.engine.managing.case import Case
from proxy.engine.managing.ladder import Commit, Footing, Ladder
from proxy.engine.managing.lookout import Lookout, find_key
from proxy.engine.managing.sending import Sending, list_labels
from proxy.engine.managing.subject import Subject
from proxy.engine.rescue import Refusal, Retry, Start
from proxy.model.exchange import Headers, Round
from proxy.model.plan import Plan
from proxy.wire import rendering
from proxy.wire.body import split_body
from proxy.wire.overflow import Overflow, read_overflow, read_stream_start

# What is sent the second time where the upstream does not say how much it takes, as a part of what was sent first.
_BLIND_SHARE = 0.7
# What a count of ours may be short of the upstream's, which has refused by its own.
_CAUTION = 0.9
# What is left free for the answer at most: more would leave the context too little to go on with.
_MOST_RESERVED = 0.75

_log = logging.getLogger("palimpsest.rescue")


class Reach(msgspec.Struct, frozen=True):
    """What a rescuer can do with a call. `settle` has done what was put off of it.

    `tell` tells the client what was done, as long as no answer has begun.
    """

    commit: Commit
    tell: Callable[[Headers], None]
    settle: Callable[[], None]


class Rescues:
    """Makes the rescuers of calls."""

    def __init__(self, lookout: Lookout, ladder: Ladder) -> None:
        self.lookout = lookout
        self.ladder = ladder

    def stand_by(self, subject: Subject, sending: Sending, reach: Reach) -> "Rescue":
        """The rescuer of a call that is managed."""
        return Rescue(self, subject, sending, reach)


class Rescue:
    """Stands by one call (`engine/rescue.Rescuer`)."""

    def __init__(self, rescues: Rescues, subject: Subject, sending: Sending, reach: Reach) -> None:
        self._rescues = rescues
        self._subject = subject
        self._sending = sending
        self._reach = reach

    @property
    def is_guarded(self) -> bool:
        """Whether the head of the answer waits for what comes."""
        return self._sending.is_guarded

    def read_start(self, content: bytes) -> Start:
        """What the events at the beginning of a stream are."""
        return read_stream_start(content)

    async def rescue(self, refusal: Refusal) -> Retry | None:
        """What to send in place of the request; None where the answer is another, or nothing shorter can be had."""
        overflow = read_overflow(refusal.status, refusal.headers, refusal.content)
        if overflow is None:
            return None
        self._reach.settle()
        return await attempt(self._cut(overflow), self._note)

    def _note(self, error: Exception) -> None:
        _log.error("exchange %s is too long and could not be cut", self._subject.exchange, exc_info=error)

    async def _cut(self, overflow: Overflow) -> Retry | None:
        case = await self._look_at_sent()
        sent = overflow.sent or case.tell(case.tokens)
        window = self._learn(overflow, sent)
        if overflow.window is not None and overflow.fits_with_less_output:
            window = overflow.window
            if retry := self._ask_less(window, sent):
                return retry
        case = msgspec.structs.replace(case, budget=self._tighten(case, window, sent))
        footing = await self._rescues.ladder.climb(case, "overflow", self._reach.commit, f"{self._subject.exchange}-1")
        if footing.epoch is None or footing.tokens >= case.tokens:
            return None
        case.context.choose(case.view, self._subject, footing.epoch.id)
        return self._retry(case, footing)

    async def _look_at_sent(self) -> Case:
        """How the request stands that was refused, under the epoch that it was sent under."""
        subject, lookout, plan = self._subject, self._rescues.lookout, self._sending.plan
        context = await lookout.memory.contexts.open(subject)
        epoch = context.get_epoch(plan.epoch) if plan is not None else None
        return await lookout.look_at(subject, context, epoch, lookout.find_budget(subject, self._sending.ceiling))

    def _learn(self, overflow: Overflow, sent: int) -> int | None:
        """The window that the upstream tells, if it is to be believed (B18)."""
        if overflow.window is None:
            return None
        models, key = self._rescues.lookout.models, find_key(self._subject)
        models.note_limit(key, overflow.window, sent)
        known = models.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant).window
        return overflow.window if overflow.window == known else None

    def _tighten(self, case: Case, window: int | None, sent: int) -> Budget:
        """The budget of the second attempt, in our tokens, which the upstream counts as `sent` for so many of ours."""
        budget = self._rescues.lookout.find_budget(self._subject, self._sending.ceiling)
        room = int(case.tokens * _BLIND_SHARE)
        if window is not None:
            scale = case.tokens / sent if sent else 1.0
            reserve = min(case.tell(budget.output), int(window * _MOST_RESERVED))
            room = int((window - reserve) * min(1.0, scale) * _CAUTION)
        return budget.limit(min(room, int(case.tokens * _CAUTION)))

    def _ask_less(self, window: int, sent: int) -> Retry | None:
        """The same body with fewer tokens of output asked for, where the rest fits (B18)."""
        asked = self._subject.most_output
        fitting = lower_output(asked, window, sent) if asked else None
        body = split_body(self._sending.body, self._subject.items_key)
        if fitting is None or body is None:
            return None
        content = rendering.lower_output(body, fitting)
        if content == self._sending.body:
            return None
        known = self._sending.plan
        reason = f"max_tokens lowered from {asked} to {fitting}, which is what the window leaves"
        plan = Plan(
            self._subject.exchange,
            1,
            self._subject.model,
            known.rung if known is not None else "original",
            known.epoch if known is not None else "",
            reason=reason,
        )
        return self._keep(content, plan)

    def _retry(self, case: Case, footing: Footing) -> Retry:
        plan = Plan(
            self._subject.exchange,
            1,
            case.view,
            footing.rung,
            footing.epoch.id if footing.epoch is not None else "",
            "hard",
            "refused as too long",
            case.tell(case.client_tokens),
            case.tell(footing.tokens),
            case.tell(case.budget.usable),
        )
        self._reach.tell(list_labels(plan, footing.epoch, is_opened=True))
        return self._keep(footing.body, plan)

    def _keep(self, content: bytes, plan: Plan) -> Retry:
        manifest = self._rescues.lookout.memory.sent.keep(self._subject, content)
        first = Round(self._subject.exchange, plan.k, self._subject.session.upstream, manifest)
        return Retry(content, first, plan)
