"""Vectors in the index: which passages get one, that they are of these passages, and that a search compares them."""

import sqlite3
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.model.search import QueryVector, SearchQuery
from proxy.retrieval.vectors import PassageBatch, VectorBatch
from proxy.store.search import vectors
from proxy.store.search.indexer import Indexer
from proxy.store.search.reader import SearchIndex
from proxy.store.search.schema import find_index
from tests.store.search.test_indexer import index_all, write_work
from tests.support.embedding import WIDTH, encode
from tests.support.indexing import TENANT, LogBuilder, say

MODEL = "embedder"
TOLD = "We have bought a dog for the children."
ASKED = "puppy purchased children"


def make_vectors(batch: PassageBatch, width: int = WIDTH) -> VectorBatch:
    """Vectors of all passages of a batch."""
    codes = tuple([encode(each.text, width) for each in batch.passages])
    numbers = tuple([each.number for each in batch.passages])
    return VectorBatch(stamp=batch.stamp, since=batch.since, until=batch.until, numbers=numbers, codes=codes)


def embed_all(indexer: Indexer, session: str = "s1", model: str = MODEL) -> list[str]:
    """Give all passages of a session their vector; their texts."""
    texts: list[str] = []
    while (batch := indexer.list_passages(session, model)).until > batch.since:
        indexer.keep_vectors(session, model, make_vectors(batch))
        texts += [each.text for each in batch.passages]
    return texts


def write_talk(log: LogBuilder, *added: str, session: str = "s1", count: int = 30) -> None:
    """A session of many messages about nothing, and these."""
    texts = [f"Line {i} is about subject {i * 13} and nothing else." for i in range(count)]
    log.call([say(text) for text in (*texts, *added)], session=session)


async def search(log: LogBuilder, text: str = ASKED, *, model: str = MODEL, **changes: Any) -> list[str]:
    """The snippets that a search finds with a vector."""
    index = SearchIndex(log.path)
    query = SearchQuery(text=text, tenant=TENANT.hex(), vector=QueryVector(model, encode(text)), **changes)
    found = await index.search(query)
    await index.close()
    return [hit.snippet for hit in found.hits]


def test_what_is_said_gets_a_vector_and_what_tools_return_does_not(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log, steps=2)
    log.call([say("Repair it, please, and call it parser.")], session="s2")
    index_all(indexer)
    said = ["Repair the parser of s1, please.", "Let me look at file 0.", "Let me look at file 1."]
    assert embed_all(indexer) == [*said, "The parser is repaired."]
    assert indexer.list_passages("s1", MODEL).passages == ()
    assert (indexer.health.vectors, indexer.health.without_vectors) == (4, 0)
    assert embed_all(indexer, "s2") == ["Repair it, please, and call it parser."]


