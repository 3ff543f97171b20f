"""What requests ask for of their context: pins by header, and what their API's own member says is to be cleared.

A pin keeps the newest message in every rendering. Where a provider cannot clear what it is asked to,
our epochs do it, and nothing else: the trigger is a mark of the request's budget, excluded tools are protected like
those of the settings. What of the rest is not done as asked is told in words.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from proxy.context.budget import LEAST_TRIGGER
from proxy.context.verbatim import RECENT_GROUPS, estimate_reasoning
from proxy.engine.context.accounting import label_note
from proxy.engine.context.request_state import OutgoingRequest, StateReader
from proxy.engine.context.session_context import SessionContext
from proxy.engine.policy import UNKNOWN_PROVIDER, Provider
from proxy.engine.request import ManagedRequest
from proxy.model.epoch import ClearedContext, ClearingTerms, Epoch, Kept, Pin, Plan, Replaced
from proxy.model.exchange import Headers, Mode
from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, remove_member
from proxy.wire.format import Format

# The share of a budget that all pins together may take.
_PINNED_SHARE = 0.1
_STANDING_FOR = frozenset({"tombstone", "file"})


async def take_pin(request: ManagedRequest, states: StateReader) -> tuple[tuple[Pin, ...], Headers]:
    """Pin the newest message if the request asks for it. Return the pin, or labels that say why it was refused."""
    if not request.is_pinning:
        return (), ()
    if not request.nodes:
        return (), refuse_pin(request, "there is no message")
    states.caches.forget_lost()
    context = await states.caches.contexts.open(request, request.until - states.clock.monotonic())
    newest, places = len(request.nodes) - 1, context.list_pinned(request.nodes)
    if newest in places:
        return (), ()
    history = await states.caches.histories.follow(request)
    tokens = sum(history.count(place, place + 1) for place in (*places, newest))
    usable, ratio = states.find_budget(request).usable, states.find_ratio(request)
    if problem := find_pin_objection(ratio.apply(tokens), ratio.apply(usable)):
        return (), refuse_pin(request, problem)
    pin = Pin(request.session.id, request.nodes[newest], is_on=True, at_ms=states.clock.now_ms())
    context.pin(pin)
    return (pin,), ()


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


def take_clearing(request: ManagedRequest, providers: Mapping[str, Provider]) -> ManagedRequest:
    """Return a request without what it asks to be cleared, if that is our work. `providers` are by upstream name."""
    form, provider = FORMATS[request.wire], providers.get(request.upstream.name, UNKNOWN_PROVIDER)
    terms = read_clearing(form, request.split, provider, request.mode)
    if terms is None:
        return request
    return replace(request, split=remove_member(request.split, form.clearing_key), clearing=terms)


def read_clearing(form: Format, split: SplitBody, provider: Provider, mode: Mode) -> ClearingTerms | None:
    """Return what a body asks to be cleared if that is our work: it is managed, and its upstream cannot do it."""
    is_ours = not provider.edits_context and mode == "manage" and form.clearing_key in split.members
    return form.read_clearing(split) if is_ours else None


def find_cleared(states: StateReader, request: ManagedRequest, plan: Plan | None) -> ClearedContext:
    """Return what is not sent of a request's context according to the plan that it was sent under."""
    context = states.caches.contexts.get(request.session.id)
    if plan is None or context is None:
        return ClearedContext()
    epoch = context.get_epoch(plan.epoch)
    history, shared = states.caches.histories.find(request)
    structures = history.structures if history is not None and epoch is not None and shared >= epoch.depth else None
    replaced = _measure_replaced(request, context, epoch, structures) if epoch is not None else ClearedContext()
    count = FORMATS[request.wire].count_reasoning
    later = context.reasoning.find_changed(request, epoch)
    raws = request.list_raws() if later else []
    removed = [size for place, raw in later.items() if (size := count(raws[place]) - count(raw)) > 0]
    tokens = max(0, (plan.tokens_client or 0) - (plan.tokens_upstream or 0))  # both are counted, or neither
    thinking = states.find_ratio(request).apply(replaced.thinking_tokens + estimate_reasoning(sum(removed)))
    return ClearedContext(
        replaced.tool_uses,
        replaced.thinking_turns + len(removed),
        tokens,
        min(tokens, thinking),
    )


