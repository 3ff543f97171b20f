"""Counting messages: each once, off the loop."""

import gc
import threading
import tracemalloc

import pytest

from proxy.context.model_catalog import Encoding
from proxy.engine.token_counter import Measured, MeasureJob, Piece, TokenCounter, measure
from proxy.model.messages import Medium
from tests.support.managing import QuarterTokens


class Words:
    """One token a word; keeps what it counted, and in which thread."""

    def __init__(self, *, is_estimate: bool = False, is_loaded: bool = False) -> None:
        self.is_loaded = is_loaded
        self.counted: list[tuple[str, Encoding]] = []
        self.threads: set[int] = set()
        self._is_estimate = is_estimate

    def is_ready(self, encoding: Encoding) -> bool:
        return self.is_loaded

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        self.counted.append((text, encoding))
        self.threads.add(threading.get_ident())
        return len(text.split()), self._is_estimate


def make_piece(name: str, words: int = 1) -> Piece:
    return Piece(name.encode(), b'{"content":"%s"}' % b" ".join([name.encode()] * words))


async def test_a_message_is_counted_once() -> None:
    words = Words()
    counting = TokenCounter(words)
    first = await counting.count("gpt-4o", [make_piece("a", 5), make_piece("b", 6)])
    assert (first.tokens, first.is_estimate) == ((8, 9), False)
    more = await counting.count("gpt-5", [make_piece(name, 5) for name in "abca"])
    assert more.tokens == (8, 9, 8, 8)
    assert [text.split()[0] for text, _ in words.counted] == ["a", "b", "c"]


@pytest.mark.parametrize(("is_loaded", "words"), [(False, 1), (True, 5000)], ids=["not loaded", "long"])
async def test_what_takes_its_time_is_counted_in_another_thread(is_loaded: bool, words: int) -> None:
    tokenizer = Words(is_loaded=is_loaded)
    await TokenCounter(tokenizer).count("gpt-4o", [make_piece("a", words)])
    assert tokenizer.threads
    assert threading.get_ident() not in tokenizer.threads


async def test_a_short_message_is_counted_where_it_is() -> None:
    tokenizer = Words(is_loaded=True)
    await TokenCounter(tokenizer).count("gpt-4o", [make_piece("a", 2000), make_piece("b", 2000)])
    assert tokenizer.threads == {threading.get_ident()}


async def test_short_messages_that_are_long_together_are_counted_in_another_thread() -> None:
    tokenizer = Words(is_loaded=True)
    await TokenCounter(tokenizer).count("gpt-4o", [make_piece(name, 2000) for name in "abc"])
    assert threading.get_ident() not in tokenizer.threads


async def test_what_is_known_needs_no_thread() -> None:
    counting = TokenCounter(Words())
    await counting.count("gpt-4o", [make_piece("a")])
    with pytest.raises(StopIteration) as done:
        counting.count("gpt-4o", [make_piece("a")]).send(None)
    assert done.value.value.tokens == (4,)


async def test_another_encoding_counts_anew() -> None:
    words = Words()
    counting = TokenCounter(words)
    for model in ("gpt-4o", "gpt-4", "claude-x"):
        await counting.count(model, [make_piece("a")])
    assert [encoding for _, encoding in words.counted] == ["o200k_base", "cl100k_base"]


async def test_an_estimate_says_so() -> None:
    counting = TokenCounter(Words(is_estimate=True))
    assert [(await counting.count("gpt-4o", [make_piece("a")])).is_estimate for _ in range(2)] == [True, True]


async def test_media_count_by_the_models_own_rule() -> None:
    image = Piece(b"i", b'{"content":[{"type":"image_url","image_url":{"url":"https://x"}}]}')
    counting = TokenCounter(Words())
    found = [(await counting.count(model, [image])).tokens for model in ("gpt-4o", "claude-x")]
    assert found == [(3 + 1445,), (3 + 1600,)]


async def test_tools_count_by_their_rule() -> None:
    tools = Piece(b"t", b'[{"type":"function","function":{"name":"f","parameters":{}}}]', is_tools=True)
    counting = TokenCounter(Words())
    found = [(await counting.count(model, [tools])).tokens for model in ("gpt-4o", "claude-x", "qwen3", "gpt-4o")]
    assert found == [(1 + 7 + 12,), (1 + 346,), (1,), (1 + 7 + 12,)]  # of others the JSON, which has no white space


async def test_the_oldest_are_forgotten_first() -> None:
    words = Words()
    counting = TokenCounter(words, most=2)
    for name in "abacab":
        await counting.count("gpt-4o", [make_piece(name)])
    assert [text for text, _ in words.counted] == ["a", "b", "c", "b"]


async def test_a_message_that_was_counted_takes_no_more_memory_than_is_said() -> None:
    counting = TokenCounter(QuarterTokens())
    await counting.count("gpt-4o", [make_piece("a", 1000)])
    tracemalloc.start()
    gc.collect()  # what other tests left is not ours
    before = tracemalloc.get_traced_memory()[0]
    for start in range(0, 8192, 64):
        await counting.count("gpt-4o", [make_piece(f"{number:032}", 50) for number in range(start, start + 64)])
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken < 8192 * 200  # 177 each, and what coverage takes; they were 233


async def test_more_pieces_than_are_remembered_are_counted_all_the_same() -> None:
    found = await TokenCounter(Words(), most=1).count("gpt-4o", [make_piece(name) for name in "abc"])
    assert found.tokens == (4, 4, 4)


