"""Counting the tokens of messages.

A message is counted once, off the event loop if it is long, and cached by its hash. Models with one encoding share the
count. For other tokenizers our count is multiplied by a ratio learned from their reported usage. The ratio is applied
only when counts are compared with theirs (`find_ratio`), so that a cached sum stays valid when the ratio changes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from proxy.context.budget import EXACT, TokenRatio, guess_ratio
from proxy.context.model_catalog import Encoding, Family, count_media, count_tool_prompt, identify_family
from proxy.engine.ports import Tokenizer
from proxy.model.errors import WorkerLost
from proxy.model.manifest import compute_digest
from proxy.model.messages import CountedContent, Medium, MessageStructure, TokenWeight
from proxy.wire import FORMATS
from proxy.wire.format import DecodedMessage
from proxy.wire.json_values import load_lenient
from proxy.wire.messages import read_counted_content, read_counted_tools

_MOST_RATIOS = 1024
_MOST_SIZES = 4096
# Bytes that are counted on the event loop: a step of an agent. Using a thread costs the event loop 0.1 ms, and the call
# 0.3 ms more. 8 KB of code are counted in 0.3 ms, and the worst text in 0.6 ms.
_COUNT_HERE = 8192
# Bytes from which on the worker process counts. A thread of this process sometimes holds the interpreter's lock, but
# does not wait for a running plan.
_COUNT_APART = 64 * 1024
# Seconds that the worker process has for that. After them a thread counts.
APART_SECONDS = 1.0
# The errors of a job in another process. Some content, such as a lone surrogate, cannot be encoded for transfer.
_FAILURES_APART = (WorkerLost, TimeoutError, RuntimeError, TypeError, ValueError, OverflowError)
# The prefix of a hash in the key of a weight. The first encoding, which most models use, has none.
_BEFORE: Mapping[Encoding, bytes] = {"o200k_base": b"", "cl100k_base": b"cl100k"}
# The vendor with a published formula for counting tools. Most chat templates of others contain tools as JSON.
_FORMULAIC = "openai"


class Piece(NamedTuple):
    """A message of a request, or its tools: a hash of its bytes, and the bytes.

    `is_spelt`: count its JSON text as it is. `decoded` is the decoded message, if it was decoded already.
    """

    digest: bytes
    raw: bytes
    is_tools: bool = False
    is_spelt: bool = False
    decoded: DecodedMessage | None = None


class MeasureJob(msgspec.Struct, frozen=True, gc=False, tag="measure"):
    """Contents to measure, each with its raw bytes and kind. `wire` is the format of messages that are to be parsed.

    `model` is that which reads them, empty if no model counts otherwise than its encoding.
    """

    encoding: Encoding
    contents: Sequence[tuple[bytes, Literal["message", "tools", "text"]]]
    wire: str = ""
    model: str = ""

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return sum([len(raw) for raw, _ in self.contents])


class Measured(msgspec.Struct, frozen=True, gc=False):
    """The result for one content: its weight and, for a message of a wire, its structure."""

    weight: TokenWeight
    structure: MessageStructure | None = None


class MeasuringWorker(Protocol):
    """Measures in another process. Raises WorkerLost, and RuntimeError or ValueError for content it cannot transfer."""

    @property
    def is_starting(self) -> bool:
        """Whether the process is being started, so that its results take a second longer."""
        ...

    async def measure(self, job: MeasureJob) -> Sequence[Measured]:
        """Return the result for each content, in order."""
        ...


def measure(job: MeasureJob, tokenizer: Tokenizer) -> list[Measured]:
    """Measure contents. Blocks."""
    return [_measure_one(job, raw, kind, tokenizer) for raw, kind in job.contents]


def _measure_one(job: MeasureJob, raw: bytes, kind: str, tokenizer: Tokenizer) -> Measured:
    if kind == "message" and job.wire:
        decoded = FORMATS[job.wire].decode_message(raw)
        return Measured(_weigh(decoded.content, job.encoding, tokenizer, job.model), decoded.structure)
    content = _read(Piece(b"", raw, kind != "message", kind == "text"))
    return Measured(_weigh(content, job.encoding, tokenizer, job.model))


def _weigh(content: CountedContent, encoding: Encoding, tokenizer: Tokenizer, model: str) -> TokenWeight:
    tokens, is_estimate = tokenizer.count(content.text, encoding, model)
    return TokenWeight(tokens + content.frame, content.media, is_estimate)


class Count(NamedTuple):
    """Tokens of each piece in our encodings, and whether any of them is only an estimate."""

    tokens: tuple[int, ...]
    is_estimate: bool


class _CountJob(NamedTuple):
    """The state of one `count`: its pieces, those that are new, and the known weights of the others."""

    model: str
    upstream: str
    family: Family
    pieces: Sequence[Piece]
    fresh: dict[bytes, Piece]
    known: dict[bytes, TokenWeight]


class TokenCounter:
    """Caches the weights of messages, the newest `most` of them (180 bytes each), and has each model's ratio.

    `worker` measures long contents; without one a thread does. `is_by_model`: the tokenizer counts for each model what
    that reads, so that weights are of one model, and no ratio is guessed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        most: int = 65_536,
        worker: MeasuringWorker | None = None,
        *,
        is_by_model: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._worker = worker
        self._is_by_model = is_by_model
        self._weights: dict[bytes, TokenWeight] = {}
        self._ratios: dict[tuple[str, str], TokenRatio] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}  # of media by reference, learned from usage

    async def count(self, model: str, pieces: Sequence[Piece], upstream: str = "") -> Count:
        """Return the tokens of each piece. Only new pieces are counted.

        The `upstream` counts for media by reference, whose sizes it may have told.
        """
        job = self._open(model, pieces, upstream)
        found: Sequence[TokenWeight] = ()
        if job.fresh:
            fresh = tuple(job.fresh.values())
            if self.is_quick(model, [piece.raw for piece in fresh]):
                found = [_weigh(_read(piece), job.family.encoding, self._tokenizer, model) for piece in fresh]
            else:
                contents = [(piece.raw, _name_kind(piece)) for piece in fresh]
                asked = MeasureJob(job.family.encoding, contents, model=self._name_reader(model))
                found = [each.weight for each in await self._measure(asked)]
        return self._make_count(job, found)

    async def measure(
        self, wire: str, model: str, raws: Sequence[bytes], upstream: str = ""
    ) -> tuple[list[MessageStructure], tuple[int, ...]]:
        """Return the structures and the tokens of long messages of a wire, whose hashes are not known."""
        family = identify_family(model)
        job = MeasureJob(family.encoding, [(raw, "message") for raw in raws], wire, self._name_reader(model))
        before = self._find_prefix(family, model)
        structures, tokens = [], []
        for raw, each in zip(raws, await self._measure(job), strict=True):
            piece = Piece(compute_digest(raw), raw)
            self._remember(before + piece.digest, each.weight)
            assert each.structure is not None, "messages of a wire are parsed"
            structures.append(each.structure)
            tokens.append(self._sum(each.weight, piece, family, (upstream, model)))
        return structures, tuple(tokens)

    async def _measure(self, job: MeasureJob) -> Sequence[Measured]:
        """Measure long contents in the worker process. Use a thread for others, and if the worker fails or is late."""
        if self._worker is not None and job.weight >= _COUNT_APART and not self._worker.is_starting:
            try:
                async with asyncio.timeout(APART_SECONDS):
                    return await self._worker.measure(job)
            except _FAILURES_APART:
                pass  # if the content is the cause, the thread raises the error, too
        return await asyncio.to_thread(measure, job, self._tokenizer)

    def count_now(self, model: str, pieces: Sequence[Piece], upstream: str = "") -> Count:
        """Return what `count` does, synchronously. Blocks, so use it only if `is_quick`."""
        family = identify_family(model)
        pieces = _spell_for(family, pieces)
        weights = [self._weigh_now(family, piece, model) for piece in pieces]
        key = upstream, model
        tokens = tuple([self._sum(each, piece, family, key) for each, piece in zip(weights, pieces, strict=True)])
        return Count(tokens, any([each.is_estimate for each in weights]))

    def is_quick(self, model: str, raws: Sequence[bytes]) -> bool:
        """Return whether this is counted on the event loop, since handing it to a thread would take longer."""
        return sum(map(len, raws)) <= _COUNT_HERE and self._tokenizer.is_ready(identify_family(model).encoding)

    async def count_messages(self, model: str, raws: Sequence[bytes]) -> tuple[int, ...]:
        """Count messages whose hashes are not known."""
        return (await self.count(model, [Piece(compute_digest(raw), raw) for raw in raws])).tokens

    def find_ratio(self, upstream: str, model: str) -> TokenRatio:
        """Return how many tokens the model counts for each token of our count."""
        return self._ratios.get((upstream, model)) or (
            EXACT if self._is_by_model else guess_ratio(identify_family(model))
        )

    def learn(self, upstream: str, model: str, ours: int, theirs: int) -> None:
        """Update a model's ratio from the input tokens of one request, in our count and in the provider's."""
        ratio = self.find_ratio(upstream, model)
        self._ratios.pop((upstream, model), None)
        self._ratios[upstream, model] = ratio.learn(ours, theirs)
        _forget_oldest(self._ratios, _MOST_RATIOS)

    def find_size(self, upstream: str, model: str, reference: str) -> int | None:
        """Return the tokens of a medium by reference, in our count, if usage has told them."""
        return self._sizes.get((upstream, model, reference))

    def learn_sizes(self, upstream: str, model: str, media: Sequence[Medium], counted: int, most: int) -> int:
        """Learn the sizes of media by reference from the first usage with them. Return the tokens of the request.

        It was `counted` as tokens of ours with guesses for these media, and has `most`. What is more, or less, is
        theirs, in equal parts; an image has no more than was guessed, which is the most that its provider counts.
        """
        family = identify_family(model)
        guesses = [count_media((each,), family, model) for each in media]
        left = max(0, most - (counted - sum(guesses)))
        total = counted - sum(guesses)
        pairs = sorted(zip(media, guesses, strict=True), key=lambda pair: pair[0].kind != "image")
        for place, (medium, guess) in enumerate(pairs):
            size = left // (len(pairs) - place)
            size = min(size, guess) if medium.kind == "image" else size
            self._sizes[upstream, model, medium.reference] = size
            _forget_oldest(self._sizes, _MOST_SIZES)
            left, total = left - size, total + size
        return total

    def _open(self, model: str, pieces: Sequence[Piece], upstream: str) -> "_CountJob":
        family = identify_family(model)
        pieces = _spell_for(family, pieces)
        before = self._find_prefix(family, model)
        fresh = {piece.digest: piece for piece in pieces if before + piece.digest not in self._weights}
        known = {piece.digest: self._recall(before + piece.digest) for piece in pieces if piece.digest not in fresh}
        return _CountJob(model, upstream, family, pieces, fresh, known)

    def _make_count(self, job: "_CountJob", found: Sequence[TokenWeight]) -> Count:
        """Return the count, and cache the weights that were found for new pieces."""
        weights, before = job.known, self._find_prefix(job.family, job.model)
        for digest, weight in zip(job.fresh, found, strict=True):
            weights[digest] = weight
            self._remember(before + digest, weight)
        key = job.upstream, job.model
        tokens = tuple([self._sum(weights[piece.digest], piece, job.family, key) for piece in job.pieces])
        return Count(tokens, any(weight.is_estimate for weight in weights.values()))

    def _sum(self, weight: TokenWeight, piece: Piece, family: Family, key: tuple[str, str]) -> int:
        if piece.is_tools:
            return weight.text_tokens + count_tool_prompt(family)
        if not weight.media:
            return weight.text_tokens
        known = [self._sizes.get((*key, each.reference)) if each.reference else None for each in weight.media]
        guessed = [each for each, size in zip(weight.media, known, strict=True) if size is None]
        return weight.text_tokens + count_media(guessed, family, key[1]) + sum(filter(None, known))

    def _name_reader(self, model: str) -> str:
        return model if self._is_by_model else ""

    def _find_prefix(self, family: Family, model: str) -> bytes:
        """Return the prefix of a hash in the keys of weights for a model."""
        return b"%b\0" % model.encode() if self._is_by_model else _BEFORE[family.encoding]

    def _weigh_now(self, family: Family, piece: Piece, model: str) -> TokenWeight:
        """Return a cached weight, or compute it, and make it the newest."""
        key = self._find_prefix(family, model) + piece.digest
        weight = self._weights.pop(key, None)
        if weight is None:
            weight = _weigh(_read(piece), family.encoding, self._tokenizer, model)
        self._remember(key, weight)
        return weight

    def _recall(self, key: bytes) -> TokenWeight:
        """Return a cached weight, and make it the newest."""
        weight = self._weights.pop(key)
        self._remember(key, weight)
        return weight

    def _remember(self, key: bytes, weight: TokenWeight) -> None:
        self._weights[key] = weight
        _forget_oldest(self._weights, self._most)


def _spell_for(family: Family, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return the pieces in the form in which the rules of a family count them."""
    if family.vendor == _FORMULAIC:
        return pieces
    return [
        Piece(b"spelt" + piece.digest, piece.raw, is_tools=True, is_spelt=True) if piece.is_tools else piece
        for piece in pieces
    ]


def _name_kind(piece: Piece) -> Literal["message", "tools", "text"]:
    if piece.is_spelt:
        return "text"
    return "tools" if piece.is_tools else "message"


def _read(piece: Piece) -> CountedContent:
    if piece.is_spelt:
        return CountedContent(piece.raw.decode("utf-8", "replace"))
    if piece.is_tools:
        return read_counted_tools(piece.raw)
    return piece.decoded.content if piece.decoded is not None else read_counted_content(load_lenient(piece.raw))


def _forget_oldest(known: dict[Any, Any], most: int) -> None:
    if len(known) > most:
        del known[next(iter(known))]
