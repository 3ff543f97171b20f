"""How each session is managed: its epochs, its pins, its accounts.

Rule (BEHAVIOUR B3, B4): there is no head of a session; an epoch holds for every request of its view whose chain has the
node it was made for, and of those that hold the newest counts. Memory is a cache of the log.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from proxy.context.account import Account, restore_account
from proxy.context.budget import Budget
from proxy.engine.managing.opening import Draft
from proxy.engine.managing.subject import Subject
from proxy.engine.ports import Archive
from proxy.model.epoch import Epoch, Pin, StoredContext
from proxy.model.errors import StoreUnavailable

_LOAD_SECONDS = 0.25
_MOST_CHOSEN = 256
_CONTEXT_WEIGHT = 2000
_NOTHING = StoredContext()


class Context:
    """What holds in one session. `is_known`: the log has said all it knows of it.

    `sizes` are the tokens of epochs' rendered messages by id, `protected` what the last plan of a view had to leave,
    `paths` the nodes of the last request that an account was charged with.
    One epoch opens at a time: whoever waited for `opening` looks first whether there is a new one.
    """

    __slots__ = (
        "_accounts",
        "_chosen",
        "_epochs",
        "_late",
        "_owed",
        "_pins",
        "is_known",
        "opening",
        "paths",
        "protected",
        "sizes",
        "unreachable",
        "weight",
    )

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []
        self._pins: dict[bytes, bool] = {}
        self._chosen: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._accounts: dict[tuple[str, str], Account] = {}
        self._owed: dict[str, float] = {}
        self._late: tuple[Subject, asyncio.Future[Draft]] | None = None
        self.sizes: dict[str, int] = {}
        self.unreachable: dict[str, int] = {}
        self.protected: dict[str, int] = {}
        self.paths: dict[tuple[str, str], Sequence[bytes]] = {}
        self.opening = asyncio.Lock()
        self.is_known = False
        self.weight = _CONTEXT_WEIGHT

    @property
    def is_drafting(self) -> bool:
        """Whether a plan that came too late for its request is still being made."""
        return self._late is not None and not self._late[1].done()

    def note_late(self, subject: Subject, drafting: "asyncio.Future[Draft]") -> None:
        """A plan is still being made: the next request may have it."""
        self._late = (subject, drafting)

    def take_late(self, subject: Subject) -> Draft | None:
        """The plan that came too late for an earlier request, where this one goes on from that. Raises as it did."""
        if self._late is None or not self._late[1].done():
            return None
        (asked, drafting), self._late = self._late, None
        draft, nodes = drafting.result(), subject.nodes
        through = draft.plan.through
        if asked.model != subject.model or len(nodes) < through:
            return None
        return draft if through and nodes[through - 1] == asked.nodes[through - 1] else None

    @property
    def epochs(self) -> Sequence[Epoch]:
        """All, the oldest first."""
        return self._epochs

    def absorb(self, stored: StoredContext) -> None:
        """Take what the log knows."""
        self.is_known = True
        known = {epoch.id for epoch in self._epochs}
        later = self._epochs
        self._epochs = []
        for epoch in [*(each for each in stored.epochs if each.id not in known), *later]:
            self.add(epoch)
        self._pins = {pin.node: pin.is_on for pin in stored.pins} | self._pins
        self._owed = dict(stored.owed) | self._owed

    def add(self, epoch: Epoch) -> None:
        """An epoch holds from now on."""
        self._epochs.append(epoch)
        self.weight += sum(map(len, epoch.rendered)) + len(epoch.edits)

    def pin(self, pin: Pin) -> None:
        """A message stays, or need not any more."""
        self._pins[pin.node] = pin.is_on

    def list_pinned(self, nodes: Sequence[bytes]) -> frozenset[int]:
        """The places of a chain that are pinned."""
        if not any(self._pins.values()):
            return frozenset()
        return frozenset(place for place, node in enumerate(nodes) if self._pins.get(node))

    def read_account(self, view: str, epoch: str, budget: Budget) -> Account:
        """The account of a view under an epoch, empty for none; what the log tells of it where memory does not."""
        account = self._accounts.get((view, epoch))
        if account is None:
            account = self._accounts[view, epoch] = restore_account(
                self._trace(epoch), self._owed.pop(view, 0.0), budget
            )
        return account

    def write_account(self, view: str, epoch: str, account: Account) -> None:
        """An account stands so from now on."""
        self._accounts[view, epoch] = account

    def get_epoch(self, epoch: str) -> Epoch | None:
        """The epoch with this id."""
        return next((each for each in reversed(self._epochs) if each.id == epoch), None)

    def _trace(self, epoch: str) -> list[Epoch]:
        """An epoch and those before it on its path, the oldest first."""
        traced: list[Epoch] = []
        found = self.get_epoch(epoch)
        while found is not None and found not in traced:
            traced.insert(0, found)
            found = self.get_epoch(found.parent)
        return traced

    def find(self, view: str, subject: Subject) -> Epoch | None:
        """The epoch that holds for a request: the one this very history was sent under before, else the newest."""
        nodes = subject.nodes
        holding = [epoch for epoch in self._epochs if epoch.view == view and _is_on_path(epoch, nodes)]
        if not holding:
            return None
        chosen = self._chosen.get((view, subject.tip))
        return next((epoch for epoch in holding if epoch.id == chosen), holding[-1])

    def choose(self, view: str, subject: Subject, epoch: str) -> None:
        """Send this history under the same epoch whenever it is sent again (BEHAVIOUR B5)."""
        self._chosen[view, subject.tip] = epoch
        self._chosen.move_to_end((view, subject.tip))
        if len(self._chosen) > _MOST_CHOSEN:
            self._chosen.popitem(last=False)


def _is_on_path(epoch: Epoch, nodes: Sequence[bytes]) -> bool:
    return not epoch.depth or (epoch.depth <= len(nodes) and nodes[epoch.depth - 1] == epoch.through)


class Contexts:
    """The contexts used last, the least recently used dropped above `most_bytes`."""

    def __init__(self, archive: Archive, most_bytes: int) -> None:
        self._archive = archive
        self._most = most_bytes
        self._contexts: OrderedDict[str, Context] = OrderedDict()

    def get(self, session: str) -> Context | None:
        """The context in memory."""
        return self._contexts.get(session)

    async def open(self, subject: Subject) -> Context:
        """The context of a request's session. Asks the log for one that memory does not have, once."""
        context = self._contexts.get(subject.session.id)
        if context is None:
            context = self._contexts[subject.session.id] = Context()
            context.is_known = subject.is_new
        self._contexts.move_to_end(subject.session.id)
        if not context.is_known:
            await self._load(subject.session.id, context)
        return context

    async def load(self, session: str) -> Context:
        """The context of a session that a person names. Raises StoreUnavailable."""
        context = self._contexts.get(session)
        if context is None or not context.is_known:
            context = self._contexts.setdefault(session, Context())
            context.absorb(await self._archive.load_context(session))
        return context

    def shrink(self) -> None:
        """Drop what was used least recently, as far as it is too much."""
        weight = sum(context.weight for context in self._contexts.values())
        while weight > self._most and len(self._contexts) > 1:
            weight -= self._contexts.popitem(last=False)[1].weight

    def clear(self) -> None:
        """Forget everything: the log has lost a record."""
        self._contexts.clear()

    async def _load(self, session: str, context: Context) -> None:
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                context.absorb(await self._archive.load_context(session))
        except (StoreUnavailable, TimeoutError):
            return  # asked again with the next request; this one is sent as its own bytes tell
