"""What a request comes to once it is decided how it goes: charged, learned from, recorded, told."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from proxy.context.epoch_decision import CacheCostAccount, Decision, SentTokens, record_request, record_use
from proxy.context.pricing import RequestSizes, estimate_client_read, estimate_saving
from proxy.engine.boundary import attempt_now
from proxy.engine.context.fallback import Footing
from proxy.engine.context.history_cache import count_shared
from proxy.engine.context.request_state import RequestState
from proxy.engine.context.session_caches import SentBodies
from proxy.engine.models import CacheCalibrator, ExpectedUsage
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Epoch, Pin, Plan
from proxy.model.exchange import Headers
from proxy.model.manifest import Manifest

_log = logging.getLogger("palimpsest.managing")

_NONE_BORE = "an epoch was to open, and another request's or none bore"


class Sending(msgspec.Struct, frozen=True, gc=False):
    """The body of a round. `manifest` is None where it is the client's own, `plan` where nothing was to be decided.

    `labels` are response headers, `ceiling` is what the request asked for. `is_managed`: where it is refused as too
    long, something shorter may be sent in its place; `is_guarded`: that may well be, so that the head of the answer
    waits for what comes (BEHAVIOUR B20a). `pin` is of a message that is pinned with this call. Where the body depends
    on neither, `keep` gives the manifest, and `complete` a plan and labels with tokens. Each is called once and does
    not fail: `keep` when the body is on its way, `complete` when nobody waits, behind the answer at the latest.
    """

    body: bytes
    manifest: Manifest | None = None
    plan: Plan | None = None
    labels: Headers = ()
    is_managed: bool = False
    is_guarded: bool = False
    ceiling: int | None = None
    pin: Pin | None = None
    keep: Callable[[], Manifest | None] | None = None
    complete: "Callable[[], Sending] | None" = None

    def add(self, labels: Headers, pin: Pin | None = None) -> "Sending":
        """The same with more to be told, and with a pin."""
        return msgspec.structs.replace(self, labels=(*self.labels, *labels), pin=pin) if labels or pin else self


def list_labels(plan: Plan, epoch: Epoch | None, *, is_opened: bool) -> Headers:
    """What the client is told: the epoch that was applied, tokens where they were counted, and what was compacted."""
    labels: list[tuple[bytes, bytes]] = []
    if epoch is not None:
        labels.append((b"x-palimpsest-epoch", epoch.id.encode()))
    if plan.tokens_client is not None and plan.tokens_upstream is not None:
        told = f"client={plan.tokens_client}, upstream={plan.tokens_upstream}"
        labels.append((b"x-palimpsest-tokens", told.encode()))
    if epoch is not None and is_opened:
        told = f"compacted {epoch.tokens_before}->{epoch.tokens_after}"
        labels.append((b"x-palimpsest-notice", told.encode()))
    return tuple(labels)


class SentObserver(Protocol):
    """Whoever makes something of what was sent, beside the calls."""

    def note_arrival(self, subject: ManagedRequest) -> None:
        """A call has come, managed or not."""
        ...

    def note_asked(self, subject: ManagedRequest) -> None:
        """A call is managed."""
        ...

    def note_sent(self, case: RequestState, footing: Footing, decision: Decision) -> None:
        """How a request stood, and what was sent for it."""
        ...

    async def wait(self, subject: ManagedRequest) -> None:
        """Return when nothing is being made for a call's branch, or when it has waited for long enough."""
        ...


class NoObserver:
    """Nobody does."""

    def note_arrival(self, subject: ManagedRequest) -> None:
        """Nothing comes of it."""

    def note_asked(self, subject: ManagedRequest) -> None:
        """Nothing comes of it."""

    def note_sent(self, case: RequestState, footing: Footing, decision: Decision) -> None:
        """Nothing comes of it."""

    async def wait(self, subject: ManagedRequest) -> None:
        """There is nothing to wait for."""


class UsageAccounting:
    """Enters requests, one after the other."""

    def __init__(self, sent: SentBodies, lessons: CacheCalibrator, watcher: SentObserver) -> None:
        self._sent = sent
        self._lessons = lessons
        self._watcher = watcher

    def enter(self, case: RequestState, footing: Footing, decision: Decision) -> Sending:
        """What is sent, with all that there is to tell of it."""
        return replace(self.note(case, footing, decision), manifest=self.keep(case.subject, footing))

    def keep(self, subject: ManagedRequest, footing: Footing) -> Manifest | None:
        """What is sent, as the log has it; None for the client's own. Does not fail: at worst it is kept by itself."""
        if footing.rung == "original":
            return None
        depth = footing.epoch.depth if footing.epoch is not None else 0
        keep = partial(self._sent.keep, subject, footing.body, depth)
        return attempt_now(keep, _note) or self._sent.keep_apart(footing.body)

    def note(self, case: RequestState, footing: Footing, decision: Decision) -> Sending:
        """The same as `enter`, but for the manifest."""
        saving = _estimate_saving(case, footing)
        self._expect(case, footing)
        self._watcher.note_sent(case, footing, decision)
        account = _charge(case, footing)
        return self._report(case, footing, decision, account, saving)

    def _expect(self, case: RequestState, footing: Footing) -> None:
        """Learn from the answer, once it is there."""
        upstream, matching = case.subject.session.upstream, find_matching(case, footing)
        expected = case.tariff.cache.find_read(matching)
        stable = matching if footing.is_opened else None
        self._lessons.wait_for(
            case.subject.exchange, 0, ExpectedUsage(upstream, case.view, footing.tokens, expected, stable)
        )

    def _report(
        self, case: RequestState, footing: Footing, decision: Decision, account: CacheCostAccount, saving: float | None
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
        return Sending(
            footing.body,
            plan=plan,
            labels=list_labels(plan, epoch, is_opened=footing.is_opened),
            is_managed=True,
            is_guarded=case.budget.is_near_window(footing.tokens),
        )


def _note(error: Exception) -> None:
    _log.error("what is sent could not be told from what was sent before; it is kept whole", exc_info=error)


def _charge(case: RequestState, footing: Footing) -> CacheCostAccount:
    """The account of what holds, with this request."""
    standing = case.find_standing(footing.epoch)
    if case.subject.is_side:
        standing.account = record_use(standing.account, case.now)
        return standing.account
    low = case.budget.compute_low_mark(case.context.protected.get(case.view, 0))
    kept = case.path.head.tokens if footing.is_opened else case.kept
    sent = SentTokens(footing.tokens, kept=kept, at=case.now)
    account = standing.account = record_request(standing.account, sent, case.tariff, low)
    standing.before, standing.head = case.subject.nodes, case.path.head
    return account


def find_matching(case: RequestState, footing: Footing) -> int:
    """The tokens at the beginning of what is sent that were sent before."""
    if footing.is_opened:
        return case.path.head.tokens
    return min(footing.tokens, case.account.sent if case.kept is None else case.kept)


def _estimate_saving(case: RequestState, footing: Footing) -> float | None:
    """What a request saves against the client's own, as far as the cache is known; before it is answered."""
    before = case.standing.before
    if before is None:
        return None
    shared = count_shared(before, case.path.nodes)
    client_read = estimate_client_read(
        case.tariff, case.path.head.tokens + case.path.count_to(shared), case.account.compute_idle(case.now)
    )
    sent_read = case.tariff.estimate_cached(find_matching(case, footing))
    return estimate_saving(RequestSizes(case.client_tokens, footing.tokens, client_read, sent_read), case.tariff)
