"""Lines worth quoting."""

from proxy.context.findings import study
from proxy.context.policy import BuilderPolicy
from proxy.context.quotes import QuotedLine, list_lines, order_quotes
from proxy.context.reuse import make_index
from proxy.context.survey import survey
from tests.support.views import Message, act, user, view


def order(messages: list[Message], *gone: int) -> list[QuotedLine]:
    seen = survey(view(messages, 10_000), BuilderPolicy(), study)
    return order_quotes(seen, gone, make_index(seen).ages)


def test_a_line_counts_without_number_and_indentation() -> None:
    text = "  12:     return read_shape(raw)\nshort\n" + "x" * 300 + "\n"
    assert list(list_lines(text)) == ["return read_shape(raw)"]


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


def test_lines_of_other_steps_are_not_quoted() -> None:
    assert order([user("go"), *act("1", "ls", "from proxy.wire import shaping"), user("x")], 0) == []
