"""The errors that programs get, and how those of the engine become one of them.

ProxyError
├── StoreError              the log, or what is asked of it
│   ├── LogHeldError        another process writes it
│   ├── SessionNotFoundError    404
│   ├── MessageNotFoundError    404
│   ├── PartNotFoundError       404
│   ├── DuplicateIDError        409
│   ├── ImmutableFieldError     409
│   └── SessionClosedError      409
├── UpstreamRefused         an upstream's refusal: `status` and `body`
├── UpstreamUnreachable     no complete response came
├── BadRequest              a message that does not continue the conversation
├── Conflict                what cannot be done now
└── ConfigError             the settings, or a key that is missing
"""

import contextlib
from collections.abc import Iterator

from proxy.model.errors import Conflict, NotFound, ProxyError, StoreUnavailable


class StoreError(ProxyError):
    """The log cannot be opened, read or written; or it has not, or has already, what is asked of it."""

    code = "store_error"


class LogHeldError(StoreError):
    """Another process writes the log: a running proxy, or another program."""

    status = 409
    code = "log_held"


class SessionNotFoundError(StoreError):
    """The log has no such session."""

    status = 404
    code = "session_not_found"


class MessageNotFoundError(StoreError):
    """The session has no such message."""

    status = 404
    code = "message_not_found"


class PartNotFoundError(StoreError):
    """There is no such part, or content."""

    status = 404
    code = "part_not_found"


class DuplicateIDError(StoreError):
    """There is something under this id, or key, already."""

    status = 409
    code = "duplicate_id"


class ImmutableFieldError(StoreError, AttributeError):
    """An attempt to change what never changes."""

    status = 409
    code = "immutable_field"


class SessionClosedError(StoreError):
    """The session was closed; `Session.load` opens it again."""

    status = 409
    code = "session_closed"


@contextlib.contextmanager
def naming_errors(
    missing: type[StoreError] = SessionNotFoundError, taken: type[ProxyError] = Conflict
) -> Iterator[None]:
    """Raise the engine's errors about the log by their names here: NotFound as `missing`, Conflict as `taken`."""
    try:
        yield
    except Conflict as error:
        if taken is Conflict:
            raise
        raise taken(str(error)) from error
    except NotFound as error:
        raise missing(str(error)) from error
    except StoreUnavailable as error:
        raise StoreError(str(error)) from error
