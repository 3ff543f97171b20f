"""Outputs that give way."""

import re

from proxy.context.eviction import bury, cut_words, order_outputs, outline_output
from proxy.context.findings import study
from proxy.context.original import PAGE
from proxy.context.policy import BuilderPolicy
from proxy.context.survey import Survey, survey
from tests.support.views import Message, act, result, said, user, view

BIG = "some words that fill an output; " * 40


def look(messages: list[Message]) -> Survey:
    return survey(view(messages, 10_000), BuilderPolicy(), study)


def test_superseded_goes_before_repeated_before_errors_before_old() -> None:
    messages = [
        user("go"),
        *act("1", "cat old", f"{BIG}old"),
        *act("2", "make", f"<returncode>1</returncode>\nerror: {BIG}"),
        *act("3", "cat a", f"{BIG}same"),
        *act("4", "cat b", f"{BIG}1"),
        *act("5", "cat c", f"{BIG}same"),
        *act("6", "cat b", f"{BIG}2"),
        *act("7", "ls", "small"),
    ]
    assert order_outputs(look(messages), range(len(messages))) == [8, 6, 4, 2, 10, 12]
    assert order_outputs(look(messages), [2, 0, 1]) == [2]


def test_a_tombstone_names_the_call_and_all_parts_of_the_original() -> None:
    messages = [user("go"), *act("1", "cat src/a.py", "read_shape " * 2500), user("b")]
    made = bury(view(messages, 10_000), look(messages), 2)
    assert made.edit.text.startswith("[tool: shell — output pruned; completed")
    assert "asked: cat src/a.py" in made.edit.text
    assert [each.offset for each in made.references] == [0, PAGE - 200, 2 * (PAGE - 200)]
    assert set(re.findall(r"ref:(\w{10})", made.edit.text)) == {each.id for each in made.references}


def test_what_had_effects_is_not_to_be_repeated() -> None:
    messages = [user("go"), *act("1", "sed -i s/a/b/ src/a.py", BIG), user("b")]
    text = bury(view(messages, 10_000), look(messages), 2).edit.text
    assert "do not repeat" in text and "run it once more" not in text


def test_the_block_of_a_file_shows_its_path_and_structure() -> None:
    source = "import os\n\n\ndef read_shape(raw):\n    return raw\n" + "# more\n" * 100
    messages = [user("go"), *act("1", "cat src/a.py", source), user("b")]
    text = outline_output(view(messages, 10_000), look(messages), 2).edit.text
    assert text.startswith("[FILE: src/a.py]") and "def read_shape takes raw" in text
    assert "read_shape" not in outline_output(view(messages, 10_000), look(messages), 2, has_outline=False).edit.text


def test_a_language_that_is_not_read_here_is_outlined_by_whoever_can() -> None:
    messages = [user("go"), *act("1", "cat src/a.go", "package main\n" * 100), user("b")]
    told = [
        outline_output(view(messages, 10_000), look(messages), 2, has_outline=has, parse=parse).edit.text
        for has in (True, False)
        for parse in (lambda _, kind: [f"func main of {kind}"], None)
    ]
    assert ["func main of go" in text for text in told] == [True, False, False, False]


def test_words_are_cut_with_a_reference() -> None:
    messages = [user("go"), said(f"ref:abcdefghij {BIG}"), user("b")]
    made = cut_words(view(messages, 10_000), look(messages), 1)
    assert made.edit.text.startswith("ref abcdefghij some words") and f"ref:{made.references[0].id}" in made.edit.text
    assert len(made.edit.text) < 600


def test_an_output_that_nobody_asked_for_is_of_an_unknown_tool() -> None:
    for messages in ([user("go"), result("x", BIG)], [said("hm"), result("x", BIG)]):
        seen = look(messages)
        assert order_outputs(seen, [1]) == [1]
        assert "[tool: unknown" in bury(view(messages, 10_000), seen, 1).edit.text


def test_an_output_whose_call_is_nowhere_is_of_an_unknown_tool() -> None:
    for messages in ([user("go"), result("9", BIG), user("b")], [result("9", BIG), user("b")]):
        place = len(messages) - 2
        assert bury(view(messages, 10_000), look(messages), place).edit.text.startswith("[tool: unknown")
