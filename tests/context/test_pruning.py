"""Outputs that something newer has overtaken."""

import msgspec

from proxy.context.eviction import cut_words
from proxy.context.findings import study
from proxy.context.policy import BuilderPolicy
from proxy.context.pruning import measure_gain, prune
from proxy.context.survey import survey
from tests.support.views import Message, act, count, user, view

BIG = "some words that fill an output; " * 80
TOKENS = count(BIG)
NEWEST = [message for i in range(9) for message in act(f"n{i}", f"cat new_{i}", f"{i} {BIG}")]
OVERTAKEN = [*act("1", "cat a", f"old {BIG}"), *act("2", "cat a", f"new {BIG}")]


def find(
    old: list[Message],
    policy: BuilderPolicy | None = None,
    ceiling: int = 10_000,
    pinned: tuple[int, ...] = (),
    spared: int = 3,
) -> list[int]:
    """Places that give way among all steps but so many of the newest."""
    policy = policy or BuilderPolicy()
    seen = view([user("go"), *old, *NEWEST], ceiling, 0, pinned)
    surveyed = survey(seen, policy, study)
    return sorted(prune(seen, surveyed, policy, range(len(surveyed.steps) - spared), count))


def test_what_was_asked_again_or_stands_again_goes_and_the_newest_copy_stays() -> None:
    assert find(OVERTAKEN) == [2]
    assert find([*act("1", "cat a", BIG), *act("2", "cat b", BIG)]) == [2]
    assert find([*act("1", "cat a", BIG), *act("2", "cat b", BIG), *act("3", "cat b", f"new {BIG}")]) == [4]
    assert find(act("1", "cat a", BIG)) == []


def test_an_error_goes_where_the_same_succeeded_later_with_other_options() -> None:
    failed = f"<returncode>1</returncode>\nerror: {BIG}"
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest a", BIG)]) == [2]
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest b", BIG)]) == []
    assert find([*act("1", "pytest -x a", failed), *act("2", "pytest a", f"{failed}again")]) == []
    assert find([*act("1", "pytest a", BIG), *act("2", "pytest -x a", failed)]) == []
    assert find([*act("1", "pytest -x a", BIG), *act("2", "pytest a", f"again {BIG}")]) == []


def test_the_newest_outputs_stay_and_the_measure_follows_the_budget() -> None:
    loose = BuilderPolicy(minimum_tokens=1)
    assert find(OVERTAKEN, loose) == [2]
    assert find(OVERTAKEN, loose, ceiling=100_000) == []
    assert find(OVERTAKEN, BuilderPolicy(minimum_tokens=1, protect_tokens=9 * TOKENS), ceiling=100_000) == [2]
    assert find(OVERTAKEN, BuilderPolicy(minimum_tokens=1, protect_tokens=11 * TOKENS), ceiling=100_000) == []


def test_nothing_goes_unless_enough_goes_together() -> None:
    loose = BuilderPolicy(protect_tokens=0)
    thrice = [*OVERTAKEN, *act("3", "cat a", f"newer {BIG}")]
    assert find(OVERTAKEN, loose, ceiling=20_000) == []
    assert find(thrice, loose, ceiling=20_000) == [2, 4]
    assert find(thrice, loose, ceiling=40_000) == []
    assert find(thrice, BuilderPolicy(protect_tokens=0, minimum_tokens=1000), ceiling=40_000) == [2, 4]
    assert find(thrice, BuilderPolicy(protect_tokens=0, minimum_tokens=1300), ceiling=40_000) == []


def test_pins_protected_tools_and_small_outputs_stay() -> None:
    assert find(OVERTAKEN, pinned=(1,)) == []
    assert find(OVERTAKEN, BuilderPolicy(protected_tools=("shell",))) == []
    small = "word; " * 62
    assert find([*act("1", "ls", small), *act("2", "ls", "others"), *OVERTAKEN]) == [6]
    assert find([*act("1", "ls", small * 2), *act("2", "ls", "others"), *OVERTAKEN]) == [2, 6]


def test_it_can_be_turned_off_and_touches_no_other_steps() -> None:
    assert find(OVERTAKEN, BuilderPolicy(is_pruning=False)) == []
    assert find(OVERTAKEN, spared=10) == [2]
    assert find(OVERTAKEN, spared=11) == []


def test_a_gain_is_what_a_marker_saves() -> None:
    seen = view([user("go"), *OVERTAKEN, *NEWEST], 10_000)
    surveyed = survey(seen, BuilderPolicy(), study)
    marked = prune(seen, surveyed, BuilderPolicy(), range(3), count)
    (made,) = marked.values()
    assert measure_gain(surveyed, marked, count) == seen.messages[2].tokens - count(made.edit.text) - 4


def test_a_marker_that_is_longer_than_its_output_is_none() -> None:
    seen = view([user("go"), *OVERTAKEN, *act("3", "cat a", f"newer {BIG}"), *NEWEST], 10_000)
    surveyed = survey(seen, BuilderPolicy(), study)
    dear = msgspec.structs.replace(seen, name=lambda start, _, offset: "x" * 6000 if start == 2 else f"{offset}")
    assert list(prune(dear, surveyed, BuilderPolicy(), range(4), count)) == [4]


def test_what_stays_beside_shortened_words_is_not_saved() -> None:
    """An image is counted with its message, and goes on with what is left of the words."""
    seen = view([user("go"), user(f"look: {BIG}"), user("b")], 10_000)
    pictured = msgspec.structs.replace(seen.messages[1], tokens=seen.messages[1].tokens + 800)
    seen = msgspec.structs.replace(seen, messages=[seen.messages[0], pictured, seen.messages[2]])
    surveyed = survey(seen, BuilderPolicy(), study)
    made = cut_words(seen, surveyed, 1)
    assert measure_gain(surveyed, {1: made}, count) == count(f"look: {BIG}") - count(made.edit.text)
