"""Which words come first."""

from proxy.context.findings import study
from proxy.context.policy import BuilderPolicy
from proxy.context.reuse import Index, guess_tokens, make_index, order_words, predict
from proxy.context.survey import survey
from tests.support.views import Message, act, said, user, view


def index(messages: list[Message]) -> Index:
    return make_index(survey(view(messages, 10_000), BuilderPolicy(), study))


def test_an_index_knows_the_newest_mention_and_who_used_it() -> None:
    found = index([user("read_shape"), *act("1", "grep read_shape src/a.py", "def read_shape"), said("other_word")])
    assert found.newest == {"read_shape": 2, "src/a.py": 1, "other_word": 3}
    assert (found.uses["read_shape"], found.used["read_shape"], found.shown["read_shape"]) == (1, 1, 2)
    assert found.families == {"src": 1}


def test_words_the_agent_used_come_before_those_it_only_saw() -> None:
    found = index([user("go"), *act("1", "ls", "word_aaaa word_bbbb"), *act("2", "grep word_bbbb", "word_aaaa")])
    assert order_words(found, ["word_aaaa", "word_bbbb"]) == ["word_bbbb", "word_aaaa"]


def test_each_trait_counts() -> None:
    outputs = "from mod_iii import x\nabcdefgh12345 seen_twice 1234567 np.zeros os.other seen_once"
    messages = [user("go"), *act("1", "ls", "old_name"), user("next"), *act("2", "np.ones", outputs)]
    messages += act("3", "cat > made/file.py", "seen_twice seen_new")
    found = index(messages)
    assert predict(found, "mod_iii") > predict(found, "old_name")
    assert predict(found, "seen_once") > predict(found, "1234567")
    assert predict(found, "seen_once") > predict(found, "old_name")
    assert predict(found, "np.zeros") > predict(found, "os.other")
    assert predict(found, "made/file.py") > predict(found, "np.zeros")
    assert predict(found, "seen_twice") > predict(found, "seen_new")


def test_of_equal_words_the_shorter_comes_first_and_then_the_alphabet() -> None:
    found = index([user("go"), *act("1", "ls", "zz_zz aa_aa bb_bb_bb_bb_bb")])
    assert order_words(found, found.newest) == ["aa_aa", "zz_zz", "bb_bb_bb_bb_bb"]
    assert guess_tokens("aa_aa") < guess_tokens("bb_bb_bb_bb_bb")
