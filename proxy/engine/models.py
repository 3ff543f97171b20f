"""What is known of the models that calls go to, and how much may be sent to them.

Rule: looking up never waits. What there is to find out is found out beside the calls, and where that fails nothing is
known, which is no error.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from proxy.context.budget import Budget, BudgetPolicy, make_budget
from proxy.engine.counting import Counting
from proxy.engine.ports import Catalog, Clock, Upstream
from proxy.model.card import Card, LimitKey
from proxy.model.errors import ProxyError
from proxy.model.exchange import Headers
from proxy.wire.credentials import is_of_plan
from proxy.wire.encoding import decode_content
from proxy.wire.headers import find, keep_for_asking

_LISTING = b"/v1/models"
_ASK_AGAIN_SECONDS = 3600.0
_PATIENCE_SECONDS = 5.0
_MOST_BYTES = 8 * 1024 * 1024
_LISTED = 200
# Finding a card takes 50 µs, a budget 10; what was learned too long ago to be believed goes so much later.
_CARD_SECONDS = 2.0
_MOST_CARDS = 1024
_UNKNOWN = Card()

_log = logging.getLogger("palimpsest.models")

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Models:
    """Cards, budgets and counts. `count` counts the tokens of messages."""

    def __init__(self, catalog: Catalog, counting: Counting, policy: BudgetPolicy, clock: Clock, spawn: Spawn) -> None:
        self.count = counting
        self._catalog = catalog
        self._policy = policy
        self._clock = clock
        self._spawn = spawn
        self._asked: dict[str, float] = {}
        self._cards: dict[LimitKey, tuple[Card, float]] = {}
        self._budgets: dict[tuple[LimitKey, int | None, int | None], tuple[Budget, float]] = {}

    async def open(self) -> None:
        """Read what comes with the installation."""
        await self._catalog.open()
        self._forget()

    def card(self, upstream: str, model: str, *, beta: str = "", tenant: bytes = b"") -> Card:
        """What is known of a model now; limits as they were learned for these beta headers and this tenant."""
        key, now = LimitKey(upstream, model, beta, tenant), self._clock.monotonic()
        card, until = self._cards.get(key, (_UNKNOWN, now))
        if now < until:
            return card
        card = self._catalog.find(key)
        if len(self._cards) >= _MOST_CARDS:
            self._cards.clear()
        self._cards[key] = (card, now + _CARD_SECONDS)
        return card

    def budget(self, key: LimitKey, asked_output: int | None = None, ceiling: int | None = None) -> Budget:
        """How much a request may send; a `ceiling` of its own takes the place of the configured one."""
        asked, now = (key, asked_output, ceiling), self._clock.monotonic()
        known = self._budgets.get(asked)
        if known is not None and now < known[1]:
            return known[0]
        card = self.card(key.upstream, key.model, beta=key.beta, tenant=key.tenant)
        policy = self._policy if ceiling is None else replace(self._policy, ceiling_tokens=ceiling)
        budget = make_budget(card.window, card.output, asked_output, policy)
        if len(self._budgets) >= _MOST_CARDS:
            self._budgets.clear()
        self._budgets[asked] = (budget, now + _CARD_SECONDS)
        return budget

    def note_limit(self, key: LimitKey, window: int, sent: int) -> None:
        """Take in the window that an upstream named when it refused `sent` tokens."""
        self._catalog.note_limit(key, window, sent)
        self._forget()

    def ask(self, upstream: Upstream, headers: Headers) -> None:
        """Have an upstream asked for its models with the credential of a call, at most once an hour."""
        now = self._clock.monotonic()
        if now - self._asked.get(upstream.name, -_ASK_AGAIN_SECONDS) < _ASK_AGAIN_SECONDS:
            return
        if is_of_plan(headers):
            return  # nothing is asked with it that its owner did not ask (BEHAVIOUR B31)
        self._asked[upstream.name] = now
        self._spawn(self._ask(upstream, keep_for_asking(headers)))

    def _forget(self) -> None:
        """Something new is known."""
        self._cards.clear()
        self._budgets.clear()

    async def _ask(self, upstream: Upstream, headers: Headers) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                content = await _fetch(upstream, headers)
        except (ProxyError, ValueError, TimeoutError) as error:
            _log.debug("the upstream %s does not list its models: %s", upstream.name, error)
            return
        await asyncio.to_thread(self._catalog.note_listing, upstream.name, content)
        self._forget()


async def _fetch(upstream: Upstream, headers: Headers) -> bytes:
    """The upstream's list of models. Raises ValueError where it gives none."""
    answer = await upstream.send("GET", _LISTING, headers, b"")
    try:
        content = bytearray()
        while piece := await answer.read():
            content += piece
            if len(content) > _MOST_BYTES:
                raise ValueError("its list is too long")
        if answer.status != _LISTED:
            raise ValueError(f"status {answer.status}")
        encoding = find(answer.headers, b"content-encoding").decode("latin-1")
        return decode_content(bytes(content), encoding, _MOST_BYTES)
    finally:
        answer.close()
