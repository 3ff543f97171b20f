"""Names that may have been put in, in a few bits each. Rule: never no for one that was; memory is fixed."""

_BYTES = 4 * 1024 * 1024
_BITS_EACH = 4


class Sieve:
    """A Bloom filter. `size` is in bytes, a power of two.

    Of names that were not put in it takes 1 in 5,000 for one that was when it has a million, 1 in 25 with five million,
    1 in 4 with ten.
    """

    def __init__(self, size: int = _BYTES) -> None:
        self._bits = bytearray(size)
        self._last = size * 8 - 1

    def add(self, name: str) -> None:
        """Put a name in."""
        place = hash(name)
        step = (place >> 32) | 1
        for _ in range(_BITS_EACH):
            at = place & self._last
            self._bits[at >> 3] |= 1 << (at & 7)
            place += step

    def may_hold(self, name: str) -> bool:
        """False for a name that surely was not put in."""
        place = hash(name)
        step = (place >> 32) | 1
        for _ in range(_BITS_EACH):
            at = place & self._last
            if not self._bits[at >> 3] >> (at & 7) & 1:
                return False
            place += step
        return True