def tell_unserved(request: ManagedRequest, outgoing: OutgoingRequest) -> OutgoingRequest:
    """Tell what the request asks to be cleared otherwise than it is: in a label, and in the plan of an epoch."""
    if request.clearing is None:
        return outgoing
    told = "; ".join(_list_unserved(request.clearing, outgoing))
    if not told:
        return outgoing
    note, plan = f"{FORMATS[request.wire].clearing_key}: {told}", outgoing.plan
    if plan is not None and plan.epoch:
        plan = replace(plan, reason="; ".join(filter(None, (plan.reason, note))))
    return replace(outgoing, plan=plan).add(label_note(note))


def _list_unserved(terms: ClearingTerms, outgoing: OutgoingRequest) -> Iterator[str]:
    epoch, state = outgoing.epoch, outgoing.state
    high = state.to_model_tokens(state.budget.high) if state is not None else LEAST_TRIGGER
    if terms.trigger_uses is not None:
        yield f"trigger of {terms.trigger_uses} tool uses: tokens count"
    elif terms.trigger is not None and terms.trigger < high - 1:  # it is rounded
        yield f"trigger of {terms.trigger} tokens: taken as {high}"
    if terms.thinking and terms.thinking_turns is not None:
        yield f"keep of {terms.thinking_turns} thinking turns: reasoning goes with the steps that an epoch takes"
    if terms.unknown:
        yield f"unknown: {', '.join(repr(name[:40]) for name in terms.unknown[:8])}"
    if epoch is None or not epoch.depth:
        return
    if terms.tool_uses and terms.keep != RECENT_GROUPS:
        yield f"keep of {terms.keep} tool uses: the newest {RECENT_GROUPS} steps with calls stay, more where they fit"
    freed = epoch.tokens_before - epoch.tokens_after
    if outgoing.is_opened and freed < terms.at_least:
        yield f"clear_at_least of {terms.at_least} tokens: {freed} were cleared"
    if terms.clears_inputs:
        yield "clear_tool_inputs: the calls stay where only their results are cleared"


def _measure_replaced(
    request: ManagedRequest, context: SessionContext, epoch: Epoch, structures: Sequence[MessageStructure] | None
) -> ClearedContext:
    """Count what an epoch does not send as the client has it, without the tokens in all. It is counted once.

    `structures` are those of the request's messages, if they are known.
    """
    known = context.cleared.get(epoch.id)
    if known is not None:
        return known
    form, raws = FORMATS[request.wire], request.list_raws()[: epoch.depth]
    edits = {each.place: each for each in epoch.list_edits() if isinstance(each, Kept | Replaced)}
    if structures is None:
        structures = list(map(form.parse_structure, raws))
    uses = sum([count_cleared(each.results, edits.get(i)) for i, each in enumerate(structures[: epoch.depth])])
    had, has = list(map(form.count_reasoning, raws)), list(map(form.count_reasoning, epoch.rendered))
    turns, characters = sum(map(bool, had)) - sum(map(bool, has)), sum(had) - sum(has)
    known = ClearedContext(uses, max(0, turns), 0, estimate_reasoning(max(0, characters)))
    context.cleared[epoch.id] = known
    return known


def count_cleared(results: tuple[str, ...], edit: Kept | Replaced | None) -> int:
    """Count the results in a message that are not sent as they are, given what is sent of it."""
    if isinstance(edit, Kept) or (edit is not None and edit.kind not in _STANDING_FOR):
        return 0
    replaced = {id for id, _ in edit.arguments}.intersection(results) if edit is not None else frozenset[str]()
    return len(replaced or results)
