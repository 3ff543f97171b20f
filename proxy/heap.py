"""Memory given back to the system. Rule: only in a pause, and only what the C library holds on to.

glibc keeps freed memory below anything still in use: after 64 calls of 800 KB at once the process stood at 207 MB, of
which 55 MB were free. Trimming walks the heap for some milliseconds, so that it waits until no call is under way. What
the C library holds is told by the slack: resident memory that nobody has asked it for. Resident memory alone does not
tell, for what is freed stays resident: once trimmed at its largest, a process would never be trimmed again.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

_EVERY_SECONDS = 2.0
_WORTHWHILE_BYTES = 16 * 1024 * 1024
_STATM = Path("/proc/self/statm")


class _Heap(ctypes.Structure):
    """`struct mallinfo2`: bytes in use are `uordblks`, and `hblkhd` in mappings of their own."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


class Timers(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[["Timers"], object], loop: "Timers", /) -> Timer:
        """Call back after so many seconds."""
        ...


class HeapTrimmer:
    """Looks now and then whether the slack has grown, and trims the process while `is_idle`."""

    def __init__(
        self, is_idle: Callable[[], bool], trim: Callable[[], object] | None, read_slack: Callable[[], int]
    ) -> None:
        self._is_idle = is_idle
        self._trim = trim
        self._read_slack = read_slack
        self._floor = 0
        self._timer: Timer | None = None

    def start(self, loop: Timers) -> None:
        """Begin to look; nothing where the C library cannot trim."""
        if self._trim is not None:
            self._timer = loop.call_later(_EVERY_SECONDS, self._look, loop)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: Timers) -> None:
        if self._trim is not None and self._is_idle():
            self._trim_if_worthwhile(self._trim)
        self.start(loop)

    def _trim_if_worthwhile(self, trim: Callable[[], object]) -> None:
        slack = self._read_slack()
        if slack >= self._floor + _WORTHWHILE_BYTES:
            trim()
            self._floor = slack = self._read_slack()
        self._floor = min(self._floor, slack)  # Python gives memory back by itself, too


def find_trim() -> Callable[[], object] | None:
    """The C library's `malloc_trim(0)`; None where it is not glibc."""
    trim = _find_function("malloc_trim")
    return None if trim is None else lambda: trim(0)


def find_slack() -> Callable[[], int]:
    """What reads the slack in bytes; resident memory itself before glibc 2.33, which says too little."""
    read = _find_function("mallinfo2")
    if read is None:
        return read_resident_bytes
    read.restype = _Heap

    def read_slack() -> int:
        heap: _Heap = read()
        return read_resident_bytes() - int(heap.uordblks + heap.hblkhd)

    return read_slack


def read_resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say (Linux does)."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _find_function(name: str) -> Any:
    """A function of the C library; None where it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
