"""How much memory the bodies of all requests under way may take together.

Only bodies that are read whole count; those that stream through are held back by their upstream. Bodies of more than
`SMALL_BYTES` may take three quarters of the budget together, and wait in the order in which they came; the rest is left
to small ones, so that a few large uploads never keep everybody else waiting.
"""

import asyncio
from collections import deque

SMALL_BYTES = 1024 * 1024
_SMALL_FRACTION = 0.25


class Share:
    """What one request holds of the budget. Close it when the request is done with."""

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> bool:
        """Hold so many bytes in all from now on; False where there is no room for them, or others have come before."""
        return self._budget.resize(self, size)

    def wait(self, size: int) -> "asyncio.Future[bool]":
        """As `grow`, resolved with True once there is room. Resolve it with False to give up."""
        return self._budget.queue(self, size)

    def close(self) -> None:
        """Give back what is held."""
        self._budget.release(self)


class BodyBudget:
    """Bytes that are `held`, and who waits for some. `most` is their number; one body always has room, if alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0
        self._held_large = 0
        self._small_part = int(most * _SMALL_FRACTION)
        self._waiting: dict[bool, deque[tuple[Share, int, asyncio.Future[bool]]]] = {False: deque(), True: deque()}

    def resize(self, share: Share, size: int) -> bool:
        """Have a share hold so many bytes, if there is room and nobody of its kind waits."""
        if self._waiting[size > SMALL_BYTES] or not self._has_room(share, size):
            return False
        self._set(share, size)
        return True

    def queue(self, share: Share, size: int) -> "asyncio.Future[bool]":
        """Have a share wait for so many bytes."""
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[_is_large(size)].append((share, size, granted))
        granted.add_done_callback(lambda _: self._grant())  # who gave up is not in the way of those behind
        return granted

    def release(self, share: Share) -> None:
        """Have a share hold nothing, and let those in for whom there is room now."""
        if share.size:
            self._set(share, 0)
            self._grant()

    def _grant(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                share, size, granted = waiting[0]
                if not granted.done() and not self._has_room(share, size):
                    break
                waiting.popleft()
                if not granted.done():
                    self._set(share, size)
                    granted.set_result(True)

    def _has_room(self, share: Share, size: int) -> bool:
        others = self.held - share.size
        others_large = self._held_large - (share.size if _is_large(share.size) else 0)
        if not _is_large(size):
            return others + size <= self._most or others == others_large
        return not others_large or max(others, others_large + self._small_part) + size <= self._most

    def _set(self, share: Share, size: int) -> None:
        self.held += size - share.size
        self._held_large += (size if _is_large(size) else 0) - (share.size if _is_large(share.size) else 0)
        share.size = size


def _is_large(size: int) -> bool:
    return size > SMALL_BYTES
