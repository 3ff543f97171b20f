import struct
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.sqlite.journal import RingBuffer, has_entry_behind, read_entries

NONCE = 0x1122334455667788
HEADER = 24


def make_ring(size: int = 256, filler: bytes = b"\0", nonce: int = NONCE) -> tuple[RingBuffer, memoryview]:
    area = memoryview(bytearray(filler * size))
    return RingBuffer(area, nonce), area


def read(area: memoryview, place: int = 0, nonce: int = NONCE) -> list[bytes]:
    return [payload for payload, _ in read_entries(area, nonce, place)]


def test_what_was_added_is_read_in_order_and_goes_on_from_any_place() -> None:
    ring, area = make_ring()
    places = [ring.add(payload) for payload in (b"one", b"", b"three" * 9)]
    assert read(area) == [b"one", b"", b"three" * 9]
    assert [place for _, place in read_entries(area, NONCE, 0)] == places
    assert read(area, places[0]) == [b"", b"three" * 9]
    assert read(area, places[-1]) == []


def test_a_blank_stretch_holds_nothing() -> None:
    assert read(make_ring()[1]) == read(make_ring(filler=b"\xff")[1]) == []


def test_entries_of_another_ring_are_not_read() -> None:
    old, area = make_ring()
    for payload in (b"a" * 40, b"b" * 40, b"c" * 40):
        old.add(payload)
    ring = RingBuffer(area, NONCE + 1)
    assert read(area, nonce=NONCE + 1) == []
    ring.add(b"x" * 40)  # as long as the first of the old ones: the second follows on it, byte for byte
    assert read(area, nonce=NONCE + 1) == [b"x" * 40]


def test_a_full_ring_takes_nothing_until_room_is_freed() -> None:
    ring, area = make_ring(128)
    first = ring.add(b"a" * 40)
    second = ring.add(b"b" * 40)
    assert (ring.used, ring.add(b"c")) == (128, 0)
    assert read(area) == [b"a" * 40, b"b" * 40]
    ring.free(first)
    third = ring.add(b"c" * 40)
    assert third and ring.add(b"") == 0
    assert read(area, first) == [b"b" * 40, b"c" * 40]
    assert read(area, second) == [b"c" * 40]


def test_a_ring_goes_on_behind_the_entries_that_are_there() -> None:
    ring, area = make_ring(512)
    for i in range(20):  # some turns, so that places are far beyond the size
        ring.free(ring.add(b"%060d" % i))
    freed = ring.end
    kept = [ring.add(payload) for payload in (b"a" * 40, b"b" * 40)]
    again = RingBuffer(area, NONCE)
    again.resume(freed)
    assert (again.end, again.used) == (ring.end, ring.used)
    last = again.add(b"c" * 40)
    assert read(area, freed) == [b"a" * 40, b"b" * 40, b"c" * 40]
    again.free(kept[0])
    while place := again.add(b"d" * 40):
        last = place
    assert read(area, kept[0])[:2] == [b"b" * 40, b"c" * 40]
    again.free(last)
    assert again.used == 0


def test_a_ring_that_holds_nothing_more_goes_on_at_its_place() -> None:
    ring, area = make_ring()
    end = ring.add(b"one")
    again = RingBuffer(area, NONCE)
    again.resume(end)
    assert (again.end, again.used) == (end, 0)
    again.add(b"two")
    assert read(area, end) == [b"two"]


def test_an_entry_is_never_larger_than_the_ring() -> None:
    ring, _ = make_ring(128)
    assert ring.add(b"x" * (128 - HEADER + 1)) == 0
    assert ring.add(b"x" * (128 - HEADER))


def test_an_empty_ring_begins_at_its_front_again() -> None:
    ring, area = make_ring(1024)
    for i in range(100):
        ring.free(ring.add(b"%03d" % i))
    assert bytes(area[HEADER : HEADER + 3]) == b"099"
    assert not any(area[32:])


