"""Messages are values; runs are what the assistant says in one go, and the results behind it."""

import json

from proxy.model.messages import (
    LEDGER_HEAD,
    CountedContent,
    MessageStructure,
    TokenWeight,
    list_run_starts,
)

USER, SAID, CALL, RESULT = (
    MessageStructure("user"),
    MessageStructure("assistant"),
    MessageStructure("assistant", ("a",)),
    MessageStructure("tool", (), ("a",)),
)


def test_what_is_said_in_one_go_and_its_results_are_one_run() -> None:
    assert list_run_starts(
        [MessageStructure("system"), USER, SAID, CALL, RESULT, RESULT, CALL, RESULT, USER, USER]
    ) == [
        0,
        1,
        2,
        6,
        8,
        9,
    ]


def test_text_alone_has_neither_media_nor_frame_and_its_weight_is_counted() -> None:
    assert CountedContent("a") == CountedContent("a", (), 0)
    assert TokenWeight(1) == TokenWeight(1, (), is_estimate=False)


def test_the_head_of_a_ledger_is_the_same_in_json() -> None:
    assert json.dumps(LEDGER_HEAD) == f'"{LEDGER_HEAD}"'
    assert len(LEDGER_HEAD) >= 16
    assert LEDGER_HEAD.isascii()
