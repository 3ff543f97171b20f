"""What a client is told of what was sent."""

import pytest

from proxy.engine.context.accounting import list_labels
from proxy.model.epoch import Epoch, Plan

EPOCH = Epoch("x7", "s1", "m", "", b"n", 3, "soft", "x7", 1, 9000, 2000, b"[]", (b"{}",))
COUNTED = Plan("x7", 0, "m", "plan", "x7", tokens_client=9000, tokens_upstream=2000)
UNCOUNTED = Plan("x7", 0, "m", "original")


def test_an_epoch_that_opens_is_named_and_told_of() -> None:
    assert list_labels(COUNTED, EPOCH, is_opened=True) == (
        (b"x-palimpsest-epoch", b"x7"),
        (b"x-palimpsest-tokens", b"client=9000, upstream=2000"),
        (b"x-palimpsest-notice", b"compacted 9000->2000"),
    )


def test_an_epoch_that_stands_is_named_only() -> None:
    assert [name for name, _ in list_labels(COUNTED, EPOCH, is_opened=False)] == [
        b"x-palimpsest-epoch",
        b"x-palimpsest-tokens",
    ]


@pytest.mark.parametrize(("client", "upstream"), [(None, None), (None, 7), (7, None)])
def test_tokens_that_were_not_counted_are_not_told(client: int | None, upstream: int | None) -> None:
    plan = Plan("x7", 0, "m", "original", tokens_client=client, tokens_upstream=upstream)
    assert list_labels(plan, None, is_opened=False) == ()


def test_tokens_are_told_without_an_epoch() -> None:
    assert list_labels(COUNTED, None, is_opened=False) == ((b"x-palimpsest-tokens", b"client=9000, upstream=2000"),)


def test_nothing_is_compacted_where_no_epoch_is() -> None:
    assert list_labels(UNCOUNTED, None, is_opened=True) == ()
