"""A summary lies in the journal as it is encoded."""

import msgspec
import pytest
from msgspec.structs import replace

from proxy.model.record import Record
from proxy.model.summary import Summary

LEAF = Summary("a", "s", "w", 0, 1, b"\xff" * 16, "leaf", 3, True, "é\0", 1, 2, 3, digests=(b"\x00" * 32,))
CONDENSED = replace(LEAF, kind="condensed", level=1, calls=("e1",), parents=("a", "b"), files=("ref:c",), digests=())


@pytest.mark.parametrize("summary", [LEAF, CONDENSED], ids=lambda summary: summary.kind)
def test_a_summary_is_told_from_other_records_and_comes_back(summary: Summary) -> None:
    encoded = msgspec.msgpack.encode((summary,))
    assert msgspec.msgpack.decode(encoded, type=tuple[Record, ...]) == (summary,)


def test_a_level_that_is_none_is_refused() -> None:
    encoded = msgspec.msgpack.encode(replace(LEAF, level=4))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=Summary)
