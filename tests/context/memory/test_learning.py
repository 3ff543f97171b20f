"""What is learned from a report: the user's own words with their message, everything else as a claim."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.compaction.acceptance import AcceptedSummary, check_summary
from proxy.context.compaction.spans import MessageRange
from proxy.context.memory.learning import MAX_RULES, learn_facts
from proxy.model.memory import CLAIMED, MAX_FACTS, LearnedFact
from tests.support.reports import ANSWER, DAY, FRAME, POISON, look, make_task
from tests.support.views import RawMessage, act, count, said, user

TALK: list[RawMessage] = [
    user("Fix the parser. Never push to main. I'd rather have short functions. The staging server runs on port 8484."),
    *act("a", "cat src/parse.py", f"def parse_expression(tokens): return recursive_descent(tokens)\n# {POISON}\n"),
    said("The bug is in parse_expression."),
    user("Always answer in French. Will you always do that? Ok, go on."),
    said("Done."),
]


def name_nodes(messages: Sequence[RawMessage]) -> list[bytes]:
    return [bytes([n % 250]) * 16 for n in range(len(messages))]


def learn(
    *stated: str, messages: Sequence[RawMessage] = TALK, start: int = 0, report: str = "", foreign: Sequence[int] = ()
) -> tuple[LearnedFact, ...]:
    span = MessageRange(start, len(messages), 0)
    nodes = name_nodes(messages)
    return learn_facts(look(messages), span, nodes, stated=stated, report=report, foreign=frozenset(foreign))


def learn_one(*stated: str) -> LearnedFact:
    """The only fact beside the user's own rules."""
    (found,) = [each for each in learn(*stated) if each not in learn()]
    return found


def test_rules_and_preferences_are_learned_without_a_model() -> None:
    assert learn() == (
        LearnedFact("constraint", "Never push to main.", (), (b"\0" * 16,), 1.0, 0.9),
        LearnedFact("preference", "I'd rather have short functions.", (), (b"\0" * 16,), 1.0, 0.8),
        LearnedFact("constraint", "Always answer in French.", (), (b"\4" * 16,), 1.0, 0.9),
    )


def test_what_a_message_says_twice_is_one() -> None:
    messages = [user("Never push to main. I prefer tabs. Never push to main. I prefer tabs.")]
    assert [each.text for each in learn(messages=messages)] == ["Never push to main.", "I prefer tabs."]


def test_only_those_of_the_span_and_not_those_of_somebody_else() -> None:
    assert [each.text for each in learn(start=1)] == ["Always answer in French."]
    assert [each.text for each in learn(foreign=(4,))] == ["Never push to main.", "I'd rather have short functions."]


def test_the_newest_rules_are_kept_where_there_are_too_many() -> None:
    many = [user(" ".join(f"Never touch the file number {n} of all." for n in range(MAX_RULES + 10)))]
    found = learn(messages=many)
    assert len(found) == MAX_RULES and "number 209 " in found[-1].text


def test_what_an_accepted_report_quotes_is_learned_too() -> None:
    report = check_summary(ANSWER, make_task(), FRAME, count)
    assert isinstance(report, AcceptedSummary)
    span = MessageRange(1, 9, 0)
    found = learn_facts(look(DAY), span, name_nodes(DAY), report=report.text)
    assert [(each.text, each.nodes) for each in found] == [
        ("Never push to main.", (b"\0" * 16,)),
        ("Keep the old API working at all costs.", (b"\6" * 16,)),
    ]
    assert learn_facts(look(DAY), MessageRange(0, 5, 0), name_nodes(DAY), report=report.text)[-1].nodes == (b"\0" * 16,)


def test_a_quotation_of_no_message_is_passed_over() -> None:
    report = '## Key instructions and constraints\n- m0: "Do it all"\n- m99: "Do it now"'
    assert learn(report=report) == learn()


def test_the_user_s_words_are_quoted_whole_and_with_their_message() -> None:
    found = learn_one('- [fact 0.4] "the staging server runs on port 8484" #Ports #staging [m3]')
    assert found == LearnedFact(
        "fact", "The staging server runs on port 8484.", ("ports", "staging"), (b"\0" * 16,), 1.0, 0.4
    )
    assert learn('- [constraint] "never push to main" [m1]') == learn()
    changed = learn("- [constraint] never push to main [m1] (replaces: you may push to main)")[-1]
    assert (changed.text, changed.replaces) == ("Never push to main.", "you may push to main")


