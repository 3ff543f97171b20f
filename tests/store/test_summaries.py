import pytest

from proxy.store.constraints import MessageSpan, find_summary_fault, span_of
from tests.store.samples import make_leaf

SPAN = MessageSpan("w", 2, 6)
LEFT, RIGHT = MessageSpan("w", 2, 4), MessageSpan("w", 4, 6)


def test_a_summary_stands_for_a_stretch() -> None:
    assert span_of(make_leaf("a", [b"x", b"y"], 3)) == MessageSpan("chat_completions", 3, 5)


@pytest.mark.parametrize(
    ("kind", "messages", "parents", "superseded"),
    [
        ("leaf", 4, [], []),
        ("leaf", 4, [], [SPAN, LEFT, RIGHT]),
        ("condensed", 0, [SPAN], []),
        ("condensed", 0, [LEFT, RIGHT], [SPAN, MessageSpan("w", 3, 5)]),
    ],
)
def test_what_is_whole_has_no_flaw(
    kind: str, messages: int, parents: list[MessageSpan], superseded: list[MessageSpan]
) -> None:
    assert find_summary_fault(kind, SPAN, messages, parents, superseded) == ""


@pytest.mark.parametrize(
    ("kind", "span", "messages", "parents", "superseded", "what"),
    [
        ("leaf", MessageSpan("w", 6, 6), 0, [], [], "no messages"),
        ("leaf", MessageSpan("w", -1, 1), 2, [], [], "no messages"),
        ("leaf", SPAN, 3, [], [], "made of"),
        ("leaf", SPAN, 4, [SPAN], [], "made of"),
        ("condensed", SPAN, 0, [], [], "made of"),
        ("condensed", SPAN, 4, [SPAN], [], "made of"),
        ("condensed", SPAN, 0, [LEFT], [], "made of"),
        ("condensed", SPAN, 0, [RIGHT], [], "made of"),
        ("condensed", SPAN, 0, [RIGHT, LEFT], [], "made of"),
        ("condensed", SPAN, 0, [LEFT, LEFT, RIGHT], [], "made of"),
        ("condensed", SPAN, 0, [MessageSpan("w", 2, 7), MessageSpan("w", 7, 6)], [], "made of"),
        ("condensed", SPAN, 0, [MessageSpan("v", 2, 6)], [], "another format"),
        ("leaf", SPAN, 4, [], [MessageSpan("v", 2, 6)], "another format"),
        ("leaf", SPAN, 4, [], [MessageSpan("w", 1, 6)], "not within"),
        ("leaf", SPAN, 4, [], [LEFT, MessageSpan("w", 2, 7)], "not within"),
    ],
)
def test_a_flaw_is_told(
    kind: str, span: MessageSpan, messages: int, parents: list[MessageSpan], superseded: list[MessageSpan], what: str
) -> None:
    assert what in find_summary_fault(kind, span, messages, parents, superseded)
