"""Epochs and pins are values, equal by content and immutable."""

import msgspec
import pytest
from msgspec.structs import replace

from proxy.model.epoch import Epoch, Original, Pin, StoredContext, StoredOriginal

EPOCH = Epoch("p1", "s1", "gpt-5", "", b"n" * 16, 4, "hard", "x1", 7, 90, 30, b"[]", (b"{}",))


def test_an_epoch_refers_to_nothing_unless_it_is_said() -> None:
    assert EPOCH.originals == ()
    original = Original("r1", (b"d" * 32,), "chat_completions", 3)
    assert original.offset == 0
    assert replace(EPOCH, originals=(original,)) != EPOCH == replace(EPOCH)


def test_an_epoch_without_what_came_later_is_still_understood() -> None:
    fields = msgspec.structs.astuple(EPOCH)[:-1]
    payload = msgspec.msgpack.encode(["Epoch", *fields])
    assert msgspec.msgpack.decode(payload, type=Epoch | Pin) == EPOCH


def test_an_epoch_and_a_pin_cannot_be_changed() -> None:
    pin = Pin("s1", b"n" * 16, True, 7)
    with pytest.raises(AttributeError):
        EPOCH.depth = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        pin.is_on = False  # type: ignore[misc]


def test_of_a_session_that_nobody_managed_nothing_is_known() -> None:
    assert StoredContext() == StoredContext((), (), ())
    original = Original("r1", (), "responses", 0)
    assert StoredOriginal("s1", original, ()) != StoredOriginal("s2", original, ())
