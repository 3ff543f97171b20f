"""The server's limits and access rules."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """Address, access rules and limits of the server. Times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 8484
    admin_token: str = field(default="", repr=False)
    # Names under which a browser may reach the management pages, besides loopback, addresses and `host`; `*`: all.
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 1024 * 1024  # of one body on a managed path; bodies on other paths are streamed
    max_buffered_bytes: int = 256 * 1024 * 1024  # of such bodies of all calls under way together
    max_header_bytes: int = 64 * 1024  # of the request line and headers together
    header_timeout: float = 30.0  # for the whole head of a request
    body_timeout: float = 60.0  # the longest silence within a request body
    body_min_rate: int = 1024  # bytes per second of a request body after `body_timeout`; 0: no bound
    stall_timeout: float = 600.0  # how long a client may take no byte of its response
    drain_seconds: float = 30.0
    # Origins of pages that may call the proxied paths, in lower case, besides loopback; `*`: all.
    allowed_origins: tuple[str, ...] = ()
    has_own_key: bool = False  # whether upstream calls use a key from the settings
    tenant_keys: tuple[str, ...] | None = field(default=None, repr=False)  # keys that may call; None: any
    hop_id: str = ""  # the server's random name, by which it recognises its own calls
    metrics_token: str = field(default="", repr=False)  # opens the metrics alone
