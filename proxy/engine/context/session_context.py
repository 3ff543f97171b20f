"""An in-memory cache of the log for managed sessions: their epochs, pins, accounts and summaries."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from proxy.context.budget import Budget
from proxy.context.compaction.spans import is_worth_sending, list_live_summaries
from proxy.context.conversation import LiveSummary, PlanInputs
from proxy.context.epoch_decision import restore_account
from proxy.engine.context.epoch_planner import DraftedPlan, RenderedPlan
from proxy.engine.context.epoch_scope import (
    ClearedOutputDetector,
    EpochAccount,
    EpochReaches,
    ReasoningOrigins,
    weigh_epoch,
)
from proxy.engine.context.tool_offers import RecalledAnswers
from proxy.engine.ports import MOST_NOTED, Archive
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import ClearedContext, Epoch, EpochUse, Pin, SourceNote, StoredContext, Summary
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.log import weigh_record
from proxy.wire.identity import Item

_MOST_CHOSEN = 256
_MOST_ACCOUNTS = 64
_CONTEXT_WEIGHT = 800
_ACCOUNT_WEIGHT = 450
_CHOSEN_WEIGHT = 350
_NODE_WEIGHT = 60
_ITEM_WEIGHT = 250

_log = logging.getLogger("palimpsest.context")

# The least number of seconds to wait for the log, even if the call has used up its waiting time.
LOAD_SECONDS = 0.25


def _look_at_error(drafting: "asyncio.Future[RenderedPlan]") -> None:
    """Retrieve the error of a plan that nobody may need, so that asyncio does not log it."""
    if not drafting.cancelled():
        drafting.exception()


class SourceNotes:
    """The kinds of prompt sources that requests told of their newest messages, by node; the newest `MOST_NOTED`."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def note(self, note: SourceNote) -> None:
        """Add what a request told, in place of what an earlier one told of the same message."""
        self._kinds[note.node] = note.kind
        self._kinds.move_to_end(note.node)
        while len(self._kinds) > MOST_NOTED:
            self._kinds.popitem(last=False)

    def absorb(self, stored: Iterable[SourceNote]) -> None:
        """Add what the log has, which is older than what is here."""
        later, self._kinds = self._kinds, OrderedDict()
        for note in stored:
            self.note(note)
        self._kinds |= later


