"""What is told of archived steps, and in how many tokens."""

import pytest

from proxy.context.archive import Bounds, LedgerText, make_archive
from proxy.context.findings import study
from proxy.context.generations import Heritage
from proxy.context.original import PAGE, write_original
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import survey
from proxy.model.plan import Written
from tests.support.views import Message, act, count, name_reference, user, view

LONG = [
    m
    for i in range(40)
    for m in act(
        f"{i}", f"grep word_{i:03} src/file_{i}.py", " ".join(f"def word_{i:03}_{k}(): pass" for k in range(60))
    )
]
MESSAGES = [user("go"), *LONG, user("and now"), *act("z", "ls", "fine")]


def archive(room: float, messages: list[Message] = MESSAGES, ledgers: tuple[Written, ...] = ()) -> LedgerText:
    seen = view(messages, 10_000)
    found = survey(seen, BuilderPolicy(), study)
    told = frozenset(range(1, 10)) if ledgers else frozenset[int]()
    heritage = Heritage(ledgers, 0, (), told, room)
    return make_archive(seen, found, Bounds(len(found.steps) - 2, frozenset({0}), heritage), count)


def list_told(made: LedgerText) -> list[str]:
    return [word for entry in made.entries for word in entry.words]


@pytest.mark.parametrize("room", [700, 1500, 3000])
def test_it_fills_its_room_and_no_more(room: int) -> None:
    made = archive(room)
    assert 0.7 * room < made.tokens <= room * 1.05
    assert made.tokens == count(made.text)


def test_where_nothing_goes_there_is_nothing_to_tell() -> None:
    assert archive(1000, [user("go"), user("b"), *act("z", "ls", "x")]) == LedgerText((), "", 0)


def test_each_word_stands_on_the_line_of_a_reference_whose_first_page_has_it() -> None:
    messages = [user("go"), *act("1", "cat", "first_word " * 2000 + "last_word"), user("b"), *act("z", "ls", "x")]
    told = [view(messages, 10_000).messages[place].told for place in range(len(messages))]
    made = archive(1000, messages)
    assert {word for entry in made.entries for word in entry.words} >= {"first_word", "last_word"}
    for entry in made.entries:
        page = write_original(told[entry.page.start : entry.page.stop])[entry.page.offset :][:PAGE]
        assert all(word in page for word in entry.words)
        assert entry.reference == name_reference(entry.page.start, entry.page.stop, entry.page.offset)


def test_words_that_stand_elsewhere_are_not_told_again() -> None:
    assert "word_027_0" in list_told(archive(3000))
    assert "word_027_0" not in list_told(archive(3000, [user("see word_027_0"), *MESSAGES[1:]]))
    assert "word_027_0" not in list_told(archive(3000, [*MESSAGES[:-1], {**MESSAGES[-1], "content": "word_027_0"}]))


def test_what_an_older_ledger_tells_is_left_to_it() -> None:
    made = archive(2000, ledgers=(Written("word_025", 0, 19),))
    assert min(entry.page.first for entry in made.entries) == 10
    assert "word_025" not in list_told(made)
    assert "continued" in made.text


def test_older_words_of_the_user_come_before_steps() -> None:
    messages = [user("go"), *LONG, user("PLEASE KEEP THE TABS"), *LONG, user("b"), *act("z", "ls", "x")]
    assert "the user said: PLEASE KEEP THE TABS" in archive(900, messages).text


def test_what_fills_its_room_at_once_is_not_written_again() -> None:
    counted: list[str] = []

    def count_full(text: str) -> int:
        counted.append(text)
        return 990

    seen = view(MESSAGES, 10_000)
    found = survey(seen, BuilderPolicy(), study)
    heritage = Heritage((), 0, (), frozenset(), 1000)
    made = make_archive(seen, found, Bounds(len(found.steps) - 2, frozenset({0}), heritage), count_full)
    assert (made.tokens, counted) == (990, [made.text])