async def test_other_families_differ_by_a_ratio_learned_from_usage() -> None:
    counting = TokenCounter(Words())
    [ours] = (await counting.count("claude-x", [make_piece("a", 997)])).tokens
    assert ours == 1000
    assert counting.find_ratio("main", "claude-x").apply(ours) == 1150
    for _ in range(60):
        counting.learn("main", "claude-x", ours, 1300)
    assert counting.find_ratio("main", "claude-x").apply(ours) == 1300
    assert counting.find_ratio("other", "claude-x").apply(ours) == 1150
    assert (await counting.count("claude-x", [make_piece("a", 997)])).tokens == (1000,)


def test_ratios_are_bounded_in_number() -> None:
    counting = TokenCounter(Words())
    for number in range(1025):
        counting.learn("main", f"m{number}", 1000, 2000)
    guessed = counting.find_ratio("main", "nobody")
    assert counting.find_ratio("main", "m0") == guessed
    assert counting.find_ratio("main", "m1") != guessed


async def test_messages_without_hashes_are_tallied_as_the_others() -> None:
    words = Words()
    counting = TokenCounter(words)
    piece = make_piece("a", 5)
    assert await counting.count_messages("gpt-4o", [piece.raw, piece.raw]) == (8, 8)
    assert await counting.count_messages("gpt-4o", [piece.raw]) == (8,)
    assert len(words.counted) == 1


class ByModel(Words):
    """A tokenizer that counts one more for each letter of the model's name; the worker measures by it, too."""

    def __init__(self, *, is_starting: bool = False) -> None:
        super().__init__()
        self.is_starting = is_starting
        self.jobs: list[MeasureJob] = []

    def count(self, text: str, encoding: Encoding, model: str = "") -> tuple[int, bool]:
        return super().count(text, encoding)[0] + len(model), False

    async def measure(self, job: MeasureJob) -> list[Measured]:
        self.jobs.append(job)
        return measure(job, self)


async def test_a_tokenizer_that_goes_by_the_model_counts_for_each() -> None:
    words = ByModel()
    counting = TokenCounter(words, worker=words, is_by_model=True)
    short, long = make_piece("a", 5), make_piece("b", 50_000)
    for piece, tokens in ((short, 8), (long, 50_003)):
        for _ in range(2):
            assert (await counting.count("m", [piece])).tokens == (tokens + 1,)
            assert (await counting.count("claude", [piece])).tokens == (tokens + 6,)
            assert counting.count_now("claude", [piece]).tokens == (tokens + 6,)
    assert (len(words.counted), [job.model for job in words.jobs]) == (4, ["m", "claude"])
    _, tokens_of = await counting.measure("chat_completions", "claude", [long.raw])
    assert tokens_of == (50_009,)
    assert counting.count_now("claude", [long]).tokens == (50_009,)
    assert counting.find_ratio("main", "claude").apply(100) == 100


async def test_a_worker_that_is_being_started_is_not_waited_for() -> None:
    words = ByModel(is_starting=True)
    counting = TokenCounter(words, worker=words)
    long = make_piece("b", 50_000)
    assert (await counting.count("gpt-4o", [long])).tokens == (50_003,)
    assert (await counting.measure("chat_completions", "claude", [long.raw]))[1] == (50_003,)
    assert words.jobs == []
    words.is_starting = False
    assert (await counting.count("gpt-4o", [make_piece("c", 50_000)])).tokens == (50_003,)
    assert len(words.jobs) == 1


async def test_otherwise_models_share_what_the_worker_measures() -> None:
    words = ByModel()
    counting = TokenCounter(words, worker=words)
    for model in ("gpt-4o", "claude"):
        assert (await counting.count(model, [make_piece("b", 50_000)])).tokens == (50_003,)
    assert [job.model for job in words.jobs] == [""]


FILE, PICTURE = Medium("document", reference="file-1"), Medium("image", reference="https://e.example/a.png")


@pytest.mark.parametrize(
    ("media", "most", "sizes", "total"),
    [
        ([FILE], 10_500, [10_000], 10_500),
        ([FILE], 300, [0], 500),  # less than the rest alone: our count of that is too high
        ([FILE, Medium("document", reference="file-2")], 10_500, [5_000, 5_000], 10_500),
        ([PICTURE], 700, [200], 700),
        ([PICTURE], 9_000, [1445], 1_945),  # the most that its provider counts for an image
        ([FILE, PICTURE], 10_500, [8_555, 1445], 10_500),
        ([FILE, FILE], 10_500, [5_000, 5_000], 10_500),
    ],
)
async def test_the_sizes_of_media_by_reference_are_what_a_request_has_beside_the_rest(
    media: list[Medium], most: int, sizes: list[int], total: int
) -> None:
    counter = TokenCounter(Words())
    guesses = sum(2_000 if each.kind == "document" else 1445 for each in media)
    assert counter.learn_sizes("up", "gpt-4o", media, 500 + guesses, most) == total
    assert [counter.find_size("up", "gpt-4o", each.reference) for each in media] == sizes
    assert counter.find_size("other", "gpt-4o", media[0].reference) is None


async def test_learned_sizes_count_for_their_upstream_and_model_alone() -> None:
    counter = TokenCounter(Words())
    raw = b'{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}},{"type":"text","text":"Read this."}]}'
    piece = Piece(b"file", raw)
    (guessed,) = (await counter.count("gpt-4o", [piece], "up")).tokens
    counter.learn_sizes("up", "gpt-4o", [FILE], guessed, guessed + 5_000)
    assert (await counter.count("gpt-4o", [piece], "up")).tokens == (guessed + 5_000,)
    assert counter.count_now("gpt-4o", [piece], "up").tokens == (guessed + 5_000,)
    assert (await counter.measure("chat_completions", "gpt-4o", [raw], "up"))[1] == (guessed + 5_000,)
    assert (await counter.count("gpt-4o", [piece])).tokens == (guessed,)
    assert (await counter.count("gpt-5", [piece], "up")).tokens == (guessed,)
