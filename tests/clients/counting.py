"""What a scripted provider counts: the tokens of a request, how many of these stand in its cache, and its own.

Rule: counted by the vocabulary of a real model over what a model is shown, so that a request costs the same however it
is spelt. The cache holds each prompt by whole messages and never forgets.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from proxy.upstream.tokenizer import load_encoder
from tests.clients.script import Json, Turn
from tests.support.answers import Tokens

_PER_MESSAGE = 4
_SHORTEST = 1024  # fewer tokens are not kept by any provider
_COUNTED_TEXTS = 20_000
_NOT_SHOWN = frozenset({"cache_control", "id", "call_id", "tool_call_id", "tool_use_id", "type", "role", "status"})


class Meter:
    """Counts what one provider is sent."""

    def __init__(self, window: int) -> None:
        self.window = window
        encoder = load_encoder("o200k_base")
        assert encoder is not None
        self._count = lru_cache(_COUNTED_TEXTS)(encoder.count)
        self._kept: set[bytes] = set()

    def measure(self, asked: Json, *, is_kept: bool = True) -> Tokens:
        """The tokens of a request's prompt. What was measured is in the cache afterwards, if it is to be kept."""
        digest, prompt, cached = hashlib.sha256(), 0, 0
        for part in _split(asked):
            text = list(_find_texts(part))
            prompt += _PER_MESSAGE + sum(self._count(each) for each in text)
            digest.update(json.dumps(text).encode())
            mark = digest.digest()
            if mark in self._kept:
                cached = prompt
            if is_kept:
                self._kept.add(mark)
        return Tokens(prompt, cached if cached >= _SHORTEST else 0, 0)

    def count_turn(self, turn: Turn) -> int:
        """The tokens of an answer."""
        calls = [json.dumps([call.name, call.arguments]) for call in turn.calls]
        return sum(self._count(text) for text in (turn.text, *calls))


def _split(asked: Json) -> Iterator[Any]:
    """What a model is shown, in its order: tools, system prompt, messages."""
    yield json.dumps(asked.get("tools") or [])
    yield [asked.get("instructions"), asked.get("system")]
    items = asked.get("messages") or asked.get("input") or ()
    yield from [items] if isinstance(items, str) else items


def _find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _find_texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _NOT_SHOWN:
                yield from _find_texts(each)
