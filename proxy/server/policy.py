"""The server's limits and access rules."""

import re
from dataclasses import dataclass, field
from typing import Annotated

from proxy.engine.policy import SecretFile, refuse_both
from proxy.model.settings import HostName, Pause, Rule, Seconds, Secret, Size, WebOrigin

_SECRETS = ("admin_token", "metrics_token")
# What examples have in the place of a secret, and people forget to replace.
_PLACEHOLDER = re.compile(
    r"(?i)change[-_ ]?(me|this|it)|replace[-_ ]?(me|this)"
    r"|(your|my)[-_ ](admin[-_ ]|metrics[-_ ])?(token|secret|password)|placeholder|example|<[^>]{0,40}>|x{3,}|\*{3,}"
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP server: address, limits, and who may reach the management pages."""

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0: all interfaces, so that others can make calls (docs/privacy.md)."""
    port: Annotated[int, Rule(ge=0, le=65535)] = 8484
    """Port to listen on. 0: any that is free."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Host names, besides loopback and host, under which browsers may open pages below /-/. "*": any."""
    allowed_origins: tuple[WebOrigin, ...] = ()
    """Origins, besides loopback, of web pages whose requests are accepted although they use an api_key of the
    settings or carry no credential, such as ["https://app.example"]. "*": any."""
    require_tenant: bool = False
    """Accept only requests with a key that is listed in tenants; others get 401."""
    open_to_network: bool = False
    """Listen beyond loopback although everybody who reaches the port can use an upstream's api_key, or the
    credentials of the environment (kind: litellm)."""
    max_body_bytes: Annotated[Size, Rule(ge=1024)] = 64 * 1024 * 1024
    """Largest request body on recorded paths; bytes. On other paths bodies are streamed."""
    max_buffered_bytes: Annotated[Size, Rule(ge=1024)] = 256 * 1024 * 1024
    """Memory for the bodies of all concurrent requests on recorded paths; bytes. A request whose body does not fit
    waits for body_timeout, then gets 503. Bodies above 1 MiB may use three quarters of it."""
    max_header_bytes: Annotated[Size, Rule(ge=1024)] = 64 * 1024
    """Largest request line and headers together; bytes."""
    header_timeout: Seconds = 30.0
    """Longest time for receiving the request line and headers; seconds."""
    body_timeout: Seconds = 60.0
    """Longest pause inside a request body; seconds."""
    body_min_rate: Annotated[int, Rule(ge=0)] = 1024
    """Lowest average rate of a request body that has taken longer than body_timeout; bytes per second. 0: no
    limit."""
    stall_timeout: Seconds = 600.0
    """Longest time that a client may read nothing of its response; seconds."""
    drain_seconds: Pause = 30.0
    """Longest time that requests may go on after a stop signal; seconds."""
    admin_token: Secret = field(default="", repr=False)
    """Secret for the pages and API below /-/. Empty: one is generated and stored in the data directory."""
    admin_token_file: SecretFile = field(default="", repr=False)
    """File with the admin_token, instead of the setting."""
    metrics_token: Secret = field(default="", repr=False)
    """Secret that opens /-/metrics alone, as `Authorization: Bearer`, under whatever name a scraper reaches the
    server. Empty: the admin_token does, under an allowed name."""
    metrics_token_file: SecretFile = field(default="", repr=False)
    """File with the metrics_token, instead of the setting."""

    def __post_init__(self) -> None:
        """Raise ValueError for a secret that is none."""
        refuse_both(self, *_SECRETS)
        for name in _SECRETS:
            if _PLACEHOLDER.fullmatch(getattr(self, name) or getattr(self, f"{name}_file")):
                raise ValueError(f"{name} is the placeholder of an example; choose a secret that nobody knows")


@dataclass(frozen=True, slots=True)
class ServerPolicy(ServerSettings):
    """The settings of a server, and what else its rules of access are made of."""

    has_own_key: bool = False  # whether upstream calls use a key from the settings
    tenant_keys: tuple[str, ...] | None = field(default=None, repr=False)  # keys that may call; None: any
    hop_id: str = ""  # the server's random name, by which it recognises its own calls
