"""What passes between this program and its processes: frames of four bytes of length, then MessagePack.

A process reads jobs from standard input and writes their results to standard output, one after another.
"""

import contextlib
import ctypes
import resource
import signal
from collections.abc import Callable
from typing import BinaryIO, TypeVar

import msgspec

from proxy.model import Value

LENGTH_BYTES = 4
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

J = TypeVar("J")


class Result(Value, array_like=True):
    """The result of a job in MessagePack, or the problem if it failed."""

    content: bytes
    problem: str = ""


def make_frame(value: object) -> bytes:
    """Return a job or a result as a frame."""
    content = msgspec.msgpack.encode(value)
    return len(content).to_bytes(LENGTH_BYTES) + content


def serve(
    do: Callable[[J], object],
    decode: Callable[[bytes], J],
    source: BinaryIO,
    sink: BinaryIO,
    wait: Callable[[], None] = lambda: None,
) -> None:
    """Read jobs from `source` and write their results to `sink` until `source` ends. `wait` returns when one comes."""
    encoder = msgspec.msgpack.Encoder()
    wait()
    while len(length := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        frame = source.read(int.from_bytes(length))
        try:
            result = Result(encoder.encode(do(decode(frame))))
        except Exception as error:  # noqa: BLE001 - a boundary: the error is the result
            result = Result(b"", f"{type(error).__name__}: {error}")
        sink.write(make_frame(result))
        sink.flush()
        wait()


def end_with_parent() -> None:
    """Have the kernel end this process with its parent, which may be killed while a job never ends. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def write_no_core() -> None:
    """Have the kernel write no core dump of this process, which would have what it works on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
