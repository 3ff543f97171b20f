"""Terms: what a text is found by, in any language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.retrieval.terms import fold, list_grams, list_terms, list_tokens, parse_token, stem


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The adoption agencies were helping", "adopting agency helps"),
        ("see astropy/units/tests/test_quantity.py::TestFoo", "test_quantity.py"),
        ("see astropy/units/tests/test_quantity.py", "astropy/units/tests/test_quantity.py quantity units"),
        ("class HTTPServer: def handleRequest(self)", "http handleRequest request"),
        ("self.fspath was None", "fspath self.fspath"),
        ("--no-cache-dir", "cache no-cache-dir"),
        ("C:\\Users\\ann\\my_notes.txt", "my_notes.txt notes my_notes"),
        ("in der Überprüfung der Straße", "UBERPRUFUNG strasse"),
        ("un café naïf", "cafe"),
        ("в больших домах", "большие дома"),
        ("我喜欢吃苹果", "苹果"),
        ("猫が好きです", "猫"),
        ("東京タワーへ行った", "東京 タワー"),
        ("ฉันชอบแมวมาก", "แมว"),
        ("한국어를 배우다", "한국어"),
        ("मैं हिन्दी में लिखता हूँ", "हिन्दी"),
        ("version v1.14dev of issue1234", "14dev issue 1234 v1.14dev"),
        ("数据库db_pool错误", "db_pool"),
    ],
)
def test_a_text_has_the_terms_of_the_query(text: str, query: str) -> None:
    wanted = {piece for token in list_tokens(query) for piece in parse_token(token).pieces}
    assert wanted
    assert wanted <= list_terms(text)


def test_the_number_of_a_line_is_no_part_of_a_path() -> None:
    assert parse_token("src/parse_date.py:17:").wholes == parse_token("src/parse_date.py").wholes
    assert "17" in parse_token("src/parse_date.py:17:").pieces
    assert "step:17" in parse_token("step:17").wholes


def test_an_identifier_is_found_whole() -> None:
    assert "test_quantity.py" in parse_token("tests/test_quantity.py").wholes
    assert "tests/test_quantity.py" in list_terms("open ./tests/test_quantity.py now")
    assert not parse_token("quantity").is_identifier
    assert parse_token("fooBar").is_identifier


@pytest.mark.parametrize("text", ["", "the of and", "-> == ;", "🙂", "\ud800"])
def test_a_text_may_have_no_terms(text: str) -> None:
    assert list_terms(text) == set()


def test_stop_words_stay_in_names() -> None:
    assert "the" in parse_token("find_the_thing").pieces


def test_a_token_of_any_length_has_few_terms() -> None:
    assert len(list_terms("a/" * 100_000)) < 10
    assert max(map(len, list_terms("x" * 100_000))) <= 40
    assert list_terms("9" * 300)


@given(st.text(max_size=200))
def test_any_text_has_terms_without_white_space(text: str) -> None:
    terms = list_terms(text)
    assert all(term and not any(char.isspace() for char in term) for term in terms)
    assert list_terms(fold(text)) is not None


def test_grams_of_short_terms_are_their_characters() -> None:
    assert list_grams("苹果") == {"苹", "果"}
    assert list_grams("abcd") == {"abc", "bcd"}


def test_a_word_of_an_unknown_script_stays() -> None:
    assert stem("שלום") == "שלום"
