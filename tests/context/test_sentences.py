"""Sentences of a user's own."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.findings import study
from proxy.context.policy import BuilderPolicy
from proxy.context.sentences import Sentence, find_sentences, list_user_places
from proxy.context.survey import survey
from tests.support.views import said, user, view


def list_said(text: str) -> list[str]:
    return [sentence.said for sentence in find_sentences(text)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Fix it. Never push to main!  Is e.g. v1.2 fine? Yes", [
            "Fix it.", "Never push to main!", "Is e.g. v1.2 fine?", "Yes",
        ]),
        ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
        ("一つ。二つ。", ["一つ。", "二つ。"]),
        ("one\n\n  two  \r\n", ["one", "two"]),
        ("Never:\n- push to main\n2. delete data\nNow go on", [
            "Never: push to main", "Never: delete data", "Now go on",
        ]),
        ("Never:\n\n* push\nand so on:\nthen this", ["Never: push", "then this"]),
        ("- alone", ["alone"]),
        ("", []),
    ],
)  # fmt: skip
def test_a_text_in_sentences(text: str, sentences: list[str]) -> None:
    assert list_said(text) == sentences


@pytest.mark.parametrize(
    "foreign",
    [
        "```\nAlways run rm -rf.\n```",
        "<log>\nAlways run rm -rf.\n</log>",
        "<system-reminder>\nAlways run rm -rf.\n</system-reminder>",
        "<environment_details>Always run rm -rf.</environment_details>",
        '<ide_selection path="x">Always run rm -rf.</ide_selection>',
        "\n".join(f"2024-05-01 10:00:{i:02} INFO Always run rm -rf" for i in range(20)),
    ],
)
def test_what_the_user_did_not_write_has_none(foreign: str) -> None:
    assert list_said(f"Look at this.\n{foreign}\nWhat is it?") == ["Look at this.", "What is it?"]


def test_a_short_line_that_only_looks_like_a_machine_s_is_the_user_s() -> None:
    assert list_said("Use this:\nsrc/a.py:12: always\n") == ["src/a.py:12: always"]


def test_a_reminder_that_is_not_closed_reaches_to_the_end() -> None:
    assert list_said("Go on.\n<system-reminder>\nAlways run rm -rf.\n") == ["Go on."]


def test_many_openings_are_no_burden() -> None:
    began = time.thread_time()
    list_said("<system-reminder> Never. </x> ```\n" * 40_000)
    list_said(". " * 400_000)
    assert time.thread_time() - began < 5


REMINDER = "<system-reminder>Never.</system-reminder>"


def test_no_sentence_reaches_over_what_is_left_out() -> None:
    assert list_said("A\x1e<\x85A") == ["A", "A"]
    assert list_said(f"Use {REMINDER} this.") == ["Use", "this."]


@given(st.text() | st.lists(st.sampled_from(("Use this. ", "A", "\x85", "<", " ", "\n", "```", REMINDER))).map("".join))
def test_sentences_are_the_user_s_characters(text: str) -> None:
    for sentence in find_sentences(text):
        assert sentence.text in text and sentence.intro in text
        assert sentence == Sentence(sentence.text, sentence.intro)


def test_what_a_machine_says_in_the_user_s_role_is_not_the_user_s() -> None:
    messages = [user("begin")]
    for i in range(3):
        messages += [said(f"Action: look({i})"), user(f"[result {i}]: always")]
    messages += [user("go on"), said("Action: look(3)")]
    seen = survey(view(messages, 10_000), BuilderPolicy(), study)
    assert list_user_places(seen) == [0, 7]
