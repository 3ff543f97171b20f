"""The requests of one connection, in the order in which they came.

Rule: the oldest that is not answered is the one whose answer is on its way, whatever the newest is at. What is written
belongs to that one, and an error of ours must not stand in the middle of it.
"""

from collections import deque

from proxy.server.cycle import Cycle

# Who sends more ahead of their answers is no client but a flood: each takes memory before anything is answered.
_MOST = 64


class Pipeline:
    """Requests that are not answered yet, and perhaps the last one that is."""

    def __init__(self) -> None:
        self._cycles: deque[Cycle] = deque()

    def add(self, cycle: Cycle) -> bool:
        """Take a request behind those before it. False where these are too many: the last of them then closes the
        connection when it is answered.
        """
        cycles = self._cycles
        while cycles and cycles[0].response_complete:
            cycles.popleft()
        if len(cycles) >= _MOST:
            cycles[-1].keep_alive = False
            return False
        cycles.append(cycle)
        return True

    @property
    def can_refuse(self) -> bool:
        """Whether an error of ours can be the next answer: all are answered, or the one whose body is bad is next."""
        left = [cycle for cycle in self._cycles if not cycle.response_complete]
        return not left or (len(left) == 1 and left[0].more_body and not left[0].response_started)

    def disconnect(self) -> None:
        """Tell all that their client has left."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