def test_batches_are_bounded_and_go_on_where_the_last_one_ended(
    log: LogBuilder, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_talk(log, count=10)
    index_all(indexer)
    monkeypatch.setattr(vectors, "MOST_PASSAGES", 3)
    first = indexer.list_passages("s1", MODEL)
    assert (len(first.passages), first.since, first.is_current) == (3, 0, True)
    assert first.left == 15  # each stands once more in the lane of users
    assert indexer.list_passages("s1", MODEL) == first  # nothing was kept
    indexer.keep_vectors("s1", MODEL, make_vectors(first))
    second = indexer.list_passages("s1", MODEL)
    assert (second.since, second.passages[0].text) == (first.until, "Line 3 is about subject 39 and nothing else.")
    monkeypatch.setattr(vectors, "MOST_CHARACTERS", 60)
    assert len(indexer.list_passages("s1", MODEL).passages) == 2
    monkeypatch.setattr(vectors, "MOST_LOOKED_AT", 1)
    assert indexer.list_passages("s1", MODEL).until == second.since + 1


def test_vectors_stay_over_a_restart(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log)
    index_all(indexer)
    embed_all(indexer)
    indexer.close()
    again = Indexer(log.path)
    try:
        write_talk(log, TOLD)
        index_all(again)
        assert embed_all(again) == [TOLD]
        assert again.health.vectors == 31
    finally:
        again.close()


def test_what_is_not_indexed_yet_is_told(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log)
    batch = indexer.list_passages("s1", MODEL)
    assert (batch.passages, batch.is_current) == ((), False)
    assert indexer.list_passages("unknown", MODEL).until == 0


def test_vectors_of_passages_that_have_other_numbers_now_are_dropped(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log, "the secret word")
    index_all(indexer)
    made = make_vectors(indexer.list_passages("s1", MODEL))
    log.erase("the secret word")
    index_all(indexer)
    indexer.keep_vectors("s1", MODEL, made)
    assert indexer.list_passages("s1", MODEL).since == made.since
    indexer.keep_vectors("s1", MODEL, made)
    assert indexer.health.vectors == 0
    assert "the secret word" not in embed_all(indexer)
    indexer.keep_vectors("s1", MODEL, made)
    assert indexer.health.vectors == 30


def test_erased_content_loses_its_vectors_and_is_not_sent(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log, "the secret word")
    index_all(indexer)
    embed_all(indexer)
    code = encode("the secret word")
    assert code in find_index(log.path).read_bytes() + read_wal(log)
    log.erase("the secret word")
    assert all(each.text != "the secret word" for each in indexer.list_passages("s1", "another").passages)
    index_all(indexer)
    embed_all(indexer)
    indexer.close()
    assert code not in find_index(log.path).read_bytes()


def test_a_session_that_is_taken_out_of_the_index_loses_its_vectors(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log, "the secret word", count=3)
    write_talk(log, session="s2", count=60)
    index_all(indexer)
    made = make_vectors(indexer.list_passages("s1", MODEL))
    embed_all(indexer)
    embed_all(indexer, "s2")
    log.erase("the secret word")
    index_all(indexer)
    assert indexer.health.vectors == 60
    indexer.keep_vectors("s1", MODEL, made)
    assert indexer.health.vectors == 60, "what was listed before does not fit"
    assert "the secret word" not in embed_all(indexer)
    assert indexer.health.vectors == 63


def test_another_model_begins_anew(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log)
    index_all(indexer)
    embed_all(indexer)
    made = make_vectors(indexer.list_passages("s1", MODEL))
    assert len(indexer.list_passages("s1", "another").passages) == 30
    assert indexer.health.vectors == 0
    indexer.keep_vectors("s1", MODEL, made)
    assert indexer.health.vectors == 0


def test_vectors_of_another_length_are_refused(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log)
    index_all(indexer)
    embed_all(indexer)
    write_talk(log, TOLD)
    index_all(indexer)
    batch = indexer.list_passages("s1", MODEL)
    problem = indexer.keep_vectors("s1", MODEL, make_vectors(batch, 256))
    assert problem == "vectors have 256 numbers, and others of embedder had 128; `palimpsest index --rebuild`"
    two = replace(make_vectors(batch), numbers=(1, 2), codes=(encode("a"), encode("a", 256)))
    assert indexer.keep_vectors("s1", MODEL, two)
    assert indexer.keep_vectors("s1", MODEL, make_vectors(batch)) == ""
    assert indexer.health.vectors == 31


def test_a_batch_that_cannot_be_kept_leaves_nothing(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log)
    index_all(indexer)
    batch = indexer.list_passages("s1", MODEL)
    other = sqlite3.connect(find_index(log.path))
    other.execute("CREATE TRIGGER refuse BEFORE INSERT ON vector BEGIN SELECT RAISE(ABORT, 'no'); END")
    other.close()
    with pytest.raises(sqlite3.IntegrityError):
        indexer.keep_vectors("s1", MODEL, make_vectors(batch))
    assert indexer.health.vectors == 0
    write_talk(log, TOLD)
    index_all(indexer)


async def test_other_words_of_the_same_sense_are_found(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log, TOLD)
    index_all(indexer)
    embed_all(indexer)
    asked = "puppy purchased"
    assert (await search(log, asked))[0] == TOLD
    assert await search(log, asked, model="another") == []
    index = SearchIndex(log.path)
    assert not (await index.search(SearchQuery(text=asked))).hits
    short = QueryVector(MODEL, encode(asked, 64))
    assert not (await index.search(SearchQuery(text=asked, vector=short))).hits
    await index.close()


async def test_only_what_may_be_seen_is_compared(log: LogBuilder, indexer: Indexer) -> None:
    write_talk(log, TOLD)
    write_talk(log, "The boat is in the harbour.", session="s2")
    index_all(indexer)
    embed_all(indexer)
    embed_all(indexer, "s2")
    assert (await search(log, "a puppy was purchased"))[0] == TOLD
    assert TOLD not in await search(log, "a puppy was purchased", sessions=("s2",))
    assert TOLD not in await search(log, "a puppy was purchased", roles=("assistant",))
    assert (await search(log, "which vessel", sessions=("s2",)))[0] == "The boat is in the harbour."


async def test_the_newest_sessions_are_compared_if_there_are_too_many(
    log: LogBuilder, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_talk(log, "The first boat is here.")
    write_talk(log, "The second boat is here.", session="s2")
    index_all(indexer)
    embed_all(indexer)
    embed_all(indexer, "s2")
    monkeypatch.setattr(vectors, "MOST_COMPARED", 20)
    found = await search(log, "which vessel")
    assert "The second boat is here." in found
    assert "The first boat is here." not in found


async def test_the_vector_of_a_query_is_asked_for_if_there_are_any(log: LogBuilder, indexer: Indexer) -> None:
    asked: list[str] = []

    async def embed(query: SearchQuery) -> QueryVector:
        asked.append(query.text)
        return QueryVector(MODEL, encode(query.text))

    write_talk(log, TOLD)
    index_all(indexer)
    index = SearchIndex(log.path, lambda: indexer.health, embed=embed)
    assert not (await index.search(SearchQuery(text="puppy purchased"))).hits
    assert asked == []
    embed_all(indexer)
    assert (await index.search(SearchQuery(text="puppy purchased"))).hits[0].snippet == TOLD
    assert asked == ["puppy purchased"]
    await index.close()


def read_wal(log: LogBuilder) -> bytes:
    path = find_index(log.path)
    return path.with_name(path.name + "-wal").read_bytes()