class SessionContext:
    """The context of one session.

    One epoch opens at a time: a request that waited for `opening` first checks whether there is a new epoch.
    """

    __slots__ = (
        "_accounts",
        "_chosen",
        "_covered",
        "_drafted",
        "_epochs",
        "_epochs_weight",
        "_opening",
        "_owed",
        "_pins",
        "_summaries",
        "alternating",
        "cleared",
        "given_up",
        "is_known",
        "protected",
        "reaches",
        "reasoning",
        "recalled",
        "reported",
        "sizes",
        "sources",
        "unsent",
        "unshortened",
    )

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}
        self._epochs_weight = 0
        self._pins: dict[bytes, bool] = {}
        self._chosen: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._covered = ClearedOutputDetector()
        self._accounts: OrderedDict[tuple[str, str], EpochAccount] = OrderedDict()
        self._owed: dict[tuple[str, str], float] = {}
        self._drafted: DraftedPlan | None = None
        self._opening: asyncio.Lock | None = None
        self._summaries: dict[str, Summary] = {}
        self.recalled = RecalledAnswers()
        self.sources = SourceNotes()
        self.given_up: set[str] = set()  # views that went on without the provider's own compaction
        self.alternating: dict[str, int] = {}  # when an upstream was found to refuse two messages of a role, by view
        self.reasoning = ReasoningOrigins()
        self.reaches = EpochReaches()
        self.sizes: dict[str, int] = {}  # tokens of an epoch's rendered messages, in our count, by epoch id
        self.cleared: dict[str, ClearedContext] = {}  # what an epoch does not send, by its id; counted when asked for
        self.protected: dict[str, int] = {}  # tokens that the last plan of a view had to keep
        self.reported: set[str] = set()  # views for which CeilingUnreachable was published
        # Tokens and last node of a view's request that no plan made shorter.
        self.unshortened: dict[str, tuple[int, bytes]] = {}
        self.unsent: set[str] = set()  # epochs that were opened outside of calls, and not sent yet
        self.is_known = False  # all that the log has of this session was loaded

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        nodes = sum([len(account.before or ()) for account in self._accounts.values()])
        nodes += len(self._pins) + len(self.sources)
        drafted = self._drafted.weight if self._drafted is not None else 0
        noted = _CHOSEN_WEIGHT * len(self._chosen) + _NODE_WEIGHT * nodes + _ACCOUNT_WEIGHT * len(self._accounts)
        covered, summaries = _ITEM_WEIGHT * len(self._covered), sum(map(weigh_record, self._summaries.values()))
        own = _CONTEXT_WEIGHT + self._epochs_weight + self.reasoning.weight
        return own + noted + drafted + covered + summaries + self.recalled.weight

    @property
    def opening(self) -> asyncio.Lock:
        """The lock that is held while an epoch is opened."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        return self._opening

    @property
    def epochs(self) -> Sequence[Epoch]:
        """All epochs, the oldest first."""
        return list(self._epochs.values())

    @property
    def drafting(self) -> "asyncio.Future[RenderedPlan] | None":
        """The plan that is still being made, or None."""
        drafted = self._drafted
        return drafted.drafting if drafted is not None and not drafted.drafting.done() else None

    def note_drafted(self, drafted: DraftedPlan) -> None:
        """Keep a plan for later requests, made or not, in place of the one before it, which is no longer made."""
        drafted.drafting.add_done_callback(_look_at_error)
        if self._drafted is not None:
            self._drafted.drafting.cancel()
        self._drafted = drafted

    def forget_drafted(self) -> None:
        """Drop the plan that is kept: it is used, or was found to be invalid."""
        self._drafted = None

    def is_draft_due(
        self, request: ManagedRequest, epoch: Epoch | None, inputs: PlanInputs, *, is_unpaid: bool = False
    ) -> bool:
        """Return whether a plan is to be made ahead: no call waits for one, and the one that is kept is not as good.

        `is_unpaid`: the one that is kept shows that an epoch does not pay.
        """
        is_opening = self._opening is not None and self._opening.locked()
        return not is_opening and (self._drafted is None or not self._drafted.lasts(request, epoch, inputs, is_unpaid))

    def find_drafted(self, request: ManagedRequest, epoch: Epoch | None) -> DraftedPlan | None:
        """Return the plan that is kept if it is ready, and was made for a request under `epoch` that this continues."""
        drafted = self._drafted
        return drafted if drafted is not None and drafted.serves(request, epoch) else None

    def absorb(self, stored: StoredContext) -> None:
        """Merge what the log has with what happened before it was loaded."""
        self.is_known = True
        later, self._epochs, self._epochs_weight = self._epochs, {}, 0
        known = later.keys()
        for epoch in [*(each for each in stored.epochs if each.id not in known), *later.values()]:
            self.add(epoch)
        self._pins = {pin.node: pin.is_on for pin in stored.pins} | self._pins
        self._summaries = {each.id: each for each in stored.summaries} | self._summaries
        self.unsent |= set(stored.unsent) - known
        self.given_up.update(stored.given_up)
        self.recalled.absorb(stored.recalled)
        self.sources.absorb(stored.sources)
        newest = {epoch.view: epoch.id for epoch in stored.epochs}
        for view, owed in stored.owed:
            self._restore_owed(view, newest.get(view, ""), owed)

    def _restore_owed(self, view: str, epoch: str, owed: float) -> None:
        """Restore the amount owed, which the log attributes to the newest epoch of the view."""
        account = self._accounts.get((view, epoch))
        if account is None:
            self._owed[view, epoch] = owed
        else:
            account.account = replace(account.account, owed=account.account.owed + owed)

    def add(self, epoch: Epoch, reach: int | None = None) -> None:
        """Add an epoch. A reversion also applies to histories that were sent under the epochs it reverts.

        `reach` is the number of messages of the request for which it is opened, or None if unknown.
        """
        self._epochs[epoch.id] = epoch
        self.reaches.note(epoch.id, reach)
        self._epochs_weight += weigh_epoch(epoch)
        self.reasoning.add(epoch)
        if epoch.why == "uncompacted":
            self.given_up.add(epoch.view)
        if epoch.why == "alternating":
            self.alternating[epoch.view] = epoch.opened_ms
        if epoch.why == "untooled":
            self.recalled.note_refusal(epoch.view, epoch.opened_ms)
        if epoch.is_reversion:
            undone = {each.id for each in self.trace(epoch.parent)}
            for key in [key for key, chosen in self._chosen.items() if chosen in undone]:
                del self._chosen[key]

    @property
    def pinned(self) -> frozenset[bytes]:
        """The nodes of all messages that are pinned."""
        return frozenset(node for node, is_on in self._pins.items() if is_on)

    def drop_oldest(self) -> bool:
        """Forget the oldest epoch if there is a newer one. Return whether one was forgotten."""
        if len(self._epochs) < 2:
            return False
        epoch = self._epochs.pop(next(iter(self._epochs)))
        self._epochs_weight -= weigh_epoch(epoch)
        self.sizes.pop(epoch.id, None)
        self.cleared.pop(epoch.id, None)
        self.reaches.forget(epoch.id)
        return True

    def pin(self, pin: Pin) -> None:
        """Pin a message, or unpin it."""
        self._pins[pin.node] = pin.is_on

    def list_pinned(self, nodes: Sequence[bytes]) -> frozenset[int]:
        """Return the indexes of a chain's messages that are pinned."""
        if not any(self._pins.values()):
            return frozenset()
        return frozenset(place for place, node in enumerate(nodes) if self._pins.get(node))

    def add_summary(self, summary: Summary) -> None:
        """Add a summary that is in the log."""
        self._summaries[summary.id] = summary

    def get_summary(self, id: str) -> Summary | None:
        """Return the summary with this id, or None if it is not in memory."""
        return self._summaries.get(id)

    def list_summaries(self, nodes: Sequence[bytes], view: str) -> list[Summary]:
        """Return the summaries of messages of a chain that are shown now, in their order.

        A provider's own compaction is one only for the model that made it, and until its view went on without one.
        """
        compacting = "" if view in self.given_up else view
        covering = [each for each in self._summaries.values() if is_in_chain(each, nodes)]
        return list_live_summaries([each for each in covering if not each.block or each.model == compacting])

    def list_reports(self, nodes: Sequence[bytes], view: str) -> list[LiveSummary]:
        """Return the summaries of a chain that a plan may show."""
        shown = filter(is_worth_sending, self.list_summaries(nodes, view))
        return [LiveSummary(each.id, each.text, each.start, each.stop, each.tokens, each.block) for each in shown]

    def get_account(self, view: str, epoch: str, budget: Budget, *, is_kept: bool = True) -> EpochAccount:
        """Return the account of a view under an epoch ("" for none); restored from the log, and kept if told to."""
        account = self._accounts.get(key := (view, epoch))
        if account is None:
            account = EpochAccount(restore_account(self.trace(epoch), self._owed.get(key, 0.0), budget))
        if is_kept:
            self._owed.pop(key, None)
            self._accounts[key] = account
            self._accounts.move_to_end(key)
            self._drop_oldest_account()
        return account

    def _drop_oldest_account(self) -> None:
        """Drop the least recently used account above the limit: a client may send any number of model names."""
        if len(self._accounts) > _MOST_ACCOUNTS:
            (view, _), _ = self._accounts.popitem(last=False)
            if not any(named == view for named, _ in self._accounts):
                self.protected.pop(view, None)
                self.reported.discard(view)
                self.unshortened.pop(view, None)

    def get_epoch(self, epoch: str) -> Epoch | None:
        """Return the epoch with this id."""
        return self._epochs.get(epoch)

    def find(self, view: str, request: ManagedRequest, *, is_next: bool = False) -> Epoch | None:
        """Return the epoch that applies to a request: the one this very history was sent under before, else the newest.

        Return None also if it was sent under none. If `is_next`, return the one that will apply to the next request.
        """
        if not self._epochs:
            return None
        chosen = None if is_next else self._chosen.get((view, request.chain.tip))
        if chosen == "":
            return None
        nodes = request.nodes
        known = self.epochs
        covering = [epoch for epoch in known if epoch.view == view and self._is_in_chain(epoch, nodes)]
        if not covering:
            covering = [each for each in known if each.view == view and self._covered.is_cleared(each, request)]
        sent = next((epoch for epoch in covering if epoch.id == chosen), None)
        return sent or self.reaches.choose(covering, known, request)

    def cover(self, epoch: Epoch, items: Sequence[Item]) -> None:
        """Remember the messages that an epoch replaces, to recognise them after the client has cleared outputs."""
        self._covered.note(epoch, items)

    def was_sent(self, view: str, request: ManagedRequest) -> bool:
        """Return whether this very history was sent before, as far as memory has it."""
        return (view, request.chain.tip) in self._chosen

    def choose(self, view: str, request: ManagedRequest, epoch: str) -> None:
        """Send this history under the same epoch whenever it is sent again."""
        self.unsent.discard(epoch)
        self.reasoning.note(EpochUse(view, request.chain.tip, epoch))
        self._chosen[view, request.chain.tip] = epoch
        self._chosen.move_to_end((view, request.chain.tip))
        if len(self._chosen) > _MOST_CHOSEN:
            self._chosen.popitem(last=False)

    def find_newest(self, epoch: str) -> Epoch | None:
        """Return the newest epoch that descends from this one, or itself, or None if it is unknown."""
        return next((each for each in reversed(self.epochs) if any(e.id == epoch for e in self.trace(each.id))), None)

    def sum_cut(self, epoch: str) -> int:
        """Return how many tokens an epoch and its ancestors remove from the client's request."""
        return sum(each.tokens_before - each.tokens_after for each in self.trace(epoch))

    def trace(self, epoch: str) -> list[Epoch]:
        """Return an epoch and its ancestors, the oldest first."""
        traced: dict[str, Epoch] = {}
        found = self.get_epoch(epoch)
        while found is not None and found.id not in traced:
            traced[found.id] = found
            found = self.get_epoch(found.parent)
        return list(traced.values())[::-1]

    def _is_in_chain(self, epoch: Epoch, nodes: Sequence[bytes]) -> bool:
        """Return whether an epoch belongs to a chain. A reversion belongs where the epoch that it reverts does."""
        while epoch.is_reversion and (reverted := self.get_epoch(epoch.parent)) is not None:
            epoch = reverted
        return not epoch.depth or (epoch.depth <= len(nodes) and nodes[epoch.depth - 1] == epoch.through)


