import pytest

from proxy.context.conversation import BuilderPolicy, index_conversation
from proxy.context.message_features import extract_features
from proxy.context.word_ranking import (
    IdentifierIndex,
    QuotedLine,
    estimate_tokens_of_word,
    index_identifiers,
    list_lines,
    order_identifiers,
    order_quotes,
    score_identifier,
)
from tests.support.views import RawMessage, act, said, user, view


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


def order(messages: list[RawMessage], *gone: int) -> list[QuotedLine]:
    seen = index_conversation(view(messages, 10_000), BuilderPolicy(), extract_features)
    return order_quotes(seen, gone, index_identifiers(seen).ages)


def test_a_line_counts_without_number_and_indentation() -> None:
    text = "  12:     return read_shape(raw)\nshort\n" + "x" * 300 + "\n"
    assert list(list_lines(text)) == ["return read_shape(raw)"]


@pytest.mark.parametrize("number", ["   76→", "76:", "76-", "    76\t", "00076| ", "76 "])
def test_whatever_way_lines_are_numbered_the_number_is_no_part_of_them(number: str) -> None:
    line = "from proxy.wire import shaping_of_bytes"
    assert list(list_lines(f"{number}{line}")) == [line]
    assert list(list_lines(f"x {number}{line}"[:60])) == [f"x {number}{line}"[:60]]


def test_what_was_typed_imported_or_seen_again_is_quoted_with_its_newest_step() -> None:
    twice = "self.seen_twice_at_least = 1\n-----------------------------"
    first = f"from proxy.wire import shaping\nsomething only said once\n{twice}"
    messages = [user("go"), *act("1", "cat a", first), *act("2", "cat > b\nself.typed_by_the_agent()", "written")]
    messages += [
        *act("3", "cat b", twice),
        user("next"),
        *act("4", "ls", "x"),
    ]
    quotes = order(messages, 1, 2, 3)
    assert {quote.line: quote.step for quote in quotes} == {
        "from proxy.wire import shaping": 1,
        "self.typed_by_the_agent()": 2,
        "self.seen_twice_at_least = 1": 3,
    }


def test_the_first_line_of_a_call_is_told_and_not_quoted() -> None:
    typed = "cat > some/file/of/ours.txt\nself.typed_by_agents_here()"
    messages = [user("go"), *act("1", typed, "written"), user("next"), *act("2", "ls", "x")]
    assert [quote.line for quote in order(messages, 1)] == ["self.typed_by_agents_here()"]


def test_an_imported_line_is_quoted_before_one_that_was_typed() -> None:
    messages = [
        user("go"),
        *act("1", "cat a", "from proxy.wire import shaping"),
        *act("2", "cat > b\nself.typed_by_agents_here()", "written"),
        user("next"),
        *act("3", "ls", "x"),
    ]
    assert [quote.line for quote in order(messages, 1, 2)] == [
        "from proxy.wire import shaping",
        "self.typed_by_agents_here()",
    ]


def test_lines_of_other_steps_are_not_quoted() -> None:
    assert order([user("go"), *act("1", "ls", "from proxy.wire import shaping"), user("x")], 0) == []
