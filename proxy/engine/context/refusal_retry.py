"""A refused request is sent once more in another form (BEHAVIOUR B8, B8a, B18, B20a).

One that was too long is cut: the limit is learned from what the upstream says, and fewer tokens of output are asked for
where that is all it takes. One that was rewritten, and refused for anything else, goes without signed reasoning, then
as the client sent it; if that is accepted, its view is not rewritten for a day. Where there is nothing else to send,
the upstream's own answer goes on.
"""

import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from proxy.context.budget import Budget, lower_output
from proxy.engine.boundary import attempt
from proxy.engine.context.accounting import Sending, list_labels
from proxy.engine.context.fallback import Commit, FallbackChain
from proxy.engine.context.request_state import RequestState, StateReader, find_key
from proxy.engine.context.session_context import SessionContext
from proxy.engine.request import ManagedRequest
from proxy.engine.round import Refusal, Retry, Start
from proxy.engine.runtime import EventBus
from proxy.model.epoch import Epoch, Plan, Rung
from proxy.model.errors import StoreUnavailable
from proxy.model.events import CeilingExceeded, EpochRefused
from proxy.model.exchange import Headers, Round
from proxy.wire import rendering
from proxy.wire.body import split_body
from proxy.wire.overflow import Overflow, read_overflow, read_stream_start

# What is sent the second time where the upstream does not say how much it takes, as a part of what was sent first.
_BLIND_SHARE = 0.7
# What a count of ours may be short of the upstream's, which has refused by its own.
_CAUTION = 0.9
# What is left free for the answer at most: more would leave the context too little to go on with.
_MOST_RESERVED = 0.75

# Who asks, and how often: not the request's form.
_NOT_ITS_FORM = frozenset({401, 402, 403, 407, 408, 425, 429})
_FORM = range(400, 500)

_Level = Literal["unsigned", "original", "minimal"]
"""What a refused rewritten request is sent as next."""

_log = logging.getLogger("palimpsest.rescue")


class Reach(msgspec.Struct, frozen=True):
    """What a rescuer can do with a call. `settle` has done what was put off of it.

    `tell` tells the client what was done, as long as no answer has begun.
    """

    commit: Commit
    tell: Callable[[Headers], None]
    settle: Callable[[], None]


class RefusalRetries:
    """Makes the rescuers of calls."""

    def __init__(self, lookout: StateReader, ladder: FallbackChain, bus: EventBus) -> None:
        self.lookout = lookout
        self.ladder = ladder
        self.bus = bus

    def stand_by(self, subject: ManagedRequest, sending: Sending, reach: Reach) -> "RefusalRetry":
        """The rescuer of a call that is managed."""
        return RefusalRetry(self, subject, sending, reach)


