"""What the server accepts, from whom, and within which limits."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """Address, caps and limits of the server; times are in seconds.

    `max_body_bytes` caps bodies of managed paths (others stream), `max_buffered_bytes` those of all calls under way
    together, `max_header_bytes` request line and headers together. `header_timeout` bounds the time of a request's
    head, `body_timeout` the silence inside its body, `body_min_rate` the body's bytes a second after that time (0: no
    bound), `stall_timeout` how long a client may take none of a response. `allowed_hosts` are the names, besides
    loopback, addresses and `host` itself, under which a browser may reach the management pages, `allowed_origins` the
    origins, besides loopback, of pages that may call the proxied paths, in lower case; `*` allows all. `has_own_key`:
    calls are made with a key from the settings. `tenant_keys`: who may call; None: anybody. `hop_id` is this server's
    random name, by which it knows its own calls (BEHAVIOUR B40).
    """

    host: str = "127.0.0.1"
    port: int = 8484
    admin_token: str = field(default="", repr=False)
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 1024 * 1024
    max_buffered_bytes: int = 256 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    header_timeout: float = 30.0
    body_timeout: float = 60.0
    body_min_rate: int = 1024
    stall_timeout: float = 600.0
    drain_seconds: float = 30.0
    allowed_origins: tuple[str, ...] = ()
    has_own_key: bool = False
    tenant_keys: tuple[str, ...] | None = field(default=None, repr=False)
    hop_id: str = ""
