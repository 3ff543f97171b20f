"""Prompts as a provider's cache sees them: pieces in their order, each with its tokens, and which of them it holds."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proxy.context.provider_cache import CacheModel
from proxy.engine.token_counter import Piece, TokenCounter
from proxy.model.manifest import compute_digest
from proxy.transcripts.transcript import encode, read_json
from proxy.wire.body import split_body
from proxy.wire.format import Format

_MARKER = b'"cache_control"'


class PromptPiece(NamedTuple):
    """The tools, the instructions or a message of a prompt: a digest of what a model is shown of it, and its tokens."""

    digest: bytes
    tokens: int


Prompt = Sequence[PromptPiece]


class PromptReader:
    """Reads prompts from the bodies of requests. `counter` counts, and knows what it has counted before."""

    def __init__(self, counter: TokenCounter, form: Format) -> None:
        self._counter = counter
        self._form = form

    async def read(self, model: str, body: bytes) -> Prompt:
        """Return the prompt of a body; an empty one if it is not understood."""
        split = split_body(body, self._form.items_key)
        if split is None:
            return ()
        instructions = split.member(self._form.instructions_key) if self._form.instructions_key else b""
        leading = [b'{"role":"system","content":%b}' % instructions] if instructions else []
        messages = [split.content[span.start : span.end] for span in split.items]
        return await self.count(model, [*leading, *messages], split.member("tools"))

    async def count(self, model: str, messages: Iterable[bytes], tools: bytes = b"") -> Prompt:
        """Return the prompt of raw messages, with the tools before them."""
        pieces = [Piece(compute_digest(raw), raw) for raw in map(_strip, messages)]
        if tools:
            pieces.insert(0, Piece(compute_digest(tools), tools, is_tools=True))
        counted = await self._counter.count(model, pieces)
        return [PromptPiece(piece.digest, tokens) for piece, tokens in zip(pieces, counted.tokens, strict=True)]


def _strip(raw: bytes) -> bytes:
    """Return a message without cache markers, which a model is not shown."""
    return encode(_drop(read_json(raw))) if _MARKER in raw else raw


def _drop(value: object) -> object:
    if isinstance(value, dict):
        return {name: _drop(each) for name, each in value.items() if name != "cache_control"}
    return [_drop(each) for each in value] if isinstance(value, list) else value


def count_prompt(prompt: Prompt) -> int:
    """Return the tokens of a prompt."""
    return sum(piece.tokens for piece in prompt)


class PromptCache:
    """The beginnings of prompts that a provider was sent, each with the time of its last use in seconds."""

    def __init__(self) -> None:
        self._used: dict[bytes, float] = {}

    def take(self, prompt: Prompt, cache: CacheModel, now: float) -> int:
        """Return how many tokens are read of a prompt. All of its beginnings are held afterwards."""
        digest, tokens, matching = hashlib.sha256(), 0, 0
        for piece in prompt:
            digest.update(piece.digest)
            tokens += piece.tokens
            name = digest.digest()
            used = self._used.get(name)
            if used is not None and matching == tokens - piece.tokens and not cache.is_cold(now - used):
                matching = tokens
            self._used[name] = now
        return cache.find_read(matching)
