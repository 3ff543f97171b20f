"""Snippets: the best lines within a number of tokens, no line twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.postings import Scored
from proxy.retrieval.snippets import SnippetPolicy, estimate_tokens, fill, split_lines
from proxy.retrieval.terms import list_terms, parse_token

LISTING = "\n".join(f"src/part{i}/module_{i}.py" for i in range(300))


def find(*texts: str) -> list[tuple[Scored, str]]:
    return [(Scored(i, 1.0), text) for i, text in enumerate(texts)]


def test_the_lines_with_the_words_are_told_in_their_order() -> None:
    text = f"head\nalpha one\n{LISTING}\nbeta two\ntail"
    (snippet,) = fill(find(text), {"beta": 5.0, "alpha": 2.0, "one": 1.0}, tokens=20)
    lines = snippet.text.split("\n")
    assert lines[0] != "head" or "alpha one" in lines
    assert "beta two" in lines
    assert "\u2026" in lines


def test_a_short_entry_is_told_whole() -> None:
    (snippet,) = fill(find("one\ntwo alpha\nthree"), {"alpha": 1.0}, tokens=100)
    assert snippet.text == "one\ntwo alpha\nthree"


def test_a_short_entry_is_told_whole_where_the_words_stand_at_its_end() -> None:
    (snippet,) = fill(find("one\ntwo\nthree\nfour\nalpha"), {"alpha": 1.0}, tokens=100)
    assert snippet.text == "one\ntwo\nthree\nfour\nalpha"


def test_a_line_that_only_looks_like_one_with_the_word_gives_way() -> None:
    (snippet,) = fill(find("alphabet\nalpha one"), {"alpha": 1.0}, tokens=4)
    assert snippet.text == "alpha one"


def test_no_line_is_told_twice_and_none_that_is_in_view() -> None:
    snippets = fill(
        find("alpha\nbeta", "beta\n  alpha\ngamma", "alpha"), {"alpha": 1.0}, tokens=500, seen=("gamma\nx",)
    )
    assert [each.text for each in snippets] == ["alpha\nbeta"]


def test_the_answer_keeps_within_its_tokens() -> None:
    for tokens in (0, 5, 50, 400, 1500):
        snippets = fill(find(*[f"{i} {LISTING[i:]}" for i in range(40)]), {"modul": 1.0}, tokens=tokens)
        assert sum(each.tokens for each in snippets) <= tokens
        assert sum(estimate_tokens(each.text) for each in snippets) <= tokens + 2 * len(snippets)
    assert len(snippets) > 5


def test_the_best_entries_have_more_room() -> None:
    snippets = fill(find(*[f"{i}{LISTING}".replace("part", f"dir{i}x") for i in range(9)]), {"modul": 1.0}, tokens=4000)
    assert snippets[0].tokens > 2 * snippets[-1].tokens


def test_reading_stops_when_the_tokens_are_used_up() -> None:
    read = []

    def texts() -> object:
        for i in range(1000):
            read.append(i)
            yield Scored(i, 1.0), f"alpha {i} " * 30

    fill(texts(), {"alpha": 1.0}, tokens=300)  # type: ignore[arg-type]
    assert len(read) < 20


def test_what_is_left_is_spent_on_more_lines() -> None:
    (snippet,) = fill(find("\n".join(f"alpha {i}" for i in range(600))), {"alpha": 1.0}, tokens=1500)
    assert 1400 < snippet.tokens <= 1500
    (short,) = fill(find("alpha\nbeta"), {"beta": 1.0}, tokens=4000)
    assert short.text == "alpha\nbeta"


def test_the_best_line_of_an_entry_is_told_though_it_is_long() -> None:
    texts = [f"alpha, {'it is so ' * 24}", *(f"alpha {i}\nwhat else is there {i}" for i in range(60))]
    assert fill(find(*texts), {"alpha": 1.0}, tokens=300)[0].entry == 0


def test_a_long_line_is_divided_behind_its_sentences() -> None:
    lines = split_lines("One thing is said here, and it is long enough. " * 9)
    assert all(line.endswith("enough. ") for line in lines)
    assert all(line.endswith(", ") for line in split_lines("One part, and the other one, " * 20)[:-1])


@given(st.text(max_size=2000))
def test_long_lines_are_divided_without_loss(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text.replace("\n", "")
    assert all(len(line) <= 240 for line in lines)


def test_a_line_too_long_for_the_room_gives_way_to_a_shorter_one() -> None:
    (snippet,) = fill(find("alpha " * 30 + "\nalpha"), {"alpha": 1.0}, tokens=10)
    assert snippet.text == "alpha"


def test_tokens_of_other_scripts_are_estimated() -> None:
    assert estimate_tokens("語" * 10) == 10
    assert estimate_tokens("hello") == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("try", "tries"),
        ("use", "Using"),
        ("hope", "hoping"),
        ("query", "queries"),
        ("possible", "possibility"),
        ("relate", "relational"),
        ("relational", "relation"),
        ("path", "getPathName"),
        ("café", "CAFÉ"),
        ("cafe", "Café"),
        ("книга", "книги"),
        ("كتاب", "الكتاب"),
        ("احمد", "أحمد"),
        ("parser", "src/parser_2.py:17:"),
    ],
)
def test_a_line_with_another_form_of_a_word_is_told(asked: str, said: str) -> None:
    (term,) = parse_token(asked).pieces
    assert term in list_terms(said)
    (snippet,) = fill(find(f"{LISTING[:900]}\nbefore {said} behind"), {term: 1.0}, tokens=30)
    assert said in snippet.text


WORDS = st.sampled_from(
    ["alpha", "alphabet", "try", "tries", "using", "src/parser_2.py:17:", "getPathName", "é", "книги", "x"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12).map("\n".join)
WEIGHTS = st.dictionaries(st.sampled_from(["alpha", "tri", "use", "parser", "path", "книг"]), st.floats(0.1, 9.0))


@given(TEXTS, WEIGHTS, st.integers(0, 60))
def test_the_lines_told_are_those_that_score_best(text: str, weights: dict[str, float], tokens: int) -> None:
    policy = SnippetPolicy()
    lines = text.split("\n")
    own = [0.0, *[sum(weights.get(term, 0.0) for term in list_terms(line)) for line in lines], 0.0]
    best: dict[str, float] = {}
    for at, line in enumerate(lines):
        score = own[at + 1] + policy.beside * (own[at] + own[at + 2])
        key = " ".join(line.split())
        cost = estimate_tokens(line) + 1
        if key and cost <= tokens:
            best[key] = max(best.get(key, 0.0), score / cost**policy.brevity)
    told = {line for each in fill(find(text), weights, tokens=tokens) for line in each.text.split("\n")} - {"\u2026"}
    told = {" ".join(line.split()) for line in told}
    assert told <= set(best)
    if best:
        assert max(best.values()) == pytest.approx(max([best[key] for key in told], default=-1.0))


def test_a_long_text_without_the_words_is_told_from_its_beginning() -> None:
    (snippet,) = fill(find(LISTING), {"alpha": 1.0}, tokens=40)
    assert snippet.text.startswith("src/part0/module_0.py\nsrc/part1/")


def test_entries_are_not_read_on_when_none_has_a_line_for_what_is_left() -> None:
    read = []

    def texts() -> object:
        for i in range(1000):
            read.append(i)
            yield Scored(i, 1.0), f"alpha{i} " * 20

    assert len(fill(texts(), {"alpha": 1.0}, tokens=110)) == 2  # type: ignore[arg-type]
    assert len(read) < 10
