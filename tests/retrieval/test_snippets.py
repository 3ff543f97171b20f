"""Snippets: the best lines within a number of tokens, no line twice."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.postings import Scored
from proxy.retrieval.snippets import estimate_tokens, fill, split_lines

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
