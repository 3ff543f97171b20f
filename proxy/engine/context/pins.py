"""Pins that requests ask for by header: the newest message then stays in every rendering."""

from proxy.engine.context.request_state import StateReader
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import Pin
from proxy.model.exchange import Headers

# The share of a budget that all pins together may take.
_PINNED_SHARE = 0.1


async def take_pin(request: ManagedRequest, states: StateReader) -> tuple[Pin | None, Headers]:
    """Pin the newest message if the request asks for it. Return the pin, or labels that say why it was refused."""
    if not request.is_pinning:
        return None, ()
    if not request.nodes:
        return None, refuse_pin(request, "there is no message")
    states.caches.forget_lost()
    context = await states.caches.contexts.open(request, request.until - states.clock.monotonic())
    newest, places = len(request.nodes) - 1, context.list_pinned(request.nodes)
    if newest in places:
        return None, ()
    history = await states.caches.histories.follow(request)
    tokens = sum(history.count(place, place + 1) for place in (*places, newest))
    usable, ratio = states.find_budget(request).usable, states.find_ratio(request)
    if problem := find_pin_objection(ratio.apply(tokens), ratio.apply(usable)):
        return None, refuse_pin(request, problem)
    pin = Pin(request.session.id, request.nodes[newest], is_on=True, at_ms=states.clock.now_ms())
    context.pin(pin)
    return pin, ()


def find_pin_objection(tokens: int, usable: int) -> str:
    """Return why pins with `tokens` in total are refused, or an empty string if they are accepted."""
    most = int(_PINNED_SHARE * usable)
    if tokens <= most:
        return ""
    return (
        f"pins may have {most} tokens together in a conversation, {_PINNED_SHARE:g} of its budget; "
        f"these would have {tokens}"
    )


def refuse_pin(request: ManagedRequest, reason: str) -> Headers:
    """Return labels for a refused pin, or none if the request asks for no pin."""
    if not request.is_pinning:
        return ()
    return ((b"x-palimpsest-notice", f"not pinned: {reason}".encode("ascii", "replace")),)
