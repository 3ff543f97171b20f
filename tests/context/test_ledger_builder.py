import pytest

from proxy.context.conversation import BuilderPolicy, extract_features, index_conversation
from proxy.context.ledger import CarriedLedgers
from proxy.context.ledger_builder import (
    IdentifierIndex,
    LedgerScope,
    LedgerText,
    build_ledger,
    estimate_tokens_of_word,
    index_identifiers,
    order_identifiers,
    score_identifier,
)
from proxy.context.references import PAGE, render_original
from proxy.model.epoch import Written
from tests.support.views import RawMessage, act, count, name_reference, said, user, view


def index(messages: list[RawMessage]) -> IdentifierIndex:
    return index_identifiers(index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features))


def test_an_index_knows_the_newest_mention_and_who_used_it() -> None:
    found = index([user("read_shape"), *act("1", "grep read_shape src/a.py", "def read_shape"), said("other_word")])
    assert found.newest == {"read_shape": 2, "src/a.py": 1, "other_word": 3}
    assert (found.uses["read_shape"], found.used["read_shape"], found.shown["read_shape"]) == (1, 1, 2)
    assert found.families == {"src": 1}


def test_words_the_agent_used_come_before_those_it_only_saw() -> None:
    found = index([user("go"), *act("1", "ls", "word_aaaa word_bbbb"), *act("2", "grep word_bbbb", "word_aaaa")])
    assert order_identifiers(found, ["word_aaaa", "word_bbbb"]) == ["word_bbbb", "word_aaaa"]


def test_each_trait_counts() -> None:
    outputs = "from mod_iii import x\nabcdefgh12345 seen_twice 1234567 np.zeros os.other seen_once"
    messages = [user("go"), *act("1", "ls", "old_name"), user("next"), *act("2", "np.ones", outputs)]
    messages += act("3", "cat > made/file.py", "seen_twice seen_new")
    found = index(messages)
    assert score_identifier(found, "mod_iii") > score_identifier(found, "old_name")
    assert score_identifier(found, "seen_once") > score_identifier(found, "1234567")
    assert score_identifier(found, "seen_once") > score_identifier(found, "old_name")
    assert score_identifier(found, "np.zeros") > score_identifier(found, "os.other")
    assert score_identifier(found, "made/file.py") > score_identifier(found, "np.zeros")
    assert score_identifier(found, "seen_twice") > score_identifier(found, "seen_new")


def test_of_equal_words_the_shorter_comes_first_and_then_the_alphabet() -> None:
    found = index([user("go"), *act("1", "ls", "zz_zz aa_aa bb_bb_bb_bb_bb")])
    assert order_identifiers(found, found.newest) == ["aa_aa", "zz_zz", "bb_bb_bb_bb_bb"]
    assert estimate_tokens_of_word("aa_aa") < estimate_tokens_of_word("bb_bb_bb_bb_bb")


LONG = [
    m
    for i in range(40)
    for m in act(
        f"{i}", f"grep word_{i:03} src/file_{i}.py", " ".join(f"def word_{i:03}_{k}(): pass" for k in range(60))
    )
]
MESSAGES = [user("go"), *LONG, user("and now"), *act("z", "ls", "fine")]


def archive(room: float, messages: list[RawMessage] = MESSAGES, ledgers: tuple[Written, ...] = ()) -> LedgerText:
    seen = view(messages, 10_000)
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    told = frozenset(range(1, 10)) if ledgers else frozenset[int]()
    carried = CarriedLedgers(ledgers, 0, (), told, room)
    return build_ledger(seen, found, LedgerScope(len(found.steps) - 2, frozenset({0}), carried), count)


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
    told = [view(messages, 10_000).messages[place].message for place in range(len(messages))]
    made = archive(1000, messages)
    assert {word for entry in made.entries for word in entry.words} >= {"first_word", "last_word"}
    for entry in made.entries:
        page = render_original(told[entry.page.start : entry.page.stop])[entry.page.offset :][:PAGE]
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
    found = index_conversation(seen, BuilderPolicy(), extract_features)
    carried = CarriedLedgers((), 0, (), frozenset(), 1000)
    made = build_ledger(seen, found, LedgerScope(len(found.steps) - 2, frozenset({0}), carried), count_full)
    assert (made.tokens, counted) == (990, [made.text])