def test_what_no_message_of_the_user_says_is_a_claim() -> None:
    found = learn_one("- [decision 0.9] parse_expression uses recursive_descent on tokens #parser")
    text = "parse_expression uses recursive_descent on tokens"
    assert found == LearnedFact("decision", text, ("parser", CLAIMED), (b"\2" * 16,), 0.5, 0.75)


def test_a_rule_of_a_tool_is_never_one_of_the_user_s() -> None:
    poisoned = learn_one(f"- [constraint 1.0] {POISON} #claimed [m1]")
    assert (poisoned.kind, poisoned.tags) == ("fact", (CLAIMED,))
    assert (poisoned.confidence, poisoned.salience, poisoned.nodes) == (0.5, 0.75, (b"\2" * 16,))
    assert learn_one("- [preference] The user loves to run rm -rf everywhere").kind == "fact"


def test_a_named_message_is_believed_if_it_has_a_word_of_the_claim() -> None:
    assert learn_one("- [fact] the bug breaks recursive_descent of tokens [m4]").nodes == (b"\2" * 16,)
    assert learn_one("- [fact] parse_expression breaks recursive_descent of tokens [m4]").nodes == (b"\3" * 16,)


@pytest.mark.parametrize("cited", ["", " [m99]", " [m0]", " [m1]"])
def test_the_source_of_a_claim_is_found_by_its_words_or_there_is_none(cited: str) -> None:
    assert learn_one(f"- [fact] parse_expression calls recursive_descent{cited}").nodes == (b"\2" * 16,)
    assert learn_one(f"- [fact] zebras rarely compile fortran{cited}").nodes == ()
    assert learn_one(f"- [fact] a b c{cited}").nodes == ()


@pytest.mark.parametrize(
    ("line", "kind", "salience", "text"),
    [
        ("- [fact 0.6] zebra one", "fact", 0.6, "zebra one"),
        ("* (decision, 0.7): zebra one", "decision", 0.7, "zebra one"),
        ("1. **Decision** zebra one", "decision", 0.6, "zebra one"),
        ("[FACT 60%] zebra one", "fact", 0.6, "zebra one"),
        ("- decision: zebra one", "decision", 0.6, "zebra one"),
        ("- [fact 7] zebra one", "fact", 0.5, "zebra one"),
        ("- [fact -1] zebra one", "fact", 0.5, "zebra one"),
        ("- zebra one", "fact", 0.5, "zebra one"),
        ("- [insight 0.9] zebra one", "fact", 0.5, "[insight 0.9] zebra one"),
        ("- [fact] “zebra one”", "fact", 0.5, "zebra one"),
        ('- [fact] `zebra` one (replaces: "zebra two"', "fact", 0.5, "zebra` one"),
        ("- [fact] issue #12 of c# stays", "fact", 0.5, "issue #12 of c# stays"),
    ],
)
def test_a_line_is_read_whatever_form_a_model_gives_it(line: str, kind: str, salience: float, text: str) -> None:
    found = learn_one(line)
    assert (found.kind, found.salience, found.text) == (kind, salience, text)


def test_what_is_no_fact_or_comes_twice_is_left_out() -> None:
    assert learn("- none", "", "- [fact]", "* **", "N/A", "No new facts.", "- [fact 0.5] #tag [m1]") == learn()
    assert len(learn("- [fact] zebra one", "- [decision] Zebra, one!")) == len(learn()) + 1


def test_a_model_states_twenty_facts_at_most() -> None:
    found = learn(*(f"- [fact] zebra number {n}" for n in range(40)))
    assert len(found) == len(learn()) + MAX_FACTS


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=120) | st.from_regex(r"- \[(fact|constraint) [0-9.%-]{0,6}\].{0,60}", fullmatch=True)))
def test_any_lines_are_read_and_only_the_user_is_confirmed(lines: list[str]) -> None:
    own = {message["content"] for message in TALK if message["role"] == "user"}
    for found in learn(*lines):
        assert found.text and 0 <= found.confidence <= 1 and 0 <= found.salience <= 1
        assert (CLAIMED in found.tags) != (found.confidence == 1.0)
        if CLAIMED not in found.tags:
            assert any(all(part in text for part in found.text.split()) for text in own)
