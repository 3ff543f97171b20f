"""Plans, epochs and summaries are values, and go through msgspec unchanged."""

from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from proxy.model.epoch import (
    Edit,
    Epoch,
    EpochReason,
    Kept,
    Replaced,
    Summary,
    Written,
)
from proxy.model.log import Record

EDITS: tuple[Edit, ...] = (
    Written("done so far", 1, 7),
    Kept(0),
    Replaced(7, "[shown earlier]", "tombstone"),
    Replaced(8, "[FILE: a.py]", "file"),
)


def test_edits_come_back_from_json_as_what_they_were() -> None:
    found = msgspec.json.decode(msgspec.json.encode(EDITS), type=tuple[Edit, ...])
    assert found == EDITS
    assert [type(edit) for edit in found] == [Written, Kept, Replaced, Replaced]


@pytest.mark.parametrize("content", [b'[["Dropped",1]]', b'[["Kept"]]', b'[["Replaced",1,"x","other"]]', b"[1]"])
def test_what_is_no_edit_is_not_read_as_one(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(content, type=tuple[Edit, ...])


EPOCH = Epoch("p1", "s1", "gpt-5", "", b"n" * 16, 4, "hard", "x1", 7, 90, 30, b"[]", (b"{}",))


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


def test_what_goes_back_to_the_epoch_before_is_a_reversion() -> None:
    assert [why for why in get_args(EpochReason) if replace(EPOCH, why=why).is_reversion] == ["revert", "refused"]