def test_an_entry_that_does_not_fit_before_the_end_begins_at_the_front() -> None:
    ring, area = make_ring(128)
    first = ring.add(b"a" * 40)
    second = ring.add(b"b" * 16)
    ring.free(first)
    assert ring.add(b"c" * 40)  # 24 bytes are left behind b
    assert bytes(area[HEADER : HEADER + 40]) == b"c" * 40
    assert read(area, first) == [b"b" * 16, b"c" * 40]
    assert read(area, second) == [b"c" * 40]


def tear(before: bytes, after: bytes, at: int, size: int, cut: int) -> memoryview:
    """The area when `cut` bytes of an entry of `size` bytes at `at` were written: payload first, header last."""
    order = [*range(at + HEADER, at + size), *range(at, at + HEADER)]
    area = bytearray(before)
    for i in order[:cut]:
        area[i] = after[i]
    return memoryview(area)


@pytest.mark.parametrize("filler", [b"\0", b"\xa5"])
def test_an_entry_torn_at_any_byte_is_not_read_and_those_before_it_are(filler: bytes) -> None:
    ring, area = make_ring(filler=filler)
    kept = ring.add(b"kept")
    before = bytes(area)
    end = ring.add(b"this one is torn")
    for cut in range(end - kept):
        torn = tear(before, bytes(area), kept, end - kept, cut)
        assert read(torn) == [b"kept"] or bytes(torn) == bytes(area)
    assert read(area) == [b"kept", b"this one is torn"]


def test_an_entry_torn_over_one_of_an_earlier_turn_is_not_read() -> None:
    ring, area = make_ring(128)
    ring.free(ring.add(b"a" * 40))
    before = bytes(area)
    place = 64
    end = ring.add(b"b" * 40)
    for cut in range(64):
        torn = tear(before, bytes(area), 0, 64, cut)
        assert read(torn, place) == [] or bytes(torn) == bytes(area)
    assert [end for _, end in read_entries(area, NONCE, place)] == [end]


def test_damage_to_any_byte_ends_what_is_read_there() -> None:
    ring, area = make_ring()
    first = ring.add(b"sound...")
    second = ring.add(b"damaged.")
    ring.add(b"behind..")
    for i in range(first, second):
        for bit in range(8):
            area[i] ^= 1 << bit
            assert read(area) == [b"sound..."]
            area[i] ^= 1 << bit
    assert len(read(area)) == 3


def test_a_length_beyond_the_end_is_no_entry() -> None:
    ring, area = make_ring()
    ring.add(b"x")
    struct.pack_into("<I", area, 16, 0xFFFF_FFFF)
    assert read(area) == []


def test_a_front_laid_down_after_a_place_is_seen() -> None:
    ring, area = make_ring(128)
    assert not has_entry_behind(area, NONCE, 0)
    first = ring.add(b"a" * 40)
    assert not has_entry_behind(area, NONCE, 0)
    ring.free(ring.add(b"b" * 40))
    ring.add(b"c")
    assert has_entry_behind(area, NONCE, first)
    assert not has_entry_behind(area, NONCE + 1, first)


@given(st.lists(st.one_of(st.integers(0, 130), st.sampled_from(["free", "free all"])), max_size=60))
def test_any_order_of_adding_and_freeing_loses_nothing_that_was_not_freed(steps: "list[int | str]") -> None:
    ring, area = make_ring(256, b"\x7f")
    kept: deque[tuple[bytes, int]] = deque()
    mark = 0
    for number, step in enumerate(steps):
        if isinstance(step, int):
            payload = bytes([number]) * step
            place = ring.add(payload)
            if place:
                kept.append((payload, place))
            else:
                assert kept, "an empty ring takes whatever is not larger than it"
        else:
            while kept:
                mark = kept.popleft()[1]
                ring.free(mark)
                if step == "free":
                    break
        assert list(read_entries(area, NONCE, mark)) == list(kept)
        assert ring.used <= 256
