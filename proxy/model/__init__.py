"""Values that every layer shares: frozen data and pure functions, without I/O, clock or randomness."""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, gc=False):
    """A struct that never changes.

    The garbage collector does not look at it: what it refers to never refers to it.
    """
