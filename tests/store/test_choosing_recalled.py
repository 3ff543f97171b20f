from proxy.engine.ports import MOST_RECALLED, MOST_RECALLED_ROWS
from proxy.store.sqlite.lineage_queries import choose_recalled


def test_each_is_chosen_once_and_so_many_at_most() -> None:
    assert choose_recalled([3, 1, 3, 2, 1], lambda _: 1) == [3, 1, 2]
    assert choose_recalled(range(100), lambda _: 1) == list(range(MOST_RECALLED))


def test_the_first_two_are_chosen_whatever_their_size_and_others_as_far_as_they_fit() -> None:
    sizes = {"named": 10**6, "proven": 10**6, "half": MOST_RECALLED_ROWS // 2, "most": MOST_RECALLED_ROWS - 1, "1": 1}
    assert choose_recalled(sizes, sizes.__getitem__) == ["named", "proven", "half", "1"]
    sizes = {"named": 1, "proven": 1, "whole": MOST_RECALLED_ROWS, "more": 1}
    assert choose_recalled(sizes, sizes.__getitem__) == ["named", "proven", "whole"]
