"""Measures the history of a request: the structure of each message, its tokens, and its faults."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from msgspec.structs import replace

from proxy.context.budget import has_reference, has_token_bound
from proxy.context.conversation import CountedMessage
from proxy.context.verbatim import find_unanswered, find_verbatim, iterate_groups
from proxy.engine.context.tool_offers import NO_RECALLED
from proxy.engine.conversations.bodies import MeasuredHistory, PromptPrefix
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import Piece, TokenCounter
from proxy.model.epoch import Recalled
from proxy.model.lineage import count_shared_nodes
from proxy.model.manifest import compute_digest
from proxy.model.messages import Medium, MessageStructure
from proxy.model.shared_list import extend_shared
from proxy.wire import FORMATS
from proxy.wire.validity import extend_history, judge_history

_MOST_MODELS = 2
# Bytes that are decoded here. More are decoded in the worker process, to not delay other calls.
_READ_HERE = 64 * 1024
_NOTHING = (b"", b"[]", b"null")


def find_kept(
    history: MeasuredHistory,
    before: Sequence[bytes] | None,
    epoch_tokens: int,
    depth: int,
    recalled: Mapping[int, Recalled] = NO_RECALLED,
) -> int | None:
    """Count the tokens at a request's beginning that were sent before. Return None if it has all of the last request.

    `before` has the nodes of the last request under the same epoch. That epoch replaces the first `depth` messages,
    whatever the client changed in them since.
    """
    if before is None:
        return None
    shared = count_shared_nodes(before, history.nodes)
    if shared == len(before):
        return None
    added = sum([each.tokens for place, each in recalled.items() if depth <= place < shared])
    return history.head.tokens + epoch_tokens + history.count(depth, max(depth, shared)) + added


def count_answered(history: MeasuredHistory, epoch_tokens: int, depth: int) -> int:
    """Count the tokens of the newest prompt that was answered, as it would be sent now; 0 if there is none.

    For its first `depth` messages `epoch_tokens` are sent.
    """
    stop = find_unanswered(history.structures)
    while stop and history.structures[stop - 1].role == "assistant":
        stop -= 1
    return history.head.tokens + epoch_tokens + history.count(depth, stop) if stop > depth else 0


def estimate_protected(history: MeasuredHistory, pinned: frozenset[int] = frozenset()) -> int:
    """Estimate the tokens that no epoch may replace: the prompt's beginning, and the messages that stay verbatim.

    `pinned` has the indexes of messages that must stay for another reason.
    """
    structures = history.structures
    verbatim = find_verbatim(
        iterate_groups(structures), find_unanswered(structures), pinned=pinned, first_acting=history.first_acting
    )
    earlier = sum(history.count(places.start, places.stop) for places in verbatim.list_earlier())
    return history.head.tokens + history.count(verbatim.tail, len(structures)) + earlier


def decode_messages(request: ManagedRequest, start: int = 0) -> list[CountedMessage]:
    """Return the messages of a request from one index on, uncounted."""
    decoded = map(FORMATS[request.wire].decode_message, request.list_raws(start))
    return [CountedMessage(each.message, each.structure, 0) for each in decoded]


class HistoryCounter:
    """Counts what is new of a request's messages. What was counted stays with the request, and with its cached body."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter

    def find(self, request: ManagedRequest) -> tuple[MeasuredHistory | None, int]:
        """Return what is known of a request's messages, and of how many of them, or (None, 0)."""
        history = request.measured.get(_name(request))
        if history is None or any(self._find_size(request, medium) is not None for _, medium in history.guessed):
            return None, 0  # or it was counted before the sizes were learned
        shared = history.count_alike(request.nodes, request.split.items, request.chain.preamble.count)
        return (history, shared) if shared else (None, 0)

    async def follow(self, request: ManagedRequest) -> MeasuredHistory:
        """Measure the history of a request. Only new messages are read and counted."""
        known, shared = self.find(request)
        head = await self._count_head(request, known)
        if known is not None and shared == len(request.nodes) == len(known.nodes):
            history = known if known.head is head else replace(known, head=head)
        else:
            structures, tokens = await self._measure(request, request.list_raws(shared))
            history = _extend(known, shared, request, structures, tokens=tokens, head=head)
            if fresh := self._list_guessed(request, shared):
                history = replace(history, guessed=(*history.guessed, *fresh))
        _keep(request, history)
        return history

    def follow_now(self, request: ManagedRequest) -> MeasuredHistory | None:
        """Return what `follow` does if only few new messages have to be counted behind a cached history, else None.

        Their tokens must also be bounded by their bytes: other messages have media, whose sizes may be learned since.
        """
        known, shared = self.find(request)
        if known is None or not is_head_of(known.head, request):
            return None
        raws = request.list_raws(shared)
        is_plain = request.chain.is_plain or all(map(has_token_bound, raws))
        if not (is_plain and self._counter.is_quick(request.model, raws)):
            return None
        structures, pieces = _decode(request.wire, raws)
        tokens = self._counter.count_now(request.model, pieces, request.session.upstream).tokens
        history = _extend(known, shared, request, structures, tokens=tokens, head=known.head)
        _keep(request, history)
        return history

    async def count_messages(self, request: ManagedRequest, raws: Sequence[bytes]) -> int:
        """Count the tokens of messages that are sent in place of others."""
        return sum(await self._count(request, [Piece(compute_digest(raw), raw) for raw in raws]))

    async def _count_head(self, request: ManagedRequest, known: MeasuredHistory | None) -> PromptPrefix:
        if known is not None and is_head_of(known.head, request):
            return known.head
        tools, orders = find_tools(request), request.chain.preamble.instructions
        pieces = [Piece(compute_digest(raw), raw) for raw in request.list_leading()]
        if orders:
            pieces.append(Piece(compute_digest(orders), orders))
        if tools:
            pieces.append(Piece(compute_digest(tools), tools, is_tools=True))
        return PromptPrefix(request.chain.preamble.system, tools, sum(await self._count(request, pieces)))

    async def _measure(
        self, request: ManagedRequest, raws: Sequence[bytes]
    ) -> tuple[list[MessageStructure], tuple[int, ...]]:
        """Return the structures of messages, and their tokens."""
        if sum(map(len, raws)) > _READ_HERE:
            return await self._counter.measure(request.wire, request.model, raws, request.session.upstream)
        structures, pieces = _decode(request.wire, raws)
        return structures, await self._count(request, pieces)

    async def _count(self, request: ManagedRequest, pieces: Sequence[Piece]) -> tuple[int, ...]:
        if not pieces:
            return ()
        return (await self._counter.count(request.model, pieces, request.session.upstream)).tokens

    def _list_guessed(self, request: ManagedRequest, start: int) -> list[tuple[int, Medium]]:
        """Return the media of messages from index `start` on whose sizes nothing has told yet."""
        if request.chain.is_plain:
            return []
        decode = FORMATS[request.wire].decode_message
        media = [
            (place, medium)
            for place, raw in enumerate(request.list_raws(start), start)
            if has_reference(raw)
            for medium in decode(raw).content.media
        ]
        return [(place, each) for place, each in media if each.reference and self._find_size(request, each) is None]

    def _find_size(self, request: ManagedRequest, medium: Medium) -> int | None:
        return self._counter.find_size(request.session.upstream, request.model, medium.reference)