def is_in_chain(summary: Summary, nodes: Sequence[bytes]) -> bool:
    """Return whether a chain has all the messages of a summary."""
    return summary.stop <= len(nodes) and nodes[summary.stop - 1] == summary.last


# Shared by all sessions for which the log has nothing to load. Never modified.
_BLANK = SessionContext()
_BLANK_WEIGHT = _BLANK.weight


class SessionContexts:
    """The contexts used last. Above `most_bytes` the least recently used are dropped, then old epochs of the last."""

    def __init__(self, archive: Archive, most_bytes: int) -> None:
        self._archive = archive
        self._most = most_bytes
        self._weight = 0
        self._weights: dict[str, int] = {}
        self._contexts: OrderedDict[str, SessionContext] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly. Each context counts with its size at its last use."""
        return self._weight

    def get(self, session: str) -> SessionContext | None:
        """Return the context in memory, or None if it is empty or missing."""
        context = self._contexts.get(session)
        return None if context is _BLANK else context

    def is_blank(self, request: ManagedRequest) -> bool:
        """Return whether memory shows that nothing was ever managed in a request's session."""
        session = request.session.id
        context = self._contexts.get(session)
        if context is None:
            if not request.is_new:
                return False
            context = self._contexts[session] = _BLANK
            self._weights[session] = _BLANK_WEIGHT
            self._weight += _BLANK_WEIGHT
            if self._weight > self._most:
                self._shrink()
        return context is _BLANK

    async def open(self, request: ManagedRequest, seconds: float = 0.0) -> SessionContext:
        """Return the context of a request's session, loaded from the log if memory does not have it.

        Loading may take `seconds`, but at least LOAD_SECONDS. A context that could not be loaded is empty.
        """
        session = request.session.id
        context = self._enter(session)
        if request.is_new:
            context.is_known = True
        if not context.is_known:
            try:
                async with asyncio.timeout(max(seconds, LOAD_SECONDS)):
                    await self._load(session, context)
            except (StoreUnavailable, TimeoutError):
                return context  # the next request tries again; this one is decided without the log
            await self._load_reach(context)
            await self._load_uses(session, context)
        return context

    def find_known(self, request: ManagedRequest) -> SessionContext | None:
        """Return the context of a request's session, or None unless memory has all that the log has of it."""
        context = self._contexts.get(request.session.id)
        if context is None or context is _BLANK or not context.is_known:
            return None
        return self._enter(request.session.id)

    async def load(self, session: str) -> SessionContext:
        """Return the context of a session that a user names. Raises StoreUnavailable."""
        context = self._enter(session)
        if not context.is_known:
            await self._load(session, context)
            await self._load_reach(context)
            await self._load_uses(session, context)
        return context

    def add(self, session: str, epoch: Epoch, reach: int | None = None) -> None:
        """Add an epoch to a session; `reach` is as in `SessionContext.add`."""
        context = self._enter(session)
        context.add(epoch, reach)
        self._settle(session, context)

    def add_summary(self, summary: Summary) -> None:
        """Add a summary, which is in the log, to its session."""
        context = self._enter(summary.session)
        context.add_summary(summary)
        self._settle(summary.session, context)

    def note_source(self, note: SourceNote) -> None:
        """Note what a request told of its newest message. A context that is not in memory finds it in the log."""
        if note.session in self._contexts:
            self._enter(note.session).sources.note(note)

    def weigh(self, session: str) -> None:
        """Update the size of a session's context that grew outside of calls, and drop what is above the limit."""
        if (context := self.get(session)) is not None:
            self._settle(session, context)

    def clear(self) -> None:
        """Forget everything, because the log has lost a record."""
        self._contexts.clear()
        self._weights.clear()
        self._weight = 0

    def _enter(self, session: str) -> SessionContext:
        """Return the context in memory, creating it if missing, and make it the most recently used."""
        context = self._contexts.get(session)
        if context is None or context is _BLANK:
            is_known = context is _BLANK
            context = self._contexts[session] = SessionContext()
            context.is_known = is_known
        self._contexts.move_to_end(session)
        self._settle(session, context)
        return context

    async def _load(self, session: str, context: SessionContext) -> None:
        stored = await self._archive.load_context(session)
        if not context.is_known:  # else another request has loaded it meanwhile
            context.absorb(stored)
        if self._contexts.get(session) is context:
            self._settle(session, context)

    async def _load_reach(self, context: SessionContext) -> None:
        """Load the reaches of a context's epochs, for a bounded time. They help, but are not needed."""
        opened = {epoch.exchange: epoch.id for epoch in context.epochs if epoch.exchange}
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                for session in {epoch.session for epoch in context.epochs if epoch.exchange}:
                    branches = await self._archive.list_branches(session)
                    for call in [call for branch in branches for call in branch.own if call.exchange in opened]:
                        context.reaches.note(opened[call.exchange], call.depth)
        except (StoreUnavailable, NotFound, TimeoutError):
            pass  # `epoch_scope.holds` has a rule for unknown reaches

    async def _load_uses(self, session: str, context: SessionContext) -> None:
        """Load under which epochs reasoning was made, for a bounded time. Without it, the reasoning is not sent."""
        if not context.reasoning.may_bind:
            return
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                context.reasoning.absorb(await self._archive.list_uses(session))
        except (StoreUnavailable, TimeoutError):
            _log.warning(
                "the log did not say which reasoning is bound to an epoch; signed reasoning is left out. See /-/ready",
                extra={"session": session},
            )

    def _settle(self, session: str, context: SessionContext) -> None:
        """Update the weight of a context, which may have grown, and drop what is above the limit."""
        self._update_weight(session, context)
        self._shrink()
        while self._weight > self._most and context.drop_oldest():
            self._update_weight(session, context)

    def _shrink(self) -> None:
        while self._weight > self._most and len(self._contexts) > 1:
            dropped, _ = self._contexts.popitem(last=False)
            self._weight -= self._weights.pop(dropped)

    def _update_weight(self, session: str, context: SessionContext) -> None:
        weight = context.weight
        self._weight += weight - self._weights.get(session, 0)
        self._weights[session] = weight
