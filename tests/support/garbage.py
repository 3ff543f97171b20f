"""What goes with its last name, and what stays until the garbage collector comes round."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing is collected meanwhile: what goes does so because nobody holds it any more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
