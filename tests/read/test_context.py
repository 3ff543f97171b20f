"""Plans, epochs, reverts, pins, compactions, summaries and originals as documents."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from proxy.context.pricing import RevertPrice
from proxy.context.references import PAGE
from proxy.engine.compaction.manual import Compaction
from proxy.engine.context.epoch_admin import Pinned, Reversion
from proxy.model.epoch import Epoch, Kept, Original, Plan, Replaced, StoredOriginal, Summary, Written
from proxy.model.errors import NotFound
from proxy.read.context import (
    describe_compaction,
    describe_pinned,
    describe_plan,
    describe_reversion,
    find_bound,
    load_epoch,
    load_page,
    load_summaries,
    load_summary,
    order_summaries,
)
from tests.store.samples import make_condensed, make_leaf
from tests.support.contexts import make_epoch
from tests.support.fake_log import EXCHANGE, ROUND, FakeLog
from tests.support.summaries import make_summary

PLAN = Plan("x1", 0, "m", "epoch", "e1", "soft", "why not", 900, 300, 1000, 4.5, -2.5)
EDITS = (Written("ledger", 0, 4), Kept(0), Replaced(3, "gone", "tombstone"))
EPOCH = Epoch(
    *("e1", "abc1", "m", "", b"\x01" * 16, 4, "soft", "x1", 7, 900, 300, msgspec.json.encode(EDITS)),
    rendered=(b'{"n": 1e400}',),
    originals=(Original("r1", (b"d", b"e"), "chat_completions", 1, 50),),
)


def as_documents(found: object) -> list[Any]:
    """What a client gets."""
    documents: list[Any] = msgspec.json.decode(msgspec.json.encode(found))
    return documents


def as_document(found: object) -> Any:
    """The same of one."""
    return as_documents([found])[0]


class EpochLog(FakeLog):
    """Has one epoch, or one whose edits were erased."""

    epoch = EPOCH

    async def list_epochs(self, session: str) -> list[Epoch]:
        return [structs.replace(self.epoch, rendered=())]

    async def load_epoch(self, session: str, n: int) -> Epoch:
        if n != 1:
            raise NotFound(f"there is no epoch {n} of session {session}")
        return self.epoch


async def test_an_epoch_is_shown_with_its_edits_and_its_messages_as_they_were_sent() -> None:
    whole = await load_epoch(EpochLog(), "abc", 1)
    shown = as_document(msgspec.structs.replace(whole, rendered=[]))
    assert shown["edits"] == [
        {"edit": "written", "start": 0, "stop": 4, "text": "ledger"},
        {"edit": "kept", "place": 0},
        {"edit": "tombstone", "place": 3, "text": "gone"},
    ]
    assert shown["references"] == [{"id": "r1", "start": 1, "stop": 3, "offset": 50}]
    assert (shown["n"], shown["id"], shown["depth"], shown["tokens_before"]) == (1, "e1", 4, 900)
    assert msgspec.json.encode(whole.rendered) == b'[{"n": 1e400}]'
    assert shown["through"] == "01" * 16
    with pytest.raises(NotFound, match="no epoch 2 of session abc1; it has 1, counted from 1"):
        await load_epoch(EpochLog(), "abc", 2)


async def test_erased_edits_are_none() -> None:
    log = EpochLog()
    log.epoch = structs.replace(EPOCH, edits=b"")
    assert (await load_epoch(log, "abc", 1)).edits == []


def test_a_plan_has_all_that_was_decided() -> None:
    told = as_document(describe_plan(PLAN))
    assert told is not None
    assert (told["rung"], told["epoch"], told["tokens_client"], told["saving"]) == ("epoch", "e1", 900, -2.5)
    assert not {"exchange", "k"} & set(told)
    assert describe_plan(None) is None


@pytest.mark.parametrize(
    ("row", "bound"),
    [
        (EXCHANGE, 1034),
        (replace(EXCHANGE, rounds=(replace(ROUND, plan=PLAN),)), None),
        (replace(EXCHANGE, rounds=(replace(ROUND, plan=Plan("x1", 0, "m", "original")),)), 1034),
        (replace(EXCHANGE, rounds=()), 1034),
        (replace(EXCHANGE, kind="passthrough"), None),
        (replace(EXCHANGE, is_capped=True), None),
    ],
)
def test_what_was_not_counted_has_a_bound(row: object, bound: int | None) -> None:
    assert find_bound(row, b"0123456789") == bound  # type: ignore[arg-type]


def test_a_picture_has_no_bound() -> None:
    assert find_bound(EXCHANGE, b'{"type":"image_url"}') is None


def test_a_price_has_its_unit() -> None:
    reversion = Reversion(EPOCH, RevertPrice(once=10.0, each=-1.0, tokens=900, is_lasting=True), 300)
    told = as_document(describe_reversion(reversion, is_done=True))
    assert told == {
        "is_done": True,
        "epoch": "e1",
        "depth": 4,
        "tokens_now": 300,
        "tokens_then": 900,
        "price": {"once": 10.0, "each": -1.0, "unit": "tokens of uncached input"},
        "is_lasting": True,
    }
    assert describe_reversion(reversion, is_done=False).epoch is None


def test_a_pin_has_the_beginning_of_its_text() -> None:
    raw = b'{"role":"user","content":"%b"}' % (b"x" * 300)
    told = as_document(describe_pinned(Pinned(b"\x01", EXCHANGE, 4, raw, 75)))
    whole = {"node": "01", "exchange": 1, "place": 4, "role": "user", "text": "x" * 200, "tokens": 75, "price": None}
    assert told == whole
    assert as_document(describe_pinned(Pinned(b"\x01"))) == dict.fromkeys(told, None) | {"node": "01"}


LEAVES = (make_summary("a", 0, 4), make_summary("b", 4, 9))


def test_the_summary_that_was_made_last_is_told_and_each_message_counts_once() -> None:
    merged = structs.replace(make_summary("c", 0, 9, parents=("a", "b")), level=2)
    found = Compaction("s1", make_epoch("e1"), (*LEAVES, merged), 9500, 1200, ("x1", "x2"), 12.6, "it was slow")
    assert as_document(describe_compaction(found)) == {
        "session": "s1",
        "epoch": "e1",
        "summary": "c",
        "level": 2,
        "kind": "condensed",
        "messages_covered": 9,
        "tokens_before": 9000,
        "tokens_after": 2000,
        "ms": 1200,
        "calls": ["x1", "x2"],
        "cost_tokens": 13,
        "reason": "it was slow",
        "session_id": "s1",
        "summary_message_id": "c",
        "level_used": 2,
        "compacted_message_count": 9,
        "summary_token_count": merged.tokens,
        "elapsed_ms": 1200,
    }


def test_without_a_summary_and_an_epoch_all_stays_as_it_was() -> None:
    told = as_document(describe_compaction(Compaction("s1", None, (), 9500, 1, (), 0.0, "too little")))
    assert [told[name] for name in ("epoch", "summary", "level", "kind", "messages_covered")] == [None] * 4 + [0]
    assert (told["tokens_before"], told["tokens_after"]) == (9500, 9500)
    assert (told["level_used"], told["summary_message_id"], told["summary_token_count"]) == (3, None, 0)


def test_messages_of_several_summaries_are_added_up() -> None:
    for summaries, covered in ((LEAVES, 9), (LEAVES[1:], 5)):
        found = Compaction("s1", None, summaries, 9500, 1, (), 0.0, "")
        assert describe_compaction(found).messages_covered == covered


POOR = make_leaf("poor", [b"a", b"b"], level=3)
ONE, TWO = make_leaf("one", [b"a", b"b"], supersedes=["poor"]), make_leaf("two", [b"c"], 2)
BOTH = make_condensed("both", [ONE, TWO])
LATER = make_leaf("later", [b"d"], 3)
ALL = (POOR, ONE, LATER, TWO, BOTH)


async def test_a_summary_is_told_with_all_that_people_ask_of_it() -> None:
    told = structs.replace(ONE, files=("ref:a", "/b.py"), model="m", reason="too long", calls=("x2",), exchange="x1")
    (document,) = as_documents(await load_summaries(FakeLog(summaries=(told,)), "abc"))
    assert document == {
        **{"id": "one", "session": told.session, "kind": "leaf", "level": 1, "is_provisional": False},
        **{"start": 0, "stop": 2, "tokens": 3, "covered": 900, "parents": [], "supersedes": ["poor"]},
        **{"files": ["ref:a", "/b.py"], "model": "m", "reason": "too long", "exchange": "x1", "calls": ["x2"]},
        **{"made_ms": told.made_ms, "text": "what was done", "is_live": True},
    }


async def test_all_are_listed_and_it_is_told_which_still_count() -> None:
    log = FakeLog(summaries=ALL)
    found = as_documents(await load_summaries(log, "abc"))
    assert [(each["id"], each["is_live"]) for each in found] == [
        *(("poor", False), ("one", False), ("later", True), ("two", False), ("both", True))
    ]
    with pytest.raises(NotFound, match="no session begins"):
        await load_summaries(log, "zzz")


@pytest.mark.parametrize("name", ["two", "ref:two", " REF:Two "])
async def test_one_is_found_by_its_id(name: str) -> None:
    document = as_document(await load_summary(FakeLog(summaries=ALL), "abc", name))
    assert (document["id"], document["is_live"]) == ("two", False)


@pytest.mark.parametrize(
    ("summaries", "what"),
    [
        ((), "it has none"),
        (ALL, "the newest are both, two, later, one, poor$"),
        ((*ALL, *ALL), "the newest are both, two, later, one, poor$"),
    ],
)
async def test_an_error_says_which_there_are(summaries: tuple[Summary, ...], what: str) -> None:
    with pytest.raises(NotFound, match=what):
        await load_summary(FakeLog(summaries=summaries), "abc", "no")


async def list_tree(*summaries: Summary) -> list[tuple[str, int, str]]:
    """The tree of summaries, by their ids."""
    found = order_summaries(await load_summaries(FakeLog(summaries=summaries), "abc"))
    return [(summary.id, depth, status) for summary, depth, status in found]


async def test_each_stands_above_what_it_was_made_of() -> None:
    assert await list_tree(*ALL) == [
        ("both", 0, "live"),
        ("one", 1, "parent"),
        ("poor", 2, "superseded"),
        ("two", 1, "parent"),
        ("later", 0, "live"),
    ]


async def test_each_is_told_once_and_what_is_elsewhere_is_not() -> None:
    again = structs.replace(BOTH, id="again", supersedes=("both", "elsewhere"), parents=("one", "two"))
    assert [id for id, _, _ in await list_tree(*ALL, again)] == ["again", "one", "poor", "two", "both", "later"]
    assert await list_tree(BOTH) == [("both", 0, "live")]
    assert await list_tree() == []


NAME = "abcdefgh23"


class OriginalLog(FakeLog):
    """Knows one reference."""

    def __init__(self, *texts: str, offset: int = 0) -> None:
        super().__init__()
        self._raws = tuple(json.dumps({"role": "user", "content": text}).encode() for text in texts)
        self._offset = offset

    async def load_original(self, reference: str) -> StoredOriginal:
        if reference != NAME:
            raise NotFound(f"there is no reference {reference}")
        return StoredOriginal("abc1", Original(NAME, (), "chat_completions", 3, self._offset), self._raws)


@pytest.mark.parametrize("spelled", [NAME, f"ref:{NAME}", f" REF:{NAME.upper()} "])
async def test_a_reference_is_known_in_any_spelling(spelled: str) -> None:
    page = await load_page(OriginalLog("hello", "there"), spelled)
    assert page == ("abc1", "--- user\nhello\n\n--- user\nthere\n\n", 1, 1)


async def test_pages_join_to_the_whole_and_say_how_to_go_on() -> None:
    log = OriginalLog("é" * (2 * PAGE + 5))
    whole = await load_page(log, NAME, None)
    pages = [await load_page(log, NAME, number) for number in (1, 2, 3)]
    assert [page.pages for page in pages] == [3, 3, 3]
    assert "".join(page.text[:PAGE] for page in pages) == whole.text
    assert pages[0].text[PAGE:] == (
        f"\n[page 1 of 3 of ref:{NAME}; the next: `palimpsest expand {NAME} --page 2`"
        f" or GET /-/api/refs/{NAME}?page=2]\n"
    )
    assert "--page 3" in pages[1].text[PAGE:]
    assert len(pages[2].text) < PAGE
    assert whole.pages == 1


async def test_the_original_of_a_summary_begins_with_the_references_that_it_covers() -> None:
    class SummaryLog(OriginalLog):
        async def list_summaries(self, session: str) -> Sequence[Summary]:
            return [
                structs.replace(BOTH, id="other", files=("no",)),
                structs.replace(BOTH, id=NAME, files=("aa", "bb")),
            ]

    page = await load_page(SummaryLog("hello"), NAME)
    assert page.text == "--- references that the report covers\nref:aa\nref:bb\n\n--- user\nhello\n\n"


async def test_a_text_of_exactly_a_page_is_one() -> None:
    frame = len((await load_page(OriginalLog(""), NAME)).text) + 1
    page = await load_page(OriginalLog("x" * (PAGE - frame)), NAME)
    assert (len(page.text), page.pages) == (PAGE, 1)


async def test_it_begins_at_its_offset() -> None:
    assert (await load_page(OriginalLog("hello", offset=9), NAME)).text == "hello\n\n"
    assert (await load_page(OriginalLog("hello", offset=900), NAME)).text == ""


async def test_a_lone_surrogate_can_be_given_out() -> None:
    assert b"a?b" in (await load_page(OriginalLog("a\ud83db"), NAME)).content


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("zzzzzzzzzz", 1, "no reference zzzzzzzzzz; `palimpsest diff SESSION N` and GET"),
        ("short", 1, "'short' is no reference"),
        ("x" * 500, 1, "is no reference"),
        (NAME, 2, f"ref:{NAME} has 1 page, counted from 1, and no page 2"),
        (NAME, 0, "no page 0"),
    ],
)
async def test_what_is_not_there_is_told_with_what_to_do(name: str, number: int, told: str) -> None:
    with pytest.raises(NotFound) as error:
        await load_page(OriginalLog("hello"), name, number)
    assert told in str(error.value)
    assert len(str(error.value)) < 300
