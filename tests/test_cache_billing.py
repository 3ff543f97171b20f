"""The simulated cache of `benchmarks/cache_billing`, which bills the benchmark's requests."""

from collections.abc import Sequence

import pytest

from benchmarks.cache_billing import CacheReads, PromptBlock, SimulatedCache, SimulatedPrompt
from proxy.context.provider_cache import CacheModel
from tests.support.caches import choose_cache

OPENAI = choose_cache(None, "api.openai.com", "gpt-5")


def read_after(model: CacheModel, earlier: Sequence[SimulatedPrompt], sent: SimulatedPrompt) -> int:
    """The tokens that are read of a prompt after the earlier ones, oldest first."""
    cache = SimulatedCache(model)
    for each in earlier:
        cache.send(each)
    return cache.send(sent).read


def prompt(*blocks: tuple[str, int], marks: str = "", silent: str = "", at: float = 0.0) -> SimulatedPrompt:
    """A prompt of blocks with these names and sizes; the key of a block is the names up to it."""
    made, key, end = [], "", 0
    for name, size in blocks:
        key, end = key + name, end + size
        made.append(PromptBlock(key.encode(), end, name in marks + silent, name not in silent))
    return SimulatedPrompt(made, at)


EXACT = CacheModel("openai-breakpoints", minimum=1024, lookback=80, most_marks=4, retention=1800.0)
MARKED = CacheModel("breakpoints", minimum=1024, lookback=3, most_marks=4, retention=300.0)
HEAD, ONE, TWO = ("h", 2000), ("a", 500), ("b", 500)


@pytest.mark.parametrize(
    ("model", "earlier", "sent", "read"),
    [
        # exact: the entry of the last request's end, which a later one looks at without writing it again
        (EXACT, [prompt(HEAD, ONE, marks="ha")], prompt(HEAD, ONE, TWO, marks="hb", silent="a"), 2500),
        # no fall-back to a prefix without a breakpoint, however long
        (EXACT, [prompt(HEAD, ONE, marks="a")], prompt(HEAD, ("c", 5), marks="hc"), 0),
        (EXACT, [prompt(HEAD, ONE, marks="ha")], prompt(HEAD, ("c", 5), marks="hc"), 2000),
        # nothing below the minimum
        (EXACT, [prompt(ONE, TWO, marks="ab")], prompt(ONE, ("c", 5), marks="ac"), 0),
        # after half an hour all is gone
        (EXACT, [prompt(HEAD, marks="h")], prompt(HEAD, ONE, marks="ha", at=1801.0), 0),
        # a read refreshes what it reads
        (
            EXACT,
            [prompt(HEAD, marks="h"), prompt(HEAD, marks="h", at=1800.0)],
            prompt(HEAD, marks="h", at=3600.0),
            2000,
        ),
        (
            CacheModel("openai-breakpoints", retention=1800.0, is_refreshed=False),
            [prompt(HEAD, marks="h"), prompt(HEAD, marks="h", at=1800.0)],
            prompt(HEAD, marks="h", at=3600.0),
            0,
        ),
        # markers: an entry is found up to three blocks before one
        (MARKED, [prompt(HEAD, marks="h")], prompt(HEAD, ONE, TWO, marks="b"), 2000),
        (MARKED, [prompt(HEAD, marks="h")], prompt(HEAD, ONE, TWO, ("c", 5), marks="c"), 0),
        (CacheModel("breakpoints"), [prompt(HEAD, marks="h")], prompt(HEAD, ONE, TWO, ("c", 5), marks="c"), 2000),
        (MARKED, [prompt(HEAD, marks="h")], prompt(HEAD, ONE), 0),
        # the longest prefix in blocks of 128
        (OPENAI, [prompt(HEAD, ONE)], prompt(HEAD, ONE, TWO), 2432),
        (CacheModel(), [prompt(HEAD, ONE)], prompt(HEAD, TWO), 2000),
        (CacheModel(is_used=False), [prompt(HEAD)], prompt(HEAD), 0),
        (CacheModel(), [], SimulatedPrompt([]), 0),
    ],
)
def test_what_is_read_follows_from_what_was_sent(
    model: CacheModel, earlier: list[SimulatedPrompt], sent: SimulatedPrompt, read: int
) -> None:
    assert read_after(model, earlier, sent) == read


def test_at_most_four_breakpoints_are_written_and_only_so_many_looked_at() -> None:
    names = "abcdef"
    long = prompt(*((name, 2000) for name in names), marks=names)
    cache = SimulatedCache(EXACT)
    assert cache.send(long) == CacheReads(0, 12_000)
    assert cache.send(prompt(("a", 2000), ("b", 2000), marks="ab")).read == 0
    assert cache.send(prompt(("a", 2000), ("b", 2000), ("c", 2000), marks="c")).read == 6000
    short = CacheModel("openai-breakpoints", lookback=1)
    assert read_after(short, [prompt(HEAD, marks="h")], prompt(HEAD, ONE, marks="ha")) == 0
    unlimited = SimulatedCache(CacheModel("openai-breakpoints"))
    unlimited.send(long)
    assert unlimited.send(prompt(("a", 2000), marks="a")) == CacheReads(2000, 0)
