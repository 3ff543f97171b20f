"""The contexts of sessions in memory, a cache of the log. Rule: bounded; what is not here is asked for, once."""

import asyncio
from collections import OrderedDict

from proxy.engine.context.context import Context
from proxy.engine.context.subject import Subject
from proxy.engine.ports import Archive
from proxy.model.epoch import Epoch
from proxy.model.errors import NotFound, StoreUnavailable
from proxy.model.summary import Summary

# For so long the log is waited for in any case, also where a call has waited for something else before.
_LOAD_SECONDS = 0.25

# Stands for all sessions of which the log knows nothing to load; it is never written to.
_BLANK = Context()
_BLANK_WEIGHT = _BLANK.weight


class Contexts:
    """The contexts used last, the least recently used dropped above `most_bytes`; of one alone, its oldest epochs."""

    def __init__(self, archive: Archive, most_bytes: int) -> None:
        self._archive = archive
        self._most = most_bytes
        self._weight = 0
        self._weights: dict[str, int] = {}
        self._contexts: OrderedDict[str, Context] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly; of each context as it was when it was last asked for."""
        return self._weight

    def get(self, session: str) -> Context | None:
        """The context in memory; None where there is nothing in it."""
        context = self._contexts.get(session)
        return None if context is _BLANK else context

    def is_blank(self, subject: Subject) -> bool:
        """Whether nothing was ever managed in a request's session, as far as memory tells."""
        session = subject.session.id
        context = self._contexts.get(session)
        if context is None:
            if not subject.is_new:
                return False
            context = self._contexts[session] = _BLANK
            self._weights[session] = _BLANK_WEIGHT
            self._weight += _BLANK_WEIGHT
            if self._weight > self._most:
                self._shrink()
        return context is _BLANK

    async def open(self, subject: Subject, seconds: float = 0.0) -> Context:
        """The context of a request's session. Asks the log for one that memory does not know, for so long at most, or
        a little longer.
        """
        session = subject.session.id
        context = self._enter(session)
        if subject.is_new:
            context.is_known = True
        if not context.is_known:
            try:
                async with asyncio.timeout(max(seconds, _LOAD_SECONDS)):
                    await self._load(session, context)
            except (StoreUnavailable, TimeoutError):
                return context  # asked again with the next request; this one is sent as its own bytes tell
            await self._load_reach(context)
        return context

    async def load(self, session: str) -> Context:
        """The context of a session that a person names. Raises StoreUnavailable."""
        context = self._enter(session)
        if not context.is_known:
            await self._load(session, context)
            await self._load_reach(context)
        return context

    def add(self, session: str, epoch: Epoch, reach: int | None = None) -> None:
        """An epoch of a session holds from now on; `reach` is as a context has it."""
        context = self._enter(session)
        context.add(epoch, reach)
        self._settle(session, context)

    def add_summary(self, summary: Summary) -> None:
        """A summary of a session is in the log."""
        context = self._enter(summary.session)
        context.add_summary(summary)
        self._settle(summary.session, context)

    def clear(self) -> None:
        """Forget everything: the log has lost a record."""
        self._contexts.clear()
        self._weights.clear()
        self._weight = 0

    def _enter(self, session: str) -> Context:
        """The context in memory, made if it is not there; now the most recently used."""
        context = self._contexts.get(session)
        if context is None or context is _BLANK:
            is_known = context is _BLANK
            context = self._contexts[session] = Context()
            context.is_known = is_known
        self._contexts.move_to_end(session)
        self._settle(session, context)
        return context

    async def _load(self, session: str, context: Context) -> None:
        stored = await self._archive.load_context(session)
        if not context.is_known:  # else another request has waited for the same
            context.absorb(stored)
        if self._contexts.get(session) is context:
            self._settle(session, context)

    async def _load_reach(self, context: Context) -> None:
        """How far the requests went that epochs were opened for, for a bounded time: it is good to know, no more."""
        opened = {epoch.exchange: epoch.id for epoch in context.epochs if epoch.exchange}
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                for session in {epoch.session for epoch in context.epochs if epoch.exchange}:
                    branches = await self._archive.list_branches(session)
                    for call in [call for branch in branches for call in branch.own if call.exchange in opened]:
                        context.reaches.note(opened[call.exchange], call.depth)
        except (StoreUnavailable, NotFound, TimeoutError):
            pass  # what can be told of the epochs themselves has to do

    def _settle(self, session: str, context: Context) -> None:
        """Reckon with what a context weighs now: it has grown since it was last asked for."""
        self._reckon(session, context)
        self._shrink()
        while self._weight > self._most and context.drop_oldest():
            self._reckon(session, context)

    def _shrink(self) -> None:
        while self._weight > self._most and len(self._contexts) > 1:
            dropped, _ = self._contexts.popitem(last=False)
            self._weight -= self._weights.pop(dropped)

    def _reckon(self, session: str, context: Context) -> None:
        weight = context.weight
        self._weight += weight - self._weights.get(session, 0)
        self._weights[session] = weight