class RefusalRetry:
    """Stands by one call (`engine/rescue.Rescuer`)."""

    def __init__(self, rescues: RefusalRetries, subject: ManagedRequest, sending: Sending, reach: Reach) -> None:
        self._rescues = rescues
        self._subject = subject
        self._sending = sending
        self._reach = reach
        self._body = sending.body
        self._plan = sending.plan
        self._k = 0
        self._is_cut = False
        self._level: _Level | None = None
        self._refused = ""
        self._sent = [sending.body]

    @property
    def is_guarded(self) -> bool:
        """Whether the head of the answer waits for what comes."""
        return self._sending.is_guarded and not self._k

    def read_start(self, content: bytes) -> Start:
        """What the events at the beginning of a stream are."""
        return read_stream_start(content)

    async def rescue(self, refusal: Refusal) -> Retry | None:
        """What to send in place of what was sent last; None where the answer is another, or nothing else can be had."""
        overflow = read_overflow(refusal.status, refusal.headers, refusal.content)
        if overflow is not None:
            work = None if self._is_cut else self._cut(overflow)
        else:
            is_about_form = refusal.status in _FORM and refusal.status not in _NOT_ITS_FORM
            work = self._step_back(refusal) if is_about_form and self._is_rewritten else None
        if work is None:
            return None
        self._reach.settle()
        retry = await attempt(work, self._note)
        if retry is None or retry.body in self._sent:
            return None
        self._sent.append(retry.body)
        self._body, self._plan = retry.body, retry.plan
        return retry

    async def accept(self) -> None:
        """Keep to the form that was accepted in place of a refused one."""
        if self._level is None:
            return
        await attempt(self._learn_form(self._level), self._note_lesson)

    @property
    def _is_rewritten(self) -> bool:
        return self._body != self._subject.split.content

    def _note(self, error: Exception) -> None:
        _log.error("exchange %s was refused and could not be sent otherwise", self._subject.exchange, exc_info=error)

    def _note_lesson(self, error: Exception) -> None:
        _log.error("exchange %s: the refusal of its epoch was not kept", self._subject.exchange, exc_info=error)

    async def _step_back(self, refusal: Refusal) -> Retry | None:
        """The same without signed reasoning, then the client's own bytes, or a minimal plan where those do not fit."""
        case = await self._look_at_sent()
        self._refused = case.epoch.id if case.epoch is not None else ""
        said = f"the upstream refused the rewritten request with {refusal.status}"
        # Not what it said: that may quote a credential, or the conversation. The record has it.
        _log.warning("exchange %s: %s; sending it in another form", self._subject.exchange, said)
        if self._level is None and (content := self._strip(self._body)) != self._body:
            return self._send("unsigned", content, self._make_plan(case, "epoch", case.tokens, said))
        room = case.budget.find_room()
        if self._level in (None, "unsigned") and (room is None or case.client_tokens <= room):
            plan = self._make_plan(case, "original", case.client_tokens, said)
            return self._send("original", self._subject.split.content, plan)
        if self._level == "minimal":
            return None
        return await self._send_minimal(case, said)

    async def _send_minimal(self, case: RequestState, said: str) -> Retry | None:
        """The least that can be sent, without signed reasoning."""
        name = f"{self._subject.exchange}-{self._k + 1}"
        case = msgspec.structs.replace(case, budget=case.budget.limit(int(case.tokens * _CAUTION)))
        footing = await self._rescues.ladder.climb(case, "overflow", self._reach.commit, name, seconds=0.0)
        if footing.epoch is None or footing.tokens >= case.tokens:
            return None
        case.context.choose(case.view, self._subject, footing.epoch.id)
        plan = self._make_plan(case, footing.rung, footing.tokens, said)
        plan = msgspec.structs.replace(plan, epoch=footing.epoch.id)
        self._reach.tell(list_labels(plan, footing.epoch, is_opened=True))
        return self._send("minimal", self._strip(footing.body), plan)

    def _strip(self, body: bytes) -> bytes:
        split = split_body(body, self._subject.items_key)
        return body if split is None else rendering.strip_reasoning(split)

    def _send(self, level: _Level, content: bytes, plan: Plan) -> Retry:
        self._level = level
        return self._keep(content, plan)

    def _make_plan(self, case: RequestState, rung: Rung, tokens: int, reason: str) -> Plan:
        return Plan(
            self._subject.exchange,
            self._k + 1,
            case.view,
            rung,
            case.epoch.id if case.epoch is not None and rung != "original" else "",
            "hard",
            reason,
            case.tell(case.client_tokens),
            case.tell(tokens),
            case.tell(case.budget.usable),
        )

    async def _learn_form(self, level: _Level) -> None:
        subject = self._subject
        context = await self._rescues.lookout.memory.contexts.open(subject)
        if level == "original":
            self._tell_excess()
            await self._stand_down(context)
            told = b"the upstream refused the shortened request; it went as the client sent it"
        else:
            context.unsigned.add(subject.model)
            told = b"the upstream refused the shortened request; it went without signed reasoning"
        self._reach.tell(((b"x-palimpsest-notice", told),))

    def _tell_excess(self) -> None:
        """That the client's own request is above the ceiling, if so."""
        subject, plan = self._subject, self._plan
        if plan is not None and plan.tokens_upstream is not None and plan.tokens_upstream > plan.usable:
            named = subject.exchange, subject.session.id, subject.model
            self._rescues.bus.publish(CeilingExceeded(*named, plan.tokens_upstream, plan.usable, plan.reason))

    async def _stand_down(self, context: SessionContext) -> None:
        """Send the view as its client does from now on; an epoch that takes back the refused one says so."""
        subject, refused = self._subject, context.get_epoch(self._refused)
        if refused is None or self._plan is None:
            return
        epoch = Epoch(
            id=f"{subject.exchange}-{self._k + 1}",
            session=subject.session.id,
            view=subject.model,
            parent=refused.id,
            through=subject.chain.root,
            depth=0,
            why="refused",
            exchange=subject.exchange,
            opened_ms=self._rescues.lookout.clock.now_ms(),
            tokens_before=refused.tokens_after,
            tokens_after=self._plan.tokens_upstream or 0,
            edits=b"[]",
            rendered=(),
        )
        self._rescues.lookout.memory.contexts.add(epoch.session, epoch)
        context.choose(subject.model, subject, epoch.id)
        self._rescues.bus.publish(EpochRefused(refused.id, epoch.session, subject.exchange, subject.model))
        if not await self._reach.commit(epoch):
            raise StoreUnavailable("the log did not take it in time; it holds until the next start")

    async def _cut(self, overflow: Overflow) -> Retry | None:
        self._is_cut = True
        case = await self._look_at_sent()
        sent = overflow.sent or case.tell(case.tokens)
        window = self._learn(overflow, sent)
        if overflow.window is not None and overflow.fits_with_less_output:
            window = overflow.window
            if retry := self._ask_less(window, sent):
                return retry
        case = msgspec.structs.replace(case, budget=self._tighten(case, window, sent))
        name = f"{self._subject.exchange}-{self._k + 1}"
        footing = await self._rescues.ladder.climb(case, "overflow", self._reach.commit, name)
        if footing.epoch is None or footing.tokens >= case.tokens:
            return None
        case.context.choose(case.view, self._subject, footing.epoch.id)
        plan = self._make_plan(case, footing.rung, footing.tokens, "refused as too long")
        plan = msgspec.structs.replace(plan, epoch=footing.epoch.id)
        self._reach.tell(list_labels(plan, footing.epoch, is_opened=True))
        return self._keep(footing.body, plan)

    async def _look_at_sent(self) -> RequestState:
        """How the request stands that was refused, under the epoch that it was sent under."""
        subject, lookout, plan = self._subject, self._rescues.lookout, self._plan
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

    def _tighten(self, case: RequestState, window: int | None, sent: int) -> Budget:
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
        body = split_body(self._body, self._subject.items_key)
        if fitting is None or body is None:
            return None
        content = rendering.lower_output(body, fitting)
        if content == self._body:
            return None
        known = self._plan
        reason = f"max_tokens lowered from {asked} to {fitting}, which is what the window leaves"
        plan = Plan(
            self._subject.exchange,
            self._k + 1,
            self._subject.model,
            known.rung if known is not None else "original",
            known.epoch if known is not None else "",
            reason=reason,
        )
        return self._keep(content, plan)

    def _keep(self, content: bytes, plan: Plan) -> Retry:
        self._k = plan.k
        is_own = content == self._subject.split.content
        manifest = None if is_own else self._rescues.lookout.memory.sent.keep(self._subject, content)
        first = Round(self._subject.exchange, plan.k, self._subject.session.upstream, manifest)
        return Retry(content, first, plan)
