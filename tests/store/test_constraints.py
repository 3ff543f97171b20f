import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.model.exchange import Usage
from proxy.store.constraints import (
    MessageSpan,
    find_summary_fault,
    fit_text,
    fit_texts,
    fit_usage,
)
from tests.store.samples import make_epoch, make_leaf, make_original, make_plan


@given(st.text())
def test_text_with_utf8_stays_as_it_is(text: str) -> None:
    assert fit_text(text) == text


@given(st.text(st.characters()))
def test_any_text_gets_an_encoding(text: str) -> None:
    assert len(fit_text(text)) == len(text)
    fit_text(text).encode()


@pytest.mark.parametrize(
    ("count", "fitted"), [(None, None), (0, 0), (2**63 - 1, 2**63 - 1), (2**63, 2**63 - 1), (-(2**70), 1 - 2**63)]
)
def test_counts_are_held_within_64_bits(count: int | None, fitted: int | None) -> None:
    assert fit_usage(Usage(count, 1)) == Usage(fitted, 1)


@pytest.mark.parametrize("usage", [None, Usage()])
def test_usage_that_says_nothing_is_none(usage: Usage | None) -> None:
    assert fit_usage(usage) is None


def test_names_of_managed_context_get_an_encoding() -> None:
    epoch, plan = make_epoch(view="m\ud800é"), make_plan(view="m\ud800")
    assert fit_texts(epoch) == replace(epoch, view="m?é")
    assert fit_texts(replace(plan, reason="\udfff")) == replace(plan, view="m?", reason="?")
    original = make_original("r\ud800", b"x")
    assert fit_texts(replace(original, wire="\ud800")) == replace(original, id="r?", wire="?")


def test_texts_in_the_parts_of_a_record_get_an_encoding() -> None:
    odd, plain = make_original("r\ud800", b"x"), make_original("s", b"x")
    epoch = make_epoch(originals=[plain, odd])
    assert fit_texts(epoch).originals == (plain, replace(odd, id="r?"))


def test_texts_of_a_summary_get_an_encoding() -> None:
    odd = make_leaf("a\ud800", text="\ud800 é")
    names = ("wire", "model", "reason")
    odd = replace(odd, calls=("\ud800",), parents=("\ud801",), supersedes=("\ud802",), files=("\ud803", "é"))
    odd = replace(odd, **dict.fromkeys(names, "\udfff"))
    fitted = replace(odd, id="a?", text="? é", calls=("?",), parents=("?",), supersedes=("?",), files=("?", "é"))
    assert fit_texts(odd) == replace(fitted, **dict.fromkeys(names, "?"))


SPAN = MessageSpan("w", 2, 6)
LEFT, RIGHT = MessageSpan("w", 2, 4), MessageSpan("w", 4, 6)


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
