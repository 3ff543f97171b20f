import pytest

from proxy.store.summaries import Stretch, find_flaw, find_stretch
from tests.store.samples import make_leaf

SPAN = Stretch("w", 2, 6)
LEFT, RIGHT = Stretch("w", 2, 4), Stretch("w", 4, 6)


def test_a_summary_stands_for_a_stretch() -> None:
    assert find_stretch(make_leaf("a", [b"x", b"y"], 3)) == Stretch("chat_completions", 3, 5)


@pytest.mark.parametrize(
    ("kind", "messages", "parents", "superseded"),
    [
        ("leaf", 4, [], []),
        ("leaf", 4, [], [SPAN, LEFT, RIGHT]),
        ("condensed", 0, [SPAN], []),
        ("condensed", 0, [LEFT, RIGHT], [SPAN, Stretch("w", 3, 5)]),
    ],
)
def test_what_is_whole_has_no_flaw(kind: str, messages: int, parents: list[Stretch], superseded: list[Stretch]) -> None:
    assert find_flaw(kind, SPAN, messages, parents, superseded) == ""


@pytest.mark.parametrize(
    ("kind", "span", "messages", "parents", "superseded", "what"),
    [
        ("leaf", Stretch("w", 6, 6), 0, [], [], "no messages"),
        ("leaf", Stretch("w", -1, 1), 2, [], [], "no messages"),
        ("leaf", SPAN, 3, [], [], "made of"),
        ("leaf", SPAN, 4, [SPAN], [], "made of"),
        ("condensed", SPAN, 0, [], [], "made of"),
        ("condensed", SPAN, 4, [SPAN], [], "made of"),
        ("condensed", SPAN, 0, [LEFT], [], "made of"),
        ("condensed", SPAN, 0, [RIGHT], [], "made of"),
        ("condensed", SPAN, 0, [RIGHT, LEFT], [], "made of"),
        ("condensed", SPAN, 0, [LEFT, LEFT, RIGHT], [], "made of"),
        ("condensed", SPAN, 0, [Stretch("w", 2, 7), Stretch("w", 7, 6)], [], "made of"),
        ("condensed", SPAN, 0, [Stretch("v", 2, 6)], [], "another format"),
        ("leaf", SPAN, 4, [], [Stretch("v", 2, 6)], "another format"),
        ("leaf", SPAN, 4, [], [Stretch("w", 1, 6)], "not within"),
        ("leaf", SPAN, 4, [], [LEFT, Stretch("w", 2, 7)], "not within"),
    ],
)
def test_a_flaw_is_told(
    kind: str, span: Stretch, messages: int, parents: list[Stretch], superseded: list[Stretch], what: str
) -> None:
    assert what in find_flaw(kind, span, messages, parents, superseded)
