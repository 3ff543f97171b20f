"""Reverting epochs and pinning messages of a managed session on a user's request.

What cannot be done raises an error. What is done is in the log before it takes effect.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.context.pricing import RevertPrice, estimate_size, quote_revert
from proxy.engine.context.client_orders import find_pin_objection
from proxy.engine.context.request_state import StateReader
from proxy.engine.context.session_context import SessionContext
from proxy.engine.durability import DurabilityWaiter
from proxy.engine.ports import Archive, Ids
from proxy.engine.recorded.conversation import MessageList, load_history
from proxy.engine.recorded.lookup import read_back
from proxy.engine.runtime import EngineBus
from proxy.model.card import LimitKey
from proxy.model.epoch import Epoch, Pin, Plan, read_view
from proxy.model.errors import Conflict, NotFound, StoreUnavailable
from proxy.model.events import EpochOpened
from proxy.model.lineage import compute_chain_root
from proxy.model.log import BranchRow, ExchangeRow, Record


class RevertDocument(msgspec.Struct, frozen=True):
    """What a change costs: `once`, with the next call that it applies to, and with `each` later one."""

    once: float
    each: float
    unit: Literal["tokens of uncached input"] = "tokens of uncached input"


class Reversion(NamedTuple):
    """A revert: the epoch that applies from then on, what it costs, and the tokens that are sent `now`, without it."""

    epoch: Epoch
    quote: RevertPrice
    now: int


class Pinned(NamedTuple):
    """A pinned message: its node, and where it was found. Where no branch has it, there is no exchange and no bytes."""

    node: bytes
    exchange: ExchangeRow | None = None
    place: int = 0
    raw: bytes = b""
    tokens: int = 0
    price: RevertDocument | None = None


class EpochAdmin:
    """Reverts epochs and pins messages. Sessions and exchanges must be in the log: the caller checks that."""

    def __init__(
        self, states: StateReader, archive: Archive, durability: DurabilityWaiter, bus: EngineBus, ids: Ids
    ) -> None:
        self._states = states
        self._archive = archive
        self._durability = durability
        self._bus = bus
        self._ids = ids
        self._clock = states.clock

    async def quote(self, session: str, n: int) -> Reversion:
        """Estimate what going back before the n-th epoch of a session would cost. Raises NotFound, Conflict."""
        reverted = await self._archive.load_epoch(session, n)
        return await self._plan_reversion(session, reverted, await self._states.caches.contexts.load(session))

    async def revert(self, session: str, n: int) -> Reversion:
        """Go back before the n-th epoch of a session, until the high mark is reached. Raises NotFound, Conflict."""
        reverted = await self._archive.load_epoch(session, n)
        context = await self._states.caches.contexts.load(session)
        async with context.opening:
            reversion = await self._plan_reversion(session, reverted, context)
            epoch = reversion.epoch
            await self._keep(epoch)
            self._states.caches.contexts.add(session, epoch)
        self._bus.publish(EpochOpened(epoch))
        return reversion

    async def pin(self, row: ExchangeRow, place: int | None, *, is_quote: bool = False) -> Pinned:
        """Pin a message of a request, given by its index after the preamble, or its newest message for None.

        With `is_quote` only what it costs is stated. Raises NotFound, and Conflict if the pins of that conversation
        would be too large together.
        """
        history = await load_history(self._archive, row)
        place = _find_place(history, place)
        context = await self._states.caches.contexts.load(row.session)
        places = context.list_pinned(history.nodes)
        counted = dict(zip(sorted({*places, place}), await self._count(history, {*places, place}), strict=True))
        if place not in places:
            if problem := find_pin_objection(sum(counted.values()), await self._find_usable(row)):
                raise Conflict(problem)
            if not is_quote:
                await self._note(context, row.session, history.nodes[place], is_on=True)
        tokens = counted[place]
        tariff = self._states.find_tariff_of((await self._archive.find_session(row.session)).upstream, row.model)
        price = RevertDocument(tariff.price_rewritten(tokens), tariff.price_repeated(tokens)) if is_quote else None
        return Pinned(history.nodes[place], row, place, history.raws[place], tokens, price)

    async def unpin(self, row: ExchangeRow, place: int | None) -> None:
        """Unpin a message, given as in `pin`. Raises NotFound."""
        history = await load_history(self._archive, row)
        await self.unpin_node(row.session, history.nodes[_find_place(history, place)])

    async def unpin_node(self, session: str, node: bytes) -> None:
        """Unpin a message, given by its node. Raises NotFound."""
        context = await self._states.caches.contexts.load(session)
        if node not in context.pinned:
            raise NotFound("this message is not pinned; GET /-/api/sessions/SESSION/pins lists those that are")
        await self._note(context, session, node, is_on=False)

    async def list_pins(self, session: str) -> list[Pinned]:
        """Return the pinned messages of a session, each from the newest branch that has it."""
        left = set((await self._states.caches.contexts.load(session)).pinned)
        found: list[Pinned] = []
        branches = await self._archive.list_branches(session) if left else ()  # slow in a long session
        for branch in reversed(branches):
            if left:
                here = await self._find_pins(session, branch, left)
                left -= {each.node for each in here}
                found += here
        return [*found, *map(Pinned, sorted(left))]

    async def _find_pins(self, session: str, branch: BranchRow, nodes: Collection[bytes]) -> list[Pinned]:
        """Return those of the nodes that the last request of a branch has."""
        try:
            (row,) = await self._archive.list_exchanges(session, max(branch.own).n - 1, 1)
            history = await load_history(self._archive, row)
        except (NotFound, ValueError):
            return []  # erased or unreadable: its pins are listed without their messages
        places = [place for place, node in enumerate(history.nodes) if node in nodes]
        tokens = await self._count(history, places)
        return [
            Pinned(history.nodes[place], row, place, history.raws[place], count)
            for place, count in zip(places, tokens, strict=True)
        ]

    async def _plan_reversion(self, session: str, reverted: Epoch, context: SessionContext) -> Reversion:
        current = context.find_newest(reverted.id) or reverted
        target = context.get_epoch(reverted.parent)
        if target is None and reverted.parent:
            raise NotFound("what stood before this epoch is not at hand any more")
        if current.why == "revert" and _sends_same(current, target):
            raise Conflict("this epoch is reverted already")
        row = await self._archive.find_session(session)
        newest, (model, _) = await self._find_newest_round(session, reverted.view), read_view(reverted.view)
        now, then = (_measure(context, newest, epoch, current) for epoch in (current, target))
        tariff = self._states.find_tariff_of(row.upstream, model)
        quote = quote_revert(now, then, self._states.models.budget(LimitKey(row.upstream, model)), tariff)
        epoch = Epoch(
            id=self._ids.next_exchange(),
            session=session,
            view=reverted.view,
            parent=current.id,
            through=compute_chain_root(row.upstream) if target is None else target.through,
            depth=0 if target is None else target.depth,
            why="revert",
            exchange="",
            opened_ms=self._clock.now_ms(),
            tokens_before=now,
            tokens_after=then,
            edits=b"[]" if target is None else target.edits,
            rendered=() if target is None else target.rendered,
            originals=() if target is None else target.originals,
            tool=b"" if target is None else target.tool,
        )
        return Reversion(epoch, quote, now)

    async def _find_newest_round(self, session: str, view: str) -> tuple[Plan, int] | None:
        """Return the newest plan of a view that has the size of a client's request, and how many tokens were sent."""
        async for row in read_back(self._archive, session):
            for each in () if row.is_side else reversed(row.rounds):
                plan = each.plan
                if plan is not None and plan.view == view and plan.tokens_client:
                    counted = each.usage.input if each.usage is not None else None
                    own = estimate_size(plan, counted) if counted else None
                    own = plan.tokens_client if own is None else own
                    return replace(plan, tokens_client=own), counted or plan.tokens_upstream or own
        return None

    async def _count(self, history: MessageList, places: Collection[int]) -> list[int]:
        """Return the model's token counts of messages, in the order of their indexes."""
        row, models = history.row, self._states.models
        counted = await models.counter.count_messages(row.model, [history.raws[place] for place in sorted(places)])
        ratio = models.counter.find_ratio((await self._archive.find_session(row.session)).upstream, row.model)
        return [ratio.apply(tokens) for tokens in counted]

    async def _find_usable(self, row: ExchangeRow) -> int:
        upstream = (await self._archive.find_session(row.session)).upstream
        return self._states.models.budget(LimitKey(upstream, row.model)).usable

    async def _note(self, context: SessionContext, session: str, node: bytes, *, is_on: bool) -> None:
        pin = Pin(session, node, is_on, self._clock.now_ms())
        await self._keep(pin)
        context.pin(pin)

    async def _keep(self, record: Record) -> None:
        if not await self._durability.confirm(self._archive.append(record)):
            raise StoreUnavailable("the log does not take it now; nothing was changed, try again")


def _measure(context: SessionContext, newest: tuple[Plan, int] | None, epoch: Epoch | None, current: Epoch) -> int:
    """Return the tokens of a request as long as the newest one under an epoch, or as its client made it for None."""
    if newest is None:
        cut = context.sum_cut(epoch.id) if epoch is not None else 0
        return max(0, current.tokens_after + context.sum_cut(current.id) - cut)
    plan, sent = newest
    if epoch is None:
        return plan.tokens_client or sent
    return max(0, sent + context.sum_cut(plan.epoch) - context.sum_cut(epoch.id))


def _find_place(history: MessageList, place: int | None) -> int:
    count = len(history.nodes)
    found = count - 1 if place is None else place
    if not 0 <= found < count:
        raise NotFound(f"this request has {count} messages behind its preamble, counted from 0, and none at {found}")
    return found


def _sends_same(current: Epoch, target: Epoch | None) -> bool:
    """Return whether two epochs send the same. None stands for the unchanged request."""
    if target is None:
        return not current.depth
    return (current.through, current.rendered) == (target.through, target.rendered)
