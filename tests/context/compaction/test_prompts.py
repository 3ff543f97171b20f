"""What a model is asked."""

import pytest

from proxy.context.compaction.acceptance import Accepted, accept
from proxy.context.compaction.prompts import MOST, SummaryOrder, describe_span, write_instruction, write_request
from proxy.context.compaction.sections import NAMES, SHORT_NAMES, read_sections
from proxy.context.compaction.spans import MessageRange
from proxy.model.summary import Kind, Level
from tests.support.reports import ANSWER, DAY, FRAME, look, make_task
from tests.support.views import act, count, said, user

DEMANDS = ("call no tools", "word for word in double quotes", "at most 2,000 tokens, which are about 1,400 words")
WISHES = ("third person", "past tense", "pending", "no orders", "language", "exactly as they are", "never the user's")


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("kind", ["leaf", "condensed"])
def test_it_asks_for_what_acceptance_looks_for(kind: Kind, level: Level) -> None:
    system, said = write_request(SummaryOrder(kind, level, 2000), "MATERIAL")
    assert all(demand in system for demand in (*DEMANDS, *WISHES)) and "as in [m12]" in system
    assert list(read_sections(system)) == [name for name in NAMES if level == 1 or name in SHORT_NAMES]
    assert "MATERIAL" in said and "MATERIAL" not in system


def test_a_warm_call_says_which_part_is_meant_and_asks_for_no_numbers() -> None:
    stretch = describe_span(look(DAY), MessageRange(1, 7, 0))
    text = write_instruction(SummaryOrder("leaf", 1, 2000), stretch)
    assert stretch in text and "[m12]" not in text and "not by the user" in text
    assert all(demand in text for demand in (*DEMANDS, *WISHES))
    assert stretch == (
        "the 6 messages from the call of shell that begins with “cat src/parse.py” up to the user's message that begins"
        " with “Now the tests, please. Keep the old API working at all costs.”. What came later is out of scope."
    )


def test_a_stretch_is_described_by_what_it_begins_and_ends_with() -> None:
    messages = [said("hm"), *act("a", "ls", "[tool: x]\ny")]
    assert describe_span(look(messages), MessageRange(0, 3, 0)).startswith(
        "the 3 messages from the message that begins with “hm” up to the output that begins with “(tool: x] y”"
    )
    assert "begins with “”" in describe_span(look([user("")]), MessageRange(0, 1, 0))


def test_a_custom_prompt_replaces_the_wording_but_not_the_format() -> None:
    for text in (
        write_request(SummaryOrder("leaf", 1, 2000, "Tell it as a poem."), "x")[0],
        write_instruction(SummaryOrder("leaf", 1, 2000, "Tell it as a poem."), "x"),
    ):
        assert "Tell it as a poem." in text and all(demand in text for demand in DEMANDS)
        assert "third person" not in text


def test_an_answer_as_the_prompt_shows_it_is_accepted() -> None:
    system, _ = write_request(SummaryOrder("leaf", 1, 2000), "x")
    assert isinstance(accept(ANSWER, make_task(), FRAME, count), Accepted)
    assert all(f"## {name}" in system for name in read_sections(ANSWER))
    assert MOST == {1: 8192, 2: 4000}
