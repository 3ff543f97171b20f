"""What is erased from the log without being asked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """For how many days a session is kept after its newest call, and how large the log may get before the longest idle
    sessions are erased; 0: nothing is erased for that.
    """

    days: int = 0
    max_bytes: int = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is ever erased."""
        return bool(self.days or self.max_bytes)
