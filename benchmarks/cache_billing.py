"""What a session costs under the billing rules of a provider's cache: `python -m benchmarks.cache_billing [CEILING…]`.

The scripted session of `benchmarks.picture` goes through a proxy to a mock upstream that bills each request by
`SimulatedCache`: exact breakpoints as OpenAI's from gpt-5.6 on, or Anthropic's markers. The same requests are billed as
the client made them. Prices, minimums and lifetimes are those of the bundled map; fifteen seconds pass between calls.
Each call gives money for its input; the answers cost the same in all rows. Markdown goes to stdout.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.picture import Message, TokenCount, Upstream, run_proxy, run_session
from proxy.context.provider_cache import CacheModel, choose_cache_model
from proxy.model.card import CacheKind, CacheTerms
from proxy.upstream.model_catalog import load_model_map

CALLS = 240
SECONDS_BETWEEN = 15.0
_MARKER = "cache_control"


class Row(NamedTuple):
    """One session: a model, the setting `cache` of its upstream, and whether the client sets markers itself."""

    name: str
    model: str
    kind: CacheKind
    cache: str
    is_marked: bool = False


ROWS = (
    Row("exact breakpoints", "gpt-5.6", "openai-breakpoints", "auto"),
    Row("exact breakpoints, reckoned as a prefix cache", "gpt-5.6", "openai-breakpoints", "prefix"),
    Row("markers at 0.1, client sets none, ours off", "claude-sonnet-4-6", "breakpoints", "auto"),
    Row("markers at 0.1, client sets none, ours on", "claude-sonnet-4-6", "breakpoints", "breakpoints"),
    Row("markers at 0.1, client sets three, ours off", "claude-sonnet-4-6", "breakpoints", "auto", True),
    Row("markers at 0.1, client sets three, ours on", "claude-sonnet-4-6", "breakpoints", "breakpoints", True),
    Row("markers at 0.05, client sets none, ours off", "claude-opus-5-5", "breakpoints", "auto"),
    Row("markers at 0.05, client sets none, ours on", "claude-opus-5-5", "breakpoints", "breakpoints"),
    Row("markers at 0.05, client sets three, ours off", "claude-opus-5-5", "breakpoints", "auto", True),
    Row("markers at 0.05, client sets three, ours on", "claude-opus-5-5", "breakpoints", "breakpoints", True),
)


class PromptBlock(msgspec.Struct, frozen=True, gc=False):
    """A part of a prompt that may end a cached prefix. `key` identifies all of the prompt up to its end.

    `end` are the tokens up to there. `is_mark`: a breakpoint is there. `is_written`: this request writes an entry for
    it; implicit breakpoints of older messages are looked at and not written.
    """

    key: bytes
    end: int
    is_mark: bool = False
    is_written: bool = True


class SimulatedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt that is sent `at` monotonic seconds, as its blocks in order."""

    blocks: Sequence[PromptBlock]
    at: float = 0.0


