"""Archived steps in pages."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.context.original import PAGE
from proxy.context.pages import Page, cut_pages, merge_oldest
from proxy.context.survey import AgentStep


def steps(*sizes: int) -> list[AgentStep]:
    return [AgentStep(2 * i, 2 * i + 2, "step", True, size // 4, size, 1) for i, size in enumerate(sizes)]


def all_of(_: int) -> bool:
    return True


def test_steps_share_a_page_while_they_fit() -> None:
    assert cut_pages(steps(5000, 5000, 5000), all_of, 3) == [Page(0, 1, 0, 4), Page(2, 2, 4, 6)]


def test_a_step_above_a_page_has_several_that_overlap() -> None:
    offsets = [page.offset for page in cut_pages(steps(30_000), all_of, 1)]
    assert offsets == [0, PAGE - 200, 2 * (PAGE - 200)]


def test_steps_that_are_kept_part_pages_unless_they_are_small() -> None:
    assert cut_pages(steps(100, 5000, 100), {0, 2}.__contains__, 3) == [Page(0, 0, 0, 2), Page(2, 2, 4, 6)]
    assert cut_pages(steps(100, 500, 100), {0, 2}.__contains__, 3) == [Page(0, 2, 0, 6)]


def test_pages_of_what_was_there_stay_as_they_were() -> None:
    sizes = [4000, 9000, 100, 13_000, 700, 700]
    assert cut_pages(steps(*sizes), all_of, 4) == cut_pages(steps(*sizes), all_of, 6)[:4]


def test_too_many_pages_become_one_at_the_old_end() -> None:
    pages = [Page(i, i, i, i + 1) for i in range(5)]
    assert merge_oldest(pages, 3) == [Page(0, 2, 0, 3), pages[3], pages[4]]
    assert merge_oldest(pages, 5) == pages
    assert merge_oldest(pages, 0) == [Page(0, 4, 0, 5)]


@given(st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), max_size=20))
def test_every_character_of_an_archived_step_is_on_a_first_page(drawn: list[tuple[int, bool]]) -> None:
    made = steps(*(size for size, _ in drawn))
    pages = cut_pages(made, lambda i: drawn[i][1], len(made))
    begins = [sum(size for size, _ in drawn[:i]) for i in range(len(drawn) + 1)]
    spans = [(begins[page.first] + page.offset, begins[page.last + 1]) for page in pages]
    assert all(begin < end for begin, end in spans)
    covered = [(begin, min(end, begin + PAGE)) for begin, end in spans]
    for i, (size, is_archived) in enumerate(drawn):
        for at in range(begins[i], begins[i] + size, 997) if is_archived else ():
            assert any(begin <= at < end for begin, end in covered)
