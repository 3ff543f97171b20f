"""A view is a value; nothing is pinned and no epoch holds unless it is said."""

import pytest

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.view import Seen, View
from proxy.model.shapes import Shape
from proxy.model.told import Told

SEEN = Seen(Told("user", "hello"), Shape("user"), 3)


def test_a_view_of_a_fresh_conversation_has_only_its_messages() -> None:
    budget = make_budget(128_000, 8192, 1000, BudgetPolicy())
    view = View((SEEN, SEEN), 40, budget, lambda start, stop, offset: f"r{start}-{stop}-{offset}")
    assert (view.pinned, view.frozen) == (frozenset(), None)
    assert view.name(0, 2, 5) == "r0-2-5"
    assert sum(seen.tokens for seen in view.messages) + view.head == 46


def test_what_was_seen_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SEEN.tokens = 4  # type: ignore[misc]
    assert Seen(Told("user", "hello"), Shape("user"), 3) == SEEN
