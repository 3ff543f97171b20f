"""A history of which the client has cleared outputs is known again, and no other."""

from proxy.engine.managing.clearing import is_cleared
from tests.support.contexts import ask


def test_a_shorter_history_is_not_a_cleared_one() -> None:
    items = ask().chain.items
    assert is_cleared(items, items)
    assert not is_cleared(items, items[:-1])