def find_tools(request: ManagedRequest) -> bytes:
    """Return the raw tools of a request, empty if it has none."""
    tools = request.split.member("tools")
    return b"" if tools in _NOTHING else tools


def is_head_of(head: PromptPrefix, request: ManagedRequest) -> bool:
    """Return whether a prefix is what goes before the messages of a request."""
    return head.leading == request.chain.preamble.system and head.tools == find_tools(request)


def _name(request: ManagedRequest) -> tuple[str, str]:
    return request.session.upstream, request.model


def _keep(request: ManagedRequest, history: MeasuredHistory) -> None:
    """Keep what was measured for later requests that continue this one."""
    measured, key = request.measured, _name(request)
    measured.pop(key, None)
    measured[key] = history
    if len(measured) > _MOST_MODELS:
        del measured[next(iter(measured))]


def _decode(wire: str, raws: Sequence[bytes]) -> tuple[list[MessageStructure], list[Piece]]:
    decoded = [FORMATS[wire].decode_message(raw) for raw in raws]
    pieces = [Piece(compute_digest(raw), raw, decoded=each) for raw, each in zip(raws, decoded, strict=True)]
    return [each.structure for each in decoded], pieces


def _sum_tokens(before: int, tokens: Sequence[int]) -> list[int]:
    return list(accumulate(tokens, initial=before))[1:]


def _count_answers(structures: Iterable[MessageStructure]) -> int:
    return sum([structure.role == "assistant" for structure in structures])


def _find_acting(structures: Sequence[MessageStructure], start: int) -> int:
    """Return the index of the first message with a call or a result, if these stand behind `start` others."""
    acting = (place for place, each in enumerate(structures, start) if each.calls or each.results)
    return next(acting, start + len(structures))


def _extend(
    known: MeasuredHistory | None,
    shared: int,
    request: ManagedRequest,
    structures: list[MessageStructure],
    *,
    tokens: Sequence[int],
    head: PromptPrefix,
) -> MeasuredHistory:
    items, first = request.split.items, request.chain.preamble.count
    sums = _sum_tokens(known.count_to(shared) if known is not None else 0, tokens)
    fresh = tuple(place for place, structure in enumerate(structures, shared) if structure.markers)
    signed = tuple(place for place, structure in enumerate(structures, shared) if structure.signed)
    if known is None or not shared:
        runs = judge_history(structures, is_itemised=FORMATS[request.wire].is_itemised)
        counted = _count_answers(structures), _find_acting(structures, 0)
        return MeasuredHistory(request.nodes, structures, sums, runs, head, items, first, fresh, signed, *counted)
    answers = known.answers if shared == len(known.nodes) else _count_answers(known.structures[:shared])
    return MeasuredHistory(
        request.nodes,
        extend_shared(known.structures, shared, structures),
        extend_shared(known.sums, shared, sums),
        extend_history(known.runs, shared, structures),
        head,
        items,
        first,
        (*(place for place in known.marked if place < shared), *fresh),
        (*(place for place in known.signed if place < shared), *signed),
        answers + _count_answers(structures),
        known.first_acting if known.first_acting < shared else _find_acting(structures, shared),
        tuple([(place, medium) for place, medium in known.guessed if place < shared]),
    )
