"""Listings that come in pages, and their cursors."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.recorded.documents import cut_listing, make_cursor, read_cursor
from proxy.model.errors import BadRequest


def test_a_listing_is_cut_at_its_cursor() -> None:
    items = list(range(5))
    first = cut_listing("x", items, "", 2)
    assert (first.items, first.next) == ([0, 1], make_cursor("x", 2))
    assert cut_listing("x", items, first.next or "", 3).next is None
    assert cut_listing("x", items, make_cursor("x", 9), 3).items == []
    assert read_cursor("x", "", 7) == 7


@given(st.lists(st.integers(), max_size=30), st.integers(1, 31), st.integers(0, 9))
def test_pages_have_each_item_once_though_more_come_meanwhile(items: list[int], limit: int, more: int) -> None:
    found: list[int] = []
    cursor = ""
    for turn in range(40):
        page = cut_listing("x", items, cursor, limit)
        found += page.items
        if turn < more:
            items = [*items, turn]
        if page.next is None:
            break
        cursor = page.next
    assert found == items[: len(found)]
    assert len(found) >= len(items) - more


@given(st.integers(0, 2**63 - 1))
def test_a_cursor_leads_back_to_its_place(place: int) -> None:
    assert read_cursor("calls", make_cursor("calls", place)) == place


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", "=", "\xe9", "A" * 500, "calls 1", make_cursor("epochs", 1), make_cursor("calls", 2**63)),
        *(
            base64.urlsafe_b64encode(text).decode().rstrip("=")
            for text in (b"calls", b"calls -1", b"calls 1 ", b"\xff")
        ),
    ],
)
def test_a_cursor_that_is_none_or_of_another_listing_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor is what `next` of the page before says"):
        read_cursor("calls", cursor)
