"""The ledger's words."""

from proxy.context.findings import study
from proxy.context.ledger import END, HEAD, NEXT, LedgerEntry, group_words, tell_step, tell_turns, write_ledger
from proxy.context.pages import Page
from proxy.context.policy import BuilderPolicy
from proxy.context.quotes import QuotedLine
from proxy.context.survey import survey
from tests.support.views import Message, act, call, said, user, view


def tell(message_list: list[Message], i: int) -> str:
    seen = survey(view([*message_list, user("a"), user("b")], 10_000), BuilderPolicy(), study)
    return tell_step(seen, seen.steps[i], 60)


def test_it_says_what_it_is_and_how_to_get_an_original_back() -> None:
    for said_there in ("not the words of the user", "intact", "palimpsest expand ID", "not to be repeated"):
        assert said_there in HEAD


def test_words_and_steps_stand_on_the_line_of_their_reference() -> None:
    entries = [
        LedgerEntry(Page(0, 1, 0, 4), "aaaaaaaaaa"),
        LedgerEntry(Page(2, 2, 4, 6), "bbbbbbbbbb"),
        LedgerEntry(Page(3, 5, 6, 12), "cccccccccc", ("shell ls → 1 lines",), ("read_shape", "a.py")),
        LedgerEntry(Page(6, 6, 12, 13), "dddddddddd"),
    ]
    assert write_ledger(entries).split("\n")[2:] == [
        "1-3 ref:aaaaaaaaaa ref:bbbbbbbbbb",
        "4-6 ref:cccccccccc: shell ls → 1 lines | read_shape a.py",
        "7 ref:dddddddddd",
        END,
    ]


def test_a_ledger_behind_another_explains_nothing_again() -> None:
    assert write_ledger([], is_first=False) == f"{NEXT}\n{END}"


def test_quotes_stand_behind_the_number_of_their_step() -> None:
    text = write_ledger([], [QuotedLine("import b", 4), QuotedLine("import a", 1)])
    assert text.split("\n")[-3:] == ["2: import a", "5: import b", END]


def test_foreign_words_cannot_pass_for_markers_of_ours() -> None:
    entry = LedgerEntry(Page(0, 0, 0, 1), "aaaaaaaaaa", (), ("ref:bbbbbbbbbb",))
    text = write_ledger([entry], [QuotedLine("[tool: x] ref:cccccccccc", 1)])
    assert "ref:bbbbbbbbbb" not in text and "ref:cccccccccc" not in text and "[tool:" not in text


def test_a_step_is_told_with_what_it_asked_and_how_it_ended() -> None:
    assert tell(act("1", "ls -la", "a\nb"), 0) == "shell ls -la → 2 lines"
    failed = tell(act("1", "make", "<returncode>2</returncode>\nerror: no rule"), 0)
    assert failed == "shell make → exit 2 error: no rule, 2 lines"


def test_what_changed_something_is_marked() -> None:
    assert tell(act("1", "sed -i s/a/b/ src/a.py", ""), 0).startswith("! shell sed")


def test_words_are_told_as_words() -> None:
    assert tell([said("I am done with [tool: this")], 0) == "said: I am done with (tool: this"


def tell_all(texts: list[str], most: int) -> str:
    messages = [user(text) for text in texts]
    found = survey(view(messages, 10_000), BuilderPolicy(), study)
    return tell_turns(found, range(len(texts)), most)


def test_turns_of_the_user_are_told_whole_by_the_first_and_the_last_or_by_their_number() -> None:
    assert tell_all(["Do\nthat"], 120) == "the user said: Do that"
    assert tell_all(["Do that", "and [tool: this", "now"], 120) == "the user said: Do that / and (tool: this / now"
    assert tell_all(["one", "two", "three"], 10) == "3 messages of the user, from: one to: three"
    assert tell_all(["a long one"], 6) == "the user said: a lon…"
    assert (tell_all(["one"], 0), tell_all(["a", "b"], 0)) == ("the user said something", "2 messages of the user")


def test_words_are_grouped_by_page() -> None:
    assert group_words(["a", "b", "c"], {"a": 1, "b": 0, "c": 1}) == {1: ["a", "c"], 0: ["b"]}


def test_a_step_that_put_nothing_out_ends_with_what_was_asked() -> None:
    assert tell([user("go"), call("1", "make all")], 1) == "shell make all"
