"""A search finds what the index has, where the searcher may look, and answers any text."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from proxy.model.epoch import SourceNote
from proxy.model.errors import BadRequest, NotFound
from proxy.model.lineage import compute_chain_root, extend_chain
from proxy.model.search import SearchQuery
from proxy.read.search import LogSearch, SearchRequest
from proxy.store.search.indexer import Indexer
from proxy.store.search.reader import SearchIndex
from proxy.store.search.schema import LANES, find_index
from proxy.store.sqlite.reader import SqliteReader
from proxy.wire import FORMATS
from tests.store.search.test_indexer import copy_log, index_all, write_work
from tests.support.examples import examples
from tests.support.indexing import (
    OPENED_MS,
    OTHER_TENANT,
    TENANT,
    UPSTREAM,
    LogBuilder,
    ask_tool,
    read_message,
    reply,
    return_output,
    say,
)


@pytest.fixture
async def index(log: LogBuilder) -> AsyncIterator[SearchIndex]:
    """The index, as a server reads it."""
    made = SearchIndex(log.path, most_seconds=60.0)
    yield made
    await made.close()


async def find(index: SearchIndex, text: str, **where: Any) -> list[str]:
    """The snippets of what a search finds, in alphabetical order."""
    answer = await index.search(SearchQuery(text=text, **where))
    assert answer.is_complete
    return sorted(hit.snippet.strip() for hit in answer.hits)


def list_nodes(*messages: dict[str, Any]) -> list[bytes]:
    """The nodes of a history."""
    form = FORMATS["chat_completions"]
    return extend_chain(compute_chain_root(UPSTREAM), [form.reader.read_value(message).form for message in messages])


async def test_a_hit_tells_where_it_stands(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    answer = ask_tool("bash", {"command": "grep -rn zebra src"}, "call_1", "Let me look for it.")
    log.call([say("Where is the zebra?", name="Maria")], answer)
    log.call([say("Where is the zebra?", name="Maria"), read_message(answer), return_output("src/zoo.py:3: zebra = 1")])
    index_all(indexer)
    answered = await index.search(SearchQuery(text="zebra"))
    hits = {hit.kind: hit for hit in answered.hits if "zebra" in hit.snippet}
    assert answered.behind == 0
    assert (hits["message"].role, hits["message"].sender, hits["message"].tool) == ("user", "Maria", "")
    assert (hits["output"].role, hits["output"].tool, hits["output"].n) == ("tool", "bash", 2)
    assert (hits["arguments"].session, hits["arguments"].exchange, hits["arguments"].n) == ("s1", "e000001", 1)
    assert hits["output"].at_ms == OPENED_MS + 2000
    assert hits["message"].node == list_nodes(say("Where is the zebra?", name="Maria"))[0]
    assert "zebra = 1" in hits["output"].snippet


async def test_broadcasts_are_told_apart_by_the_name_of_their_message_or_by_what_their_request_told(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    said = [say("Zebras for all.", name="broadcast"), say("Zebras of ops.", name="broadcast-ops"), say("My zebras.")]
    log.call(said)
    name = log.call([*said, say("Zebras of build.")])
    log.add(SourceNote("s1", name, log.last, "broadcast:build"))
    index_all(indexer)
    hits = (await index.search(SearchQuery(text="zebras", kinds=("broadcast",)))).hits
    found = {(hit.snippet, hit.sender, hit.role) for hit in hits}
    assert found == {
        ("Zebras for all.", "", "user"),
        ("Zebras of ops.", "ops", "user"),
        ("Zebras of build.", "build", "user"),
    }
    assert await find(index, "zebras", kinds=("message",)) == ["My zebras."]
    entry = await index.find_entry(next(hit.reference for hit in hits if hit.sender == "build"))
    assert entry is not None
    assert (entry.sender, entry.kind) == ("build", "broadcast")


async def test_a_reference_of_a_hit_leads_to_the_whole_entry(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    long = "The zebra lives here. " + "Nothing to see. " * 400
    log.call([say(long)])
    index_all(indexer)
    (hit,) = (await index.search(SearchQuery(text="zebra"))).hits
    entry = await index.find_entry(hit.reference)
    assert entry is not None
    assert entry.text == long
    assert (entry.reference, entry.tenant, entry.session, entry.node) == (
        hit.reference,
        TENANT.hex(),
        "s1",
        hit.node,
    )
    assert await index.find_entry("aaaaaaaaaa") is None
    assert await index.find_entry("no reference") is None
    assert await index.find_entry("\u0661234567890") is None


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({}, ["command: ls zebra", "zebra asked", "zebra elsewhere", "zebra foreign", "zebra listed"]),
        ({"tenant": OTHER_TENANT.hex()}, ["zebra foreign"]),
        ({"tenant": "ff" * 16}, []),
        ({"tenant": "no digits"}, []),
        ({"tenant": TENANT.hex(), "sessions": ("s3",)}, []),
        ({"sessions": ("s1", "s2")}, ["command: ls zebra", "zebra asked", "zebra elsewhere", "zebra listed"]),
        ({"sessions": ()}, []),
        ({"sessions": (*[f"many{i}" for i in range(20)], "s2")}, ["zebra elsewhere"]),
        ({"roles": ("tool",)}, ["zebra listed"]),
        ({"kinds": ("message",), "sessions": ("s1",)}, ["zebra asked"]),
        ({"tools": ("bash",)}, ["command: ls zebra", "zebra listed"]),
        ({"since_ms": OPENED_MS + 3000}, ["zebra elsewhere", "zebra foreign"]),
        ({"until_ms": OPENED_MS + 2000}, ["command: ls zebra", "zebra asked"]),
        ({"limit": 1, "sessions": ("s2",)}, ["zebra elsewhere"]),
    ],
)
async def test_a_search_is_limited_to_where_one_looks(
    log: LogBuilder, indexer: Indexer, index: SearchIndex, where: dict[str, Any], found: list[str]
) -> None:
    answer = ask_tool("bash", {"command": "ls zebra"})
    log.call([say("zebra asked")], answer)
    log.call([say("zebra asked"), read_message(answer), return_output("zebra listed")])
    log.call([say("zebra elsewhere")], session="s2")
    log.call([say("zebra foreign")], session="s3", tenant=OTHER_TENANT)
    for i in range(20):
        log.call([say("a horse")], session=f"many{i}")
    index_all(indexer)
    assert await find(index, "zebra", **where) == found


async def test_only_the_history_of_a_request_is_found_and_nothing_in_its_view(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    first, left, right = say("a zebra at first"), say("the left zebra"), say("the right zebra")
    log.call([first, left])
    log.call([first, right])
    index_all(indexer)
    one, two = list_nodes(first, left)
    assert await find(index, "zebra", within=frozenset((one, two))) == ["a zebra at first", "the left zebra"]
    assert await find(index, "zebra", within=frozenset()) == []
    assert await find(index, "zebra", visible=frozenset((one,))) == ["the left zebra", "the right zebra"]


async def test_a_message_that_came_again_stands_for_both_nodes(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    rule = say("The zebra is never fed. " * 20)
    log.call([say("one"), read_message(reply("ok")), rule])
    log.call([rule, say("and after it was compacted")])
    index_all(indexer)
    early, late = list_nodes(say("one"), read_message(reply("ok")), rule)[-1], list_nodes(rule)[0]
    for node in (early, late):
        assert len(await find(index, "zebra", within=frozenset((node,)))) == 1
        assert not any("zebra" in text for text in await find(index, "zebra", visible=frozenset((node,))))


async def test_what_is_not_indexed_yet_is_counted(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    log.call([say("a zebra")])
    index_all(indexer)
    log.call([say("a zebra"), say("another zebra")], reply("yes"))
    answer = await index.search(SearchQuery(text="zebra"))
    assert (len(answer.hits), answer.behind) == (1, 2)


async def test_erased_content_is_not_found_even_before_it_is_removed(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    log.call([say("a zebra"), say("a striped zebra")])
    index_all(indexer)
    log.erase("striped")
    assert await find(index, "zebra") == ["a zebra"]
    index_all(indexer)
    assert await find(index, "zebra") == ["a zebra"]


async def test_what_is_left_of_a_session_with_erased_content_is_found_at_its_new_place(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    write_work(log, 20, "s2")
    log.call([say("a striped zebra"), say("a plain horse"), say("a zebra")])
    index_all(indexer)
    assert await find(index, "zebra") == ["a striped zebra", "a zebra"]
    log.erase("striped")
    index_all(indexer)
    file = find_index(log.path).stat().st_ino
    assert await find(index, "zebra") == ["a zebra"]
    assert await find(index, "horse") == ["a plain horse"]
    assert find_index(log.path).stat().st_ino == file


async def test_without_an_index_nothing_is_found(log: LogBuilder, index: SearchIndex) -> None:
    log.call([say("a zebra")])
    answer = await index.search(SearchQuery(text="zebra"))
    assert (answer.hits, answer.is_complete) == ((), False)
    assert await index.find_entry("aaaaaaaaaa") is None
    assert "there is no index yet" in (await index.look()).fault


async def test_an_index_that_is_made_anew_is_read_anew(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    log.call([say("a zebra")])
    index_all(indexer)
    assert await find(index, "zebra") == ["a zebra"]
    indexer.rebuild()
    assert await find(index, "zebra") == []
    index_all(indexer)
    assert await find(index, "zebra") == ["a zebra"]
    assert (await index.look()).behind == 0


async def test_an_index_of_another_log_is_not_read(
    log: LogBuilder, tmp_path: Path, indexer: Indexer, index: SearchIndex
) -> None:
    write_work(log)
    index_all(indexer)
    other = LogBuilder(tmp_path / "other.db")
    other.call([say("a zebra")])
    foreign = Indexer(other.path)
    index_all(foreign)
    foreign.close()
    indexer.close()
    (tmp_path / "other-index.db").replace(tmp_path / "index.db")
    assert not (await index.search(SearchQuery(text="zebra"))).is_complete
    other.close()


async def test_the_time_is_limited(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log)
    index_all(indexer)
    hasty = SearchIndex(log.path, most_seconds=0.0)
    assert not (await hasty.search(SearchQuery(text="parser file command"))).is_complete
    await hasty.close()


@given(st.text(max_size=60), st.text(max_size=60))
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_text_is_a_query(tmp_path_factory: pytest.TempPathFactory, text: str, context: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    if not folder.exists():
        folder.mkdir()
        log = LogBuilder(folder / "log.db")
        write_work(log)
        indexer = Indexer(log.path)
        index_all(indexer)
        indexer.close()
        log.close()

    async def look() -> None:
        index = SearchIndex(folder / "log.db")
        for query in (text, f"parser {text}", f'"{text}" OR parser*', text[::-1] + "\0"):
            await index.search(SearchQuery(text=query, context=context))
        await index.close()

    asyncio.run(look())


async def test_lines_of_a_long_entry_are_found_wherever_they_stand(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    filler = "\n".join(f"nothing of interest in line {i}" for i in range(400))
    log.call([say(f"the first zebra stands here\n{filler}\nthe Zebras end here")])
    index_all(indexer)
    (found,) = await find(index, "zebra", tokens=60)
    lines = found.split("\n")
    assert lines[0] == "the first zebra stands here"
    assert "the Zebras end here" in lines
    assert "\N{HORIZONTAL ELLIPSIS}" in lines  # what was left out between them


async def test_the_most_frequent_words_are_left_out_among_many_passages(
    log: LogBuilder, indexer: Indexer, index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.store.search.postings.BUDGETS", dict.fromkeys(LANES, 6))
    log.call([say(f"a horse and its foal, number {i}") for i in range(20)] + [say("a horse saw the zebra")])
    index_all(indexer)
    answer = await index.search(SearchQuery(text="horse foal zebra", limit=3))
    assert answer.hits[0].snippet == "a horse saw the zebra"
    assert answer.is_complete


async def test_no_line_is_told_that_the_searcher_sees(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    log.call([say("The zebra is striped.\nThe zebra is in the yard.")], reply("Good."))
    index_all(indexer)
    (found,) = await find(index, "zebra", tokens=100, roles=("user",))
    assert found == "The zebra is striped.\nThe zebra is in the yard."
    (found,) = await find(index, "zebra", tokens=100, roles=("user",), seen=("Look:\n  The zebra  is striped.",))
    assert found == "The zebra is in the yard."


async def test_a_branch_is_searched_by_itself_with_its_last_response(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    asked, left, right = say("Where is the zebra?"), reply("A zebra to the left."), reply("A zebra to the right.")
    log.call([asked], left)
    log.call([asked, read_message(left), say("Which zebra?")], reply("The left zebra."))
    tip = list_nodes(asked, read_message(left), say("Which zebra?"))[-1]
    log.call([asked, read_message(right), say("What zebra?")], reply("The right zebra."))
    index_all(indexer)
    reader = SqliteReader(log.path)
    wanted = SearchRequest("zebra", session="s1", branch=tip.hex()[:8])
    found = await LogSearch(reader, index).search(wanted, OPENED_MS)
    assert sorted(hit.snippet for hit in found.hits) == [
        "A zebra to the left.",
        "The left zebra.",
        "Where is the zebra?",
        "Which zebra?",
    ]
    with pytest.raises(BadRequest, match="name that, too"):
        await LogSearch(reader, index).search(SearchRequest("zebra", branch=tip.hex()[:8]), OPENED_MS)
    with pytest.raises(NotFound, match="no branch begins with"):
        await LogSearch(reader, index).search(SearchRequest("zebra", session="s1", branch="00"), OPENED_MS)
    await reader.close()


async def test_what_somebody_said_is_found_up_to_a_time(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    log.call([say("Zebra one.", name="Maria")], at_ms=OPENED_MS)
    log.call([say("Zebra two.", name="Maria")], at_ms=OPENED_MS + 3_600_000, session="s2")
    log.call([say("Zebra three.", name="Tom")], at_ms=OPENED_MS, session="s3")
    index_all(indexer)
    reader = SqliteReader(log.path)
    wanted = SearchRequest("zebra", sender="Maria, Eve")
    found = await LogSearch(reader, index).search(wanted, OPENED_MS)
    assert {hit.snippet for hit in found.hits} == {"Zebra one.", "Zebra two."}
    found = await LogSearch(reader, index).search(
        msgspec.structs.replace(wanted, until="1h"), OPENED_MS + 2 * 3_600_000
    )
    assert {hit.snippet for hit in found.hits} == {"Zebra one."}
    await reader.close()


async def test_a_file_that_was_read_again_is_found_once(log: LogBuilder, indexer: Indexer, index: SearchIndex) -> None:
    lines = [f"line {n} of the settings: option_{n} = zebra" for n in range(40)]
    history: list[dict[str, Any]] = [say("Read it.")]
    for n, text in enumerate((lines, [*lines[:39], "changed"], lines[5:20])):
        answer = ask_tool("read", {"path": "settings.py", "offset": n}, f"call_{n}", "")
        log.call(history, answer)
        history = [*history, read_message(answer), return_output("\n".join(text), f"call_{n}")]
    log.call(history)
    index_all(indexer)
    outputs = [hit for hit in (await index.search(SearchQuery(text="zebra"))).hits if hit.kind == "output"]
    assert len(outputs) == 1
    filled = await index.search(SearchQuery(text="changed", tokens=2_000))
    assert any("changed" in hit.snippet for hit in filled.hits), "who fills a prompt is told each line once"


async def test_a_log_without_notes_of_sources_is_searched(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    """An index may be asked for beside a log of an earlier version."""
    log.call([say("My zebras.")])
    log.connection.execute("DROP TABLE source")
    index_all(indexer)
    assert await find(index, "zebras") == ["My zebras."]


async def test_a_copy_without_its_index_has_none(log: LogBuilder, tmp_path: Path, indexer: Indexer) -> None:
    write_work(log)
    index_all(indexer)
    copied = SearchIndex(copy_log(log, tmp_path / "copy"))
    assert (await copied.search(SearchQuery(text="parser"))).hits == ()
    await copied.close()


async def test_a_phrase_comes_before_texts_that_have_its_words_more_often(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    sentence = "Please keep the old handler name in every module."
    history: list[dict[str, Any]] = [say(sentence)]
    for n in range(60):
        answer = ask_tool("bash", {"command": f"cat module{n}.py"}, f"call_{n}", "")
        log.call(history, answer)
        lines = [f"module {n} handler {n}", "keep name old", "every old name", "handler handler name module"]
        history = [*history, read_message(answer), return_output("\n".join(lines), f"call_{n}")]
    log.call(history)
    index_all(indexer)
    for query in (f'"{sentence}"', sentence, '"keep the old handler name"', 'module "OLD handler name"'):
        found = await index.search(SearchQuery(text=query))
        assert found.hits[0].snippet.strip() == sentence, query


async def test_what_was_said_comes_before_an_output_with_the_same_phrase(
    log: LogBuilder, indexer: Indexer, index: SearchIndex
) -> None:
    answer = ask_tool("bash", {"command": "grep zebra"}, "call_1", "")
    log.call([say("the striped zebra")], answer)
    log.call([say("the striped zebra"), read_message(answer), return_output("zoo.py: a striped zebra, striped zebra")])
    log.call([say("something else")], reply("a striped zebra of mine"))
    index_all(indexer)
    found = await index.search(SearchQuery(text='"striped zebra"'))
    assert [hit.role for hit in found.hits if "striped" in hit.snippet][-1] == "tool"