class CacheReads(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a prompt that a cache reads, and those that it writes."""

    read: int
    written: int


class SimulatedCache:
    """A provider's cache under its rules: tells of each prompt what is read of it and what is written."""

    def __init__(self, model: CacheModel) -> None:
        self.model = model
        self._used: dict[bytes, float] = {}  # when each entry was last used, or was written

    def send(self, prompt: SimulatedPrompt) -> CacheReads:
        """Return what is read and written of a prompt, and remember it."""
        model, blocks = self.model, prompt.blocks
        if not model.is_used or not blocks:
            return CacheReads(0, 0)
        places = model.list_readable([place for place, block in enumerate(blocks) if block.is_mark], len(blocks))
        hit = next((place for place in places if self._is_alive(blocks[place], prompt.at)), None)
        read = model.find_read(blocks[hit].end) if hit is not None else 0
        if hit is not None and model.is_refreshed:
            self._used.update((block.key, prompt.at) for block in blocks[: hit + 1] if block.key in self._used)
        written = [block for block in self._list_written(blocks) if block.end > read]
        self._used.update((block.key, prompt.at) for block in written)
        return CacheReads(read, max((block.end for block in written), default=read) - read)

    def _is_alive(self, block: PromptBlock, at: float) -> bool:
        used, lifetime = self._used.get(block.key), self.model.retention
        is_kept = used is not None and (lifetime is None or at - used <= lifetime)
        return is_kept and self.model.find_read(block.end) > 0

    def _list_written(self, blocks: Sequence[PromptBlock]) -> list[PromptBlock]:
        model = self.model
        if model.kind in ("breakpoints", "openai-breakpoints"):
            marked = [block for block in blocks if block.is_mark and block.is_written]
            marked = marked[-model.most_marks :] if model.most_marks else marked
        else:
            marked = list(blocks)
        return [block for block in marked if block.end >= model.minimum]


class Biller(TokenCount):
    """Bills requests by the rules of one cache."""

    def __init__(self, model: str, kind: CacheKind) -> None:
        super().__init__()
        offer = load_model_map().find(model)
        terms = CacheTerms(head=("5m",), messages=("5m",), has_leading=True)
        self._kind = kind
        assert offer.prices is not None, "the map has the prices of the models measured"
        self._prices = offer.prices
        self._cache = SimulatedCache(choose_cache_model(offer.caches, kind, "", terms))
        self.money = 0.0
        self.read = 0

    def add(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Bill a request; returns its tokens, and those that the cache read."""
        tokens, _ = super().add([_unmark(message) for message in messages])
        blocks = self._list_blocks(messages)
        found = self._cache.send(SimulatedPrompt(blocks, SECONDS_BETWEEN * len(self.requests)))
        rates = self._prices.find_rates(tokens)
        fresh = tokens - found.read - found.written
        self.money += fresh * rates.input + found.read * rates.cached + found.written * rates.written
        self.read += found.read
        self.cached[-1] = found.read
        return tokens, found.read

    def _list_blocks(self, messages: Sequence[Message]) -> list[PromptBlock]:
        blocks, key, end = list[PromptBlock](), b"", 0
        for place, message in enumerate(messages):
            text = json.dumps(_unmark(message), sort_keys=True)
            key = hashlib.sha256(key + text.encode()).digest()
            end += self._count(text)
            following = messages[place + 1]["role"] if place + 1 < len(messages) else ""
            is_mark, is_written = self._find_mark(message, place, following)
            blocks.append(PromptBlock(key, end, is_mark, is_written))
        return blocks

    def _find_mark(self, message: Message, place: int, following: str) -> tuple[bool, bool]:
        """Return whether a breakpoint ends a message, and whether this request writes it."""
        if self._kind == "breakpoints":
            is_mark = _MARKER in json.dumps(message)
            return is_mark, is_mark
        is_end = message["role"] in ("user", "tool") and following != "tool"
        is_first = place == 0 and message["role"] == "system"
        return is_end or is_first, is_first or not following


def _unmark(message: Message) -> Message:
    """Return a message without markers, in the form that a provider reads: one text part is a string."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [{name: value for name, value in part.items() if name != _MARKER} for part in content]
    is_text = len(parts) == 1 and set(parts[0]) == {"type", "text"}
    return {**message, "content": parts[0]["text"] if is_text else parts}


def mark_as_client(history: list[Message]) -> list[Message]:
    """Return the messages with the markers that agents set: behind the system prompt, and on the last two of a person
    or a tool.
    """
    places = [place for place, message in enumerate(history) if message["role"] in ("user", "tool")][-2:]
    marked = list(history)
    for place in (0, *places):
        part = {"type": "text", "text": history[place]["content"], _MARKER: {"type": "ephemeral"}}
        marked[place] = {**history[place], "content": [part]}
    return marked


def measure_row(row: Row, calls: int, ceiling: int) -> tuple[Biller, Biller]:
    """Return the bills of a session without and with the proxy."""
    without, arrived = Biller(row.model, row.kind), Biller(row.model, row.kind)
    spell: Callable[[list[Message]], list[Message]] = mark_as_client if row.is_marked else list
    with (
        tempfile.TemporaryDirectory() as data,
        Upstream(arrived) as upstream,
        run_proxy(upstream.port, Path(data), "--ceiling", str(ceiling), cache=row.cache) as port,
    ):
        run_session(port, calls, without, model=row.model, spell=spell)
    return without, arrived


def main() -> None:
    """Measure all rows and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.cache_billing")
    parser.add_argument("ceilings", nargs="*", type=int, default=[32_000, 200_000])
    parser.add_argument("--calls", type=int, default=CALLS)
    options = parser.parse_args()
    print("| ceiling | cache | setting | direct $ | managed $ | managed / direct | read, direct | read, managed |")
    print("|---|---|---|---|---|---|---|---|")
    for ceiling in options.ceilings:
        for row in ROWS:
            without, arrived = measure_row(row, options.calls, ceiling)
            shares = [f"{bill.read / sum(bill.requests):.0%}" for bill in (without, arrived)]
            money = f"{without.money:.2f} | {arrived.money:.2f} | {arrived.money / without.money:.0%}"
            print(f"| {ceiling:,} | {row.name} | `{row.cache}` | {money} | {' | '.join(shares)} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
