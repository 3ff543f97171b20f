"""The proxy with a clock and with chance that are the same in every run: the time is that of a file's last change."""

import hashlib
import itertools
import os
import time
from pathlib import Path

CLOCK, FIRST_DRAW = "PALIMPSEST_GOLDEN_CLOCK", "PALIMPSEST_GOLDEN_FIRST_DRAW"


def main() -> None:
    """Run the command line of the package; the environment names the file."""
    clock, draws = Path(os.environ.pop(CLOCK)), itertools.count(int(os.environ.pop(FIRST_DRAW, "0")))

    def draw(size: int) -> bytes:
        return hashlib.shake_128(b"%d" % next(draws)).digest(size)

    time.time_ns = lambda: clock.stat().st_mtime_ns
    os.urandom = draw
    from proxy.__main__ import main as run  # noqa: PLC0415 - what it imports takes the clock as it is then
    from proxy.engine.context import fallback  # noqa: PLC0415

    # A plan that comes later is for the next call: on a busy machine another call would open the epoch.
    fallback.SOFT_WAIT = 60.0
    run()


if __name__ == "__main__":
    main()
