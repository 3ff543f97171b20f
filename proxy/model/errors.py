"""All errors: one class for each kind of failure that a caller can act on. An upstream's 4xx or 5xx is not an error.

ProxyError
├── BadRequest            400
├── NotFound              404
│   └── Erased            410
├── Unproven              403
├── Conflict              409
│   └── SessionIdle
├── TooSoon               429
├── TooLarge              413
├── UpstreamRefused       of the upstream
├── UpstreamUnreachable   502, or 504 after a timeout
├── StoreUnavailable      503
├── WorkerLost            503
└── ConfigError           of `config`: a command ends with 2
"""

from datetime import UTC, datetime


def tell_install(extra: str) -> str:
    """Return how an extra is installed. By the name alone pip would install another project's package."""
    return (
        f"make install EXTRAS={extra}, or pip install '.[{extra}]', in the directory of palimpsest's source; for an "
        f"image docker build --build-arg EXTRAS={extra}"
    )


class ProxyError(Exception):
    """Base class. `status` is the HTTP status, `code` a stable low-cardinality name; the text says what to do next.

    `exit_code` is that of a command.
    """

    status = 500
    code = "proxy_error"
    exit_code = 1


class BadRequest(ProxyError):
    """The request cannot be forwarded as it is."""

    status = 400
    code = "bad_request"


class NotFound(ProxyError):
    """No such session, exchange or reference."""

    status = 404
    code = "not_found"


class Erased(NotFound):
    """The content was in the log, in this session, and has been erased, at a time in milliseconds if that is known."""

    status = 410
    code = "erased"

    def __init__(self, message: str, session: str, at_ms: int | None = None) -> None:
        super().__init__(message)
        self.session = session
        self.at_ms = at_ms

    @property
    def day(self) -> str:
        """On which day, as the end of a sentence; empty if that is not known."""
        return tell_day(self.at_ms)


def tell_day(at_ms: int | None) -> str:
    """Return ` on 2026-01-31`, by UTC, for a time in milliseconds since 1970; empty for None."""
    return "" if at_ms is None else f" on {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


class Conflict(ProxyError):
    """An id that exists already, or an attempt to change an immutable record."""

    status = 409
    code = "conflict"


class SessionIdle(Conflict):
    """A session that was nudged in vain, until somebody prompts its agent."""

    code = "session_idle"


class Unproven(ProxyError):
    """What is known of a tenant was asked for with a credential that its upstream has not accepted lately."""

    status = 403
    code = "unproven_credential"


class TooSoon(ProxyError):
    """A call that is accepted after `retry_after` seconds."""

    status = 429
    code = "too_soon"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLarge(ProxyError):
    """A cap with a named setting was exceeded."""

    status = 413
    code = "too_large"


class UpstreamUnreachable(ProxyError):
    """No response came: the connection was refused, reset or garbled (502), or it timed out (504)."""

    status = 502
    code = "upstream_unreachable"

    def __init__(self, message: str, *, was_silent: bool = False) -> None:
        super().__init__(message)
        if was_silent:
            self.status = 504
            self.code = "upstream_silent"


class UpstreamRefused(ProxyError):
    """The upstream has refused a call of a program in this process, with this status and body.

    `retry_after` is in seconds, if the upstream sent it.
    """

    code = "upstream_refused"

    def __init__(self, message: str, status: int, body: bytes, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after


class StoreUnavailable(ProxyError):
    """The log cannot be read or written, and the settings say to refuse requests rather than go on without it."""

    status = 503
    code = "store_unavailable"


class WorkerLost(ProxyError):
    """The worker process ended, could not be started, or timed out. The next job starts it again."""

    status = 503
    code = "worker_lost"
