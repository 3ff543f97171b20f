"""Ranking: which entries come first, over an index in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory_index import MemoryIndex
from proxy.retrieval.postings import PASSAGE_BITS, PLACE_SHIFT, IndexedText, TextRole, get_kind, get_session, get_turn
from proxy.retrieval.query import make_question
from proxy.retrieval.ranking import Ranking, search
from tests.support.examples import examples

MAY_8 = 1_683_550_560_000
DAY = 86_400_000


@dataclass
class Talk:
    """A session that is told turn by turn."""

    index: MemoryIndex = field(default_factory=MemoryIndex)
    session: int = 1
    turn: int = 0

    def say(self, *texts: str, at_ms: int = MAY_8) -> None:
        for text in texts:
            role: TextRole = "user" if self.turn % 2 == 0 else "assistant"
            self.index.add(self.session, self.turn, [IndexedText(text=text, role=role, kind="message", at_ms=at_ms)])
            self.turn += 1

    def act(self, thought: str, command: str, output: str) -> None:
        said = [
            IndexedText(text=thought, role="assistant", kind="message"),
            IndexedText(text=command, role="assistant", kind="arguments"),
        ]
        self.index.add(self.session, self.turn, said)
        card = f"{thought}\n{command}"
        self.index.add(self.session, self.turn + 1, [IndexedText(text=output, role="tool", kind="output", card=card)])
        self.turn += 2


def ask(index: MemoryIndex, text: str, *, context: str = "", limit: int = 20, now_ms: int = MAY_8) -> Ranking:
    return search(make_question(text, context=context, now_ms=now_ms), index, limit, lambda: False)


def list_turns(ranking: Ranking) -> list[int]:
    return [get_turn(each.entry) for each in ranking.entries]


def fill_up(talk: Talk, count: int, words: Sequence[str] = ("weather", "dinner", "traffic", "garden", "music")) -> None:
    for i in range(count):
        talk.say(f"We spoke about {words[i % len(words)]} number {i}")


def test_the_entry_with_the_words_comes_first() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("Caroline adopted a beagle puppy")
    fill_up(talk, 20)
    assert list_turns(ask(talk.index, "who was adopting puppies?"))[0] == 20


def test_nothing_is_found_in_nothing() -> None:
    assert ask(MemoryIndex(), "anything").entries == ()
    talk = Talk()
    fill_up(talk, 4)
    assert ask(talk.index, "").entries == ()
    assert ask(talk.index, "zebra").entries == ()


def test_a_reply_is_found_by_its_question() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("Where did you move to for the shelter job?", "Porto, finally!")
    fill_up(talk, 20)
    assert set(list_turns(ask(talk.index, "shelter job"))[:2]) == {20, 21}


def test_a_reply_is_found_and_not_the_thought_beside_it() -> None:
    talk = Talk()
    talk.say("What of the shelter job?")
    reply = [
        IndexedText(text="They want to know it", role="assistant", kind="reasoning"),
        IndexedText(text="Gone!", role="assistant", kind="message"),
    ]
    talk.index.add(1, 1, reply)
    assert [get_kind(each.entry) for each in ask(talk.index, "shelter job").entries] == ["message", "message"]


def test_a_reply_without_a_word_comes_before_a_neighbour_without_a_question() -> None:
    talk = Talk()
    talk.say(
        "Tell me", "The shelter job is over.", "Fine then", "I see", "So it goes", "What of the shelter job?", "Gone!"
    )
    found = list_turns(ask(talk.index, "shelter job"))
    assert found.index(6) < found.index(2)


def test_what_stands_two_short_turns_away_is_found() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("We adopted a beagle", "Wonderful! And how do you call her?", "Biscuit, the kids voted")
    fill_up(talk, 20)
    assert 22 in list_turns(ask(talk.index, "beagle"))
    talk = Talk()
    fill_up(talk, 20)
    talk.say("We adopted a beagle", "Wonderful news today. " * 60, "Biscuit, the kids voted")
    assert 22 not in list_turns(ask(talk.index, "beagle"))


def test_a_message_is_found_by_its_long_answer() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("It is slow, I tell you", f"{'Much may be said here. ' * 40} A composite index is missing.", "Next one")
    found = list_turns(ask(talk.index, "composite index"))
    assert found.index(20) < found.index(22)


def test_who_is_named_is_who_says_it() -> None:
    talk = Talk()
    fill_up(talk, 20)
    for turn, (sender, text) in enumerate(
        (("Ann", "I paint a lake, Bob"), ("Ann", "Hi Bob, the paint is dry"), ("Bob", "I paint, too"), ("Ann", "Bob?"))
    ):
        talk.index.add(1, 20 + 2 * turn, [IndexedText(text=text, role="user", kind="message", sender=sender)])
    assert list_turns(ask(talk.index, "What did Bob paint?"))[0] == 24


def test_a_text_that_writes_out_a_date_is_not_before_one_of_that_day() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("8 May 2023, in May, so it is 2023", at_ms=MAY_8 - 90 * DAY)
    talk.turn += 10
    talk.say("The pottery class began", at_ms=MAY_8)
    assert list_turns(ask(talk.index, "class on 8 May 2023"))[0] == 31


def test_an_output_is_found_by_the_thought_that_led_to_it() -> None:
    talk = Talk()
    talk.say("Please fix the frobnicator")
    for i in range(10):
        talk.act(f"Look at part {i}", f"ls part{i}", f"file{i}.py other{i}.py")
    talk.act("The gearbox must be somewhere", "ls -R gears", "cogwheel.py\naxle.py")
    for i in range(10):
        talk.act(f"Look at place {i}", f"ls place{i}", f"name{i}.py thing{i}.py")
    best = ask(talk.index, "where is the gearbox").entries[0].entry
    assert get_kind(best) == "output"
    assert get_turn(best) == 22


def test_identifiers_are_found_whole_and_in_pieces() -> None:
    talk = Talk()
    for i in range(10):
        talk.act("look", "ls", f"src/units/module_{i}.py\nsrc/tests/test_{i}.py")
    talk.act("look", "ls", "src/units/tests/test_quantity.py")
    assert list_turns(ask(talk.index, "test_quantity.py", limit=1)) == [21]
    assert list_turns(ask(talk.index, "quantity tests", limit=1)) == [21]


def test_an_identifier_that_is_repeated_counts_once() -> None:
    assert make_question("foo_bar foo foo_bar") == make_question("foo_bar foo")
    assert len(make_question("foo_bar").clues) == 4
    assert {clue.weight for clue in make_question("foo_bar foo").clues if clue.terms == ("foo",)} == {1.0}
    assert {clue.weight for clue in make_question("foo foo_bar").clues if clue.terms == ("foo",)} == {1.0}


def test_what_the_requester_does_helps_a_short_query() -> None:
    talk = Talk()
    for name in ("alpha", "beta", "gamma", "delta"):
        talk.act("look", "ls", f"src/{name}/setup.py\nsrc/{name}/setup.cfg")
    assert list_turns(ask(talk.index, "setup", context="cd src/gamma\ncat src/gamma/main.py", limit=1)) == [5]


def test_a_day_is_found_by_what_it_is_called() -> None:
    talk = Talk()
    for i in range(20):
        talk.say(f"We met and talked, meeting {i}", at_ms=MAY_8 + i * DAY)
    assert list_turns(ask(talk.index, "what was on 12 May 2023?", limit=1)) == [4]
    assert list_turns(ask(talk.index, "what was yesterday", now_ms=MAY_8 + 7 * DAY, limit=1)) == [6]
    week = list_turns(ask(talk.index, "what was last week", now_ms=MAY_8 + 7 * DAY, limit=7))
    assert sorted(week) == [0, 1, 2, 3, 4, 5, 6]


def test_a_rule_is_found_first() -> None:
    talk = Talk()
    fill_up(talk, 10)
    rule = "Always indent with tabs."
    talk.index.add(1, 50, [IndexedText(text=f"{rule} See you", role="user", kind="message", rules=(rule,))])
    talk.index.add(1, 60, [IndexedText(text="indent the tabs of the browser", role="user", kind="message")])
    assert list_turns(ask(talk.index, "indent tabs", limit=1)) == [50]


@pytest.mark.parametrize("query", ["quantitiy", "frobnicater", "qantity frobnicator"])
def test_a_misspelt_short_query_is_understood(query: str) -> None:
    talk = Talk()
    fill_up(talk, 10)
    talk.say("the frobnicator has a quantity")
    assert list_turns(ask(talk.index, query, limit=1)) == [10]


def test_a_short_word_has_no_similar_ones() -> None:
    talk = Talk()
    talk.say("the cat sat")
    assert ask(talk.index, "car").entries == ()


def test_what_may_not_be_found_is_left_out_and_others_take_its_place() -> None:
    talk = Talk()
    for i in range(200):
        talk.say(f"puppy story {i}")
    talk.index.accept = lambda entry: get_turn(entry) % 50 == 0
    found = list_turns(ask(talk.index, "puppy", limit=3))
    assert len(found) == 3
    assert set(found) < {0, 50, 100, 150}


def test_a_search_ends_when_its_time_is_over() -> None:
    talk = Talk()
    for i in range(300):
        talk.say(f"puppy story {i}")
    looked_at: list[int] = []

    def refuse(entry: int) -> bool:
        looked_at.append(entry)
        return False

    talk.index.accept = refuse
    ranking = search(make_question("puppy story"), talk.index, 5, lambda: bool(looked_at))
    assert not ranking.is_complete
    assert len(looked_at) < 100


def test_sessions_do_not_touch() -> None:
    talk = Talk()
    talk.say("alpha puppy")
    other = Talk(talk.index, session=2)
    other.say("beta kitten", "puppy gamma")
    found = ask(talk.index, "puppy")
    assert {get_session(each.entry) for each in found.entries} == {1, 2}


def test_a_search_that_is_late_says_so() -> None:
    talk = Talk()
    fill_up(talk, 50)
    ranking = search(make_question("weather dinner"), talk.index, 5, lambda: True)
    assert not ranking.is_complete


def test_frequent_words_add_to_what_rare_ones_found() -> None:
    talk = Talk()
    for i in range(9000):
        talk.say(f"common thing {'odd' if i % 4 == 0 else 'even'} {'special' if i == 4400 else ''} number{i}")
    found = ask(talk.index, "common odd special thing", limit=5)
    assert list_turns(found)[0] == 4400


def test_many_sessions_and_long_texts_rank() -> None:
    index = MemoryIndex()
    for session in range(1, 60):
        talk = Talk(index, session=session)
        for i in range(12):
            talk.say(f"{'paragraph about engines and turbines. ' * 60} {session} {i}?")
    assert len(ask(index, "engines and turbines", limit=30).entries) == 30


@examples(60)
@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 10**15))
def test_any_query_is_safe(text: str, context: str, now_ms: int) -> None:
    talk = Talk()
    talk.say("alpha beta", "What? [2023-05-07] foo_bar", "gamma", text, context)
    ask(talk.index, text, context=context, now_ms=now_ms)


def find_passages(index: MemoryIndex, turn: int) -> list[int]:
    """The ids of the passages of a turn of the first session."""
    places = index.load_places(1)
    return [1 << PASSAGE_BITS | at for at, place in enumerate(places) if get_turn(place >> PLACE_SHIFT) == turn]


def ask_with(index: MemoryIndex, text: str, alike: dict[int, float]) -> Ranking:
    return search(make_question(text), index, 20, lambda: False, alike=alike)


def test_what_is_similar_is_found_without_a_word_and_its_reply_with_it() -> None:
    talk = Talk()
    fill_up(talk, 20)
    talk.say("Did Caroline ever get that hound?", "Yes, last week.")
    fill_up(talk, 20)
    assert ask(talk.index, "puppies?").entries == ()
    first, *_ = find_passages(talk.index, 20)
    found = ask_with(talk.index, "puppies?", {first: 1.0, find_passages(talk.index, 5)[0]: 0.2})
    assert list_turns(found)[:2] == [20, 21]
    assert [each.is_narrow for each in found.entries[:2]] == [True, False]


def test_similarity_is_added_to_the_score_of_the_words() -> None:
    talk = Talk()
    fill_up(talk, 10)
    talk.say("a beagle puppy", "yes")
    fill_up(talk, 10)
    talk.say("the puppy is a beagle", "no")
    second = find_passages(talk.index, 22)[0]
    before = ask(talk.index, "beagle puppy")
    after = ask_with(talk.index, "beagle puppy", {second: 0.4})
    scores = {each.entry: each.score for each in before.entries}
    grown = {get_turn(each.entry) for each in after.entries if each.score > scores.get(each.entry, 0.0) + 1e-9}
    assert grown == {20, 21, 22, 23}  # neighbours inherit, also two turns away
    assert list_turns(after)[0] == 22


def test_of_a_long_message_the_similar_passage_is_shown() -> None:
    talk = Talk()
    talk.say("\n".join(f"We spoke about subject {i} in some detail, and at some length." for i in range(60)))
    passages = find_passages(talk.index, 0)[::2]
    [weak] = ask_with(talk.index, "subject", {passages[2]: 0.4}).entries
    [strong] = ask_with(talk.index, "subject", {passages[2]: 0.9, passages[3]: 0.3}).entries
    [only] = ask_with(talk.index, "zebra", {passages[3]: 0.4}).entries
    assert (weak.number, weak.is_narrow) == (ask(talk.index, "subject").entries[0].number, False)
    assert (strong.number, strong.is_narrow) == (2, True)
    assert (only.number, only.is_narrow) == (3, False)
