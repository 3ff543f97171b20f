"""Older words of the user."""

import msgspec

from proxy.context.findings import study
from proxy.context.original import PAGE, write_original
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import survey
from proxy.context.user_words import Older, Shown, leave_out_repeated, show_older
from proxy.model.plan import ContextPlan, Edit, Kept, Written
from tests.support.views import Message, act, count, see, user, view

RULES = "\n".join(f"Rule {i}: some words that are said in every task." for i in range(12))


def show(messages: list[Message], room: float) -> list[Shown]:
    return list(settle(messages, room).shown)


def settle(messages: list[Message], room: float, frozen: ContextPlan | None = None) -> Older:
    seen = msgspec.structs.replace(view(messages, 10_000), frozen=frozen)
    return show_older(seen, survey(seen, BuilderPolicy(), study), 10**6, room, count)


def write(*texts: str) -> list[Message]:
    return [message for i, text in enumerate(texts) for message in (user(text), *act(f"{i}", "ls", "x"))]


SEVEN, NINE = (
    write(*[f"words said as turn {i} of all" for i in range(count)], "one of the newest", "the other")
    for count in (7, 9)
)


def test_all_stay_while_they_fit_together() -> None:
    older = settle(SEVEN, 7 * see(SEVEN[0]).tokens)
    assert ([shown.step for shown in older.shown], older.spare) == ([0, 2, 4, 6, 8, 10, 12], 0.0)


def test_where_some_must_go_the_first_and_the_newest_stay_in_a_part_of_the_room() -> None:
    each = see(SEVEN[0]).tokens
    older = settle(NINE, 8 * each)
    assert ([shown.step for shown in older.shown], older.spare) == ([0, 16], 6 * each)
    assert show(SEVEN, each) == [Shown(0, each)]
    assert show(SEVEN, 5) == []


def leave(*kept: int) -> ContextPlan:
    """A plan in force up to the last of the older words, that has kept those at these places."""
    edits: tuple[Edit, ...] = (Written("a ledger", 0, 21), *map(Kept, kept))
    return ContextPlan(21, edits, (), 0, 0, "plan")


def test_what_has_gone_stays_away_and_the_others_have_the_room() -> None:
    each = see(SEVEN[0]).tokens
    frozen = leave(0, 12, 15, 18)
    older = settle(SEVEN, 4 * each, frozen)
    assert ([shown.step for shown in older.shown], older.spare) == ([0, 8, 10, 12], 0.0)
    assert [shown.step for shown in settle(SEVEN, 5 * each, frozen).shown] == [0, 8, 10, 12]
    assert [shown.step for shown in settle(SEVEN, 3 * each, frozen).shown] == [0]


def test_what_has_gone_comes_back_when_all_fit() -> None:
    older = settle(SEVEN, 7 * see(SEVEN[0]).tokens, leave(0, 12))
    assert ([shown.step for shown in older.shown], older.spare) == ([0, 2, 4, 6, 8, 10, 12], 0.0)


def test_words_behind_the_plan_in_force_have_not_gone() -> None:
    each = see(SEVEN[0]).tokens
    frozen = msgspec.structs.replace(leave(0), through=15)
    assert [shown.step for shown in settle(SEVEN, 3 * each, frozen).shown] == [0, 10, 12]


def test_what_a_newer_message_repeats_is_left_out_and_said_so() -> None:
    (shown,) = show(write(f"Task one\n{RULES}\nthe end", f"Task two\n{RULES}", "third"), 1000)
    (edit,) = shown.edits
    assert edit.text.startswith("Task one\n[… 12 lines left out")
    assert "the end" in edit.text and "Rule 3" not in edit.text
    assert f"ref:{shown.references[0].id}" in edit.text
    assert shown.tokens < count(RULES)


LOG = "\n".join(f"2024-05-01 10:00:{i % 60:02} INFO worker took job {i * 7}" for i in range(600))


def test_a_large_block_that_was_pasted_gives_way_and_the_words_around_it_stay() -> None:
    messages = write(f"It fails so:\n{LOG}\nNever touch main.", "second", "third")
    (shown,) = show(messages, 1000)
    (edit,) = shown.edits
    assert edit.text.startswith("It fails so:\n[… 600 lines that the user pasted, ")
    assert "\nNever touch main.\n[shortened by palimpsest" in edit.text and "worker" not in edit.text
    assert shown.tokens == count(edit.text) + 4
    assert all(f"ref:{each.id}" in edit.text for each in shown.references)
    original = write_original([see(messages[0]).told])
    pages = [original[each.offset : each.offset + PAGE] for each in shown.references if each.offset]
    assert pages[0].startswith(LOG[:99])
    assert len(pages) == 3 and all(any(line in page for page in pages) for line in LOG.split("\n"))


def test_a_small_block_and_the_blocks_of_the_newest_turns_stay() -> None:
    small = "\n".join(LOG.split("\n")[:100])
    (shown,) = show(write(f"It fails so:\n{small}", LOG.replace("job", "task"), LOG.lower()), 10_000)
    assert shown.edits == ()


def test_words_beside_an_image_stay_and_so_do_those_that_would_only_grow() -> None:
    seen = view(write(f"It fails so:\n{LOG}", "second", "third"), 10_000)
    first = seen.messages[0]
    pictured = msgspec.structs.replace(first, told=msgspec.structs.replace(first.told, media=("an image",)))
    small = msgspec.structs.replace(first, tokens=5)
    for each in (pictured, small):
        changed = msgspec.structs.replace(seen, messages=[each, *seen.messages[1:]])
        surveyed = survey(changed, BuilderPolicy(), study)
        assert show_older(changed, surveyed, 10**6, 10**6, count).shown == (Shown(0, each.tokens),)


def test_what_is_short_or_only_alike_stays() -> None:
    assert leave_out_repeated("yes\nplease", ["yes\nplease"]) == "yes\nplease"
    shuffled = "\n".join(reversed(RULES.split("\n")))
    assert leave_out_repeated(RULES, [shuffled]) == RULES
    (shown,) = show(write("Task one", "Task two", "third"), 1000)
    assert shown.edits == ()


def test_pins_are_not_among_them() -> None:
    seen = view(write("one", "two", "three"), 10_000, pinned=[0])
    assert show_older(seen, survey(seen, BuilderPolicy(), study), 10**6, 1000, count) == Older()


def test_words_with_media_stay_as_they_are() -> None:
    messages = write(f"It fails so:\n{LOG}", "second", "third")
    seen = view(messages, 10_000)
    told = msgspec.structs.replace(seen.messages[0].told, media=("image 10x10",))
    first = msgspec.structs.replace(seen.messages[0], told=told)
    seen = msgspec.structs.replace(seen, messages=[first, *seen.messages[1:]])
    (shown,) = show_older(seen, survey(seen, BuilderPolicy(), study), 10**6, 10**6, count).shown
    assert (shown.edits, shown.tokens) == ((), first.tokens)


def test_what_would_be_no_shorter_stays_as_it_is() -> None:
    messages = write(f"Task one\n{RULES}\nthe end", f"Task two\n{RULES}", "third")
    seen = view(messages, 10_000)
    found = survey(seen, BuilderPolicy(), study)
    (shown,) = show_older(seen, found, 10**6, 10**6, lambda text: 10**5).shown
    assert shown.edits == ()
