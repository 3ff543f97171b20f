"""Originals in pages."""

import json

import pytest

from proxy.context.references import PAGE
from proxy.engine.reports.context import load_page
from proxy.model.epoch import Original, StoredOriginal
from proxy.model.errors import NotFound
from tests.support.fake_log import FakeLog

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
    assert page == (NAME, "abc1", "--- user\nhello\n\n--- user\nthere\n\n", 1, 1)


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
