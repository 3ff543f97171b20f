"""Measured histories: the structure of each message of a conversation, its tokens, and its faults."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from msgspec.structs import replace

from proxy.context.budget import has_reference, has_token_bound
from proxy.context.conversation import CountedMessage
from proxy.context.verbatim import find_unanswered, find_verbatim, iterate_groups
from proxy.engine.context.tool_offers import NO_RECALLED
from proxy.engine.request import ManagedRequest
from proxy.engine.token_counter import Piece, TokenCounter
from proxy.model import Value
from proxy.model.epoch import Recalled
from proxy.model.lineage import count_shared_nodes
from proxy.model.manifest import compute_digest
from proxy.model.messages import Medium, MessageStructure
from proxy.model.shared_list import count_common, extend_shared
from proxy.wire import FORMATS
from proxy.wire.body import ByteRange
from proxy.wire.validity import MessageRuns, extend_history, judge_history

_HISTORIES_PER_VIEW = 4
_HISTORY_WEIGHT = 500
_MESSAGE_WEIGHT = 700
# Bytes that are decoded here. More are decoded in the worker process, to not delay other calls.
_READ_HERE = 64 * 1024
# Ids have about forty characters. A message with more characters of ids takes more memory than `_MESSAGE_WEIGHT`.
_MOST_NAMED = 2048
_NOTHING = (b"", b"[]", b"null")

Key = tuple[str, str]


class PromptPrefix(Value):
    """The part of a prompt before the messages: the digest of its instructions, its raw tools, and its tokens.

    The digest leaves out what changes with each request, and is no part of what providers cache
    (`Format.read_instructions`).
    """

    leading: bytes
    tools: bytes
    tokens: int


class MeasuredHistory(Value, eq=False):
    """The messages of a request after its preamble, with their structures and token counts."""

    nodes: Sequence[bytes]
    structures: Sequence[MessageStructure]
    sums: Sequence[int]  # tokens up to the end of each message, without the head's
    runs: MessageRuns
    head: PromptPrefix
    items: Sequence[ByteRange]  # of all items in the body that they were read from
    first: int  # index of the first message in `items`
    marked: tuple[int, ...] = ()  # indexes of messages with cache markers
    signed: tuple[int, ...] = ()  # indexes of messages with signed reasoning
    answers: int = 0  # messages of the assistant
    first_acting: int = 0  # index of the first message with a call or a result, or their number if there is none
    guessed: tuple[tuple[int, Medium], ...] = ()  # media whose sizes were not known, with the indexes of their messages

    def count(self, start: int, stop: int) -> int:
        """Return the tokens of the messages from `start` up to `stop`."""
        return self.count_to(stop) - self.count_to(start)

    def count_to(self, stop: int) -> int:
        """Return the tokens of the first `stop` messages."""
        return self.sums[stop - 1] if stop else 0

    def list_markers(self, stop: int | None = None) -> list[str]:
        """Return the retentions of the cache markers in the first `stop` messages, or in all."""
        places = self.marked if stop is None else [place for place in self.marked if place < stop]
        return [marker for place in places for marker in self.structures[place].markers]

    @property
    def tokens(self) -> int:
        """Tokens of the whole request."""
        return self.head.tokens + self.count_to(len(self.sums))

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return _HISTORY_WEIGHT + _MESSAGE_WEIGHT * len(self.nodes) + len(self.head.tools)

    def continues(self, other: "MeasuredHistory") -> bool:
        """Return whether this history has all the messages of the other, and perhaps more."""
        return count_shared_nodes(other.nodes, self.nodes) == len(other.nodes)

    def count_alike(self, request: ManagedRequest) -> int:
        """Count the first messages of a request that are the same in this history, with the same lengths in bytes."""
        shared = count_shared_nodes(self.nodes, request.nodes)
        items, first = request.split.items, request.chain.preamble.count
        same = count_common(self.items, items) - first if first == self.first else 0
        at = max(0, same)
        known = self.items[self.first + at : self.first + shared]
        for place, (old, new) in enumerate(zip(known, items[first + at : first + shared], strict=True), at):
            if old.end - old.start != new.end - new.start:
                return place
        return shared


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


class HistoryCache:
    """The histories used last. The least recently used are dropped above `most_bytes`."""

    def __init__(self, counter: TokenCounter, most_bytes: int) -> None:
        self._counter = counter
        self._most = most_bytes
        self._seen: OrderedDict[Key, list[MeasuredHistory]] = OrderedDict()
        self._weight = 0

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return self._weight

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
        self._weight = 0

    def find(self, request: ManagedRequest) -> tuple[MeasuredHistory | None, int]:
        """Return the cached history that shares most messages with a request, and their number, or (None, 0)."""
        best, most = None, 0
        for history in reversed(self._seen.get(_name(request), ())):
            if any(self._find_size(request, medium) is not None for _, medium in history.guessed):
                continue  # it was counted before the sizes were learned
            shared = history.count_alike(request)
            if shared > most:
                best, most = history, shared
            if shared == len(request.nodes):
                break
        return best, most

    async def follow(self, request: ManagedRequest, *, is_kept: bool = True) -> MeasuredHistory:
        """Measure the history of a request. Only new messages are read and counted.

        `is_kept` is False for a look at a session: a history that is kept decides what later requests have to count.
        """
        known, shared = self.find(request)
        head = await self._count_head(request, known)
        if known is not None and shared == len(request.nodes) == len(known.nodes):
            history = known if known.head is head else replace(known, head=head)
        else:
            structures, tokens = await self._measure(request, request.list_raws(shared))
            history = _extend(known, shared, request, structures, tokens=tokens, head=head)
            if fresh := self._list_guessed(request, shared):
                history = replace(history, guessed=(*history.guessed, *fresh))
            if any(map(_is_long_named, structures)):
                return history
        if is_kept:
            self._remember(_name(request), history)
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
        if any(map(_is_long_named, structures)):
            return None
        tokens = self._counter.count_now(request.model, pieces, request.session.upstream).tokens
        history = _extend(known, shared, request, structures, tokens=tokens, head=known.head)
        self._remember(_name(request), history)
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

    def _remember(self, key: Key, history: MeasuredHistory) -> None:
        """Add a history, in place of those that it continues."""
        if history.weight > self._most:
            return
        entries = self._seen.setdefault(key, [])
        self._seen.move_to_end(key)
        for each in [each for each in entries if history.continues(each)]:
            entries.remove(each)
            self._weight -= each.weight
        entries.append(history)
        self._weight += history.weight
        if len(entries) > _HISTORIES_PER_VIEW:
            self._weight -= entries.pop(0).weight
        while self._weight > self._most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, entries = next(iter(self._seen.items()))
        self._weight -= entries.pop(0).weight
        if not entries:
            del self._seen[key]


def find_tools(request: ManagedRequest) -> bytes:
    """Return the raw tools of a request, empty if it has none."""
    tools = request.split.member("tools")
    return b"" if tools in _NOTHING else tools


def is_head_of(head: PromptPrefix, request: ManagedRequest) -> bool:
    """Return whether a prefix is what goes before the messages of a request."""
    return head.leading == request.chain.preamble.system and head.tools == find_tools(request)


def _name(request: ManagedRequest) -> Key:
    return request.session.id, request.model


def _decode(wire: str, raws: Sequence[bytes]) -> tuple[list[MessageStructure], list[Piece]]:
    decoded = [FORMATS[wire].decode_message(raw) for raw in raws]
    pieces = [Piece(compute_digest(raw), raw, decoded=each) for raw, each in zip(raws, decoded, strict=True)]
    return [each.structure for each in decoded], pieces


def _is_long_named(structure: MessageStructure) -> bool:
    return sum(map(len, (*structure.calls, *structure.results, *structure.markers))) > _MOST_NAMED


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
