"""What counting costs: `python -m benchmarks.tokens`.

The rule: medians of wall time in one process, the network never touched. The text is code, prose and tests in equal
parts, in messages of some 400 tokens, as agents send them. The byte bound and cache hits are what a request pays that
needs no count; loading ranks is paid once in a process.
"""

import asyncio
import hashlib
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count, cycle, islice
from pathlib import Path

import orjson

from proxy.context.budget import BudgetPolicy, bound_tokens, make_budget
from proxy.engine.token_counter import Piece, TokenCounter
from proxy.upstream.model_catalog import load_model_map
from proxy.upstream.tokenizer import CountingTokenizer, load_encoder

ROOT = Path(__file__).parents[1]
ROUNDS = 9
LETTERS = 1_000_000


def make_pieces(encoder_count: Callable[[str], int], tokens: int, start: int) -> list[Piece]:
    """Messages of that many tokens together, no two of them alike."""
    sources = [
        (ROOT / name).read_text() for name in ("proxy/engine/call/relay.py", "README.md", "tests/engine/test_relay.py")
    ]
    chunks = [source[at : at + 1500] for source in sources for at in range(0, len(source) - 1500, 1500)]
    pieces: list[Piece] = []
    total = 0
    for number, chunk in zip(count(start), cycle(chunks), strict=False):
        if total >= tokens:
            return pieces
        text = f"{number} {chunk}"
        total += encoder_count(text)
        raw = orjson.dumps({"role": "user", "content": text})
        pieces.append(Piece(hashlib.sha256(raw).digest(), raw))
    return pieces


def measure(work: Callable[[int], object], rounds: int = ROUNDS) -> float:
    """Median milliseconds."""
    spent = []
    for number in range(rounds):
        began = time.perf_counter_ns()
        work(number)
        spent.append((time.perf_counter_ns() - began) / 1e6)
    return statistics.median(spent)


def show(name: str, spent: float, note: str = "") -> None:
    print(f"{name:52}{spent:10.3f} ms  {note}")


def find_memory() -> float:
    """The most this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show_start() -> CountingTokenizer:
    before = find_memory()
    show("the map of models read", measure(lambda _: load_model_map()))
    show("o200k: encoder made", measure(lambda _: load_encoder("o200k_base"), 3))
    show("cl100k: the same", measure(lambda _: load_encoder("cl100k_base"), 3))
    print(f"{'memory at its highest, before and after':52}{before:10.0f} MB  {find_memory():.0f} MB")
    encoders = {name: load_encoder(name) for name in ("o200k_base", "cl100k_base")}
    return CountingTokenizer(lambda encoding: encoders[encoding])


def show_counting(tokenizer: CountingTokenizer, runner: asyncio.Runner, tokens: int) -> None:
    requests = [
        make_pieces(lambda text: tokenizer.count(text, "o200k_base")[0], tokens, i * 1_000_000) for i in range(ROUNDS)
    ]
    counting = TokenCounter(tokenizer)

    def count_request(pieces: Sequence[Piece]) -> None:
        runner.run(counting.count("gpt-4o", pieces))

    note = f"{len(requests[0])} messages, {sum(len(piece.raw) for piece in requests[0]) // 1000} KB"
    show(
        f"{tokens // 1000}K tokens, every message new, in a thread", measure(lambda i: count_request(requests[i])), note
    )
    show(f"{tokens // 1000}K tokens, every message known", measure(lambda i: count_request(requests[i])))
    new = make_pieces(lambda text: tokenizer.count(text, "o200k_base")[0], 400 * ROUNDS, 10**9)
    grown = [[*requests[0], new[i]] for i in range(ROUNDS)]
    show(f"{tokens // 1000}K tokens, one message new", measure(lambda i: count_request(grown[i])))


def main() -> None:
    tokenizer = show_start()
    with asyncio.Runner() as runner:
        for tokens in (26_000, 200_000):
            show_counting(tokenizer, runner, tokens)
    run = "a" * LETTERS
    show("a run of one letter, 1 MB", measure(lambda _: tokenizer.count(run, "o200k_base"), 3))
    spaces = " " * LETTERS
    show("a run of spaces, 1 MB", measure(lambda _: tokenizer.count(spaces, "o200k_base"), 3))
    text = b"".join(piece.raw for piece in islice(make_pieces(len, 10**6, 0), 60))
    show(f"the byte bound of {len(text) // 1000} KB", measure(lambda _: bound_tokens(text), 99))
    show("a budget", measure(lambda _: make_budget(200_000, 64_000, 8000, BudgetPolicy()), 999))


if __name__ == "__main__":
    main()
