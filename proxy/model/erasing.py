"""What erasing a session does: the audited record of it, and what it would do."""

from typing import Literal

import msgspec

Cause = Literal["person", "age", "size"]
"""Who erases: a person, `store.retention_days`, or `store.when_full`."""


class SessionErasure(msgspec.Struct, frozen=True):
    """What is erased of a session, or would be. `bytes` are those of its content as stored, compressed.

    `kept_bytes` are shared with other sessions, and stay. `shared_with` are the tenant's sessions with the same
    beginning; `children` were started by the session's agent, and `continued_by` continue it under another credential:
    neither is erased with it.
    """

    session: str
    is_done: bool
    calls: int
    contents: int
    bytes: int
    kept_bytes: int
    shared_with: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    continued_by: tuple[str, ...] = ()
    cause: Cause = "person"
    at_ms: int | None = None  # when it was done
    is_overwritten: bool = False  # whether no file of the log has any of its bytes left
    left_files: tuple[str, ...] = ()  # that may have content of it, and that a person has to judge
    left_memory: str | None = None  # a directory that has files of its memory, which could not be removed


class ErasableSession(msgspec.Struct, frozen=True):
    """A session that has content, with the time of its newest call."""

    session: str
    last_ms: int
