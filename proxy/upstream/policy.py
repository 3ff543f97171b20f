"""How an upstream is reached."""

from dataclasses import dataclass, field
from typing import Literal

Auth = Literal["bearer", "x-api-key", "none"]


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One provider's server.

    `base_url` is as an SDK takes it (usually ending in `/v1`). `api_key`, where set, replaces the client's own
    credential, in the header that `auth` names, for paths under the base only. `models` are shell patterns of the model
    names that are sent here; none means any. `proxy` is the URL of the HTTP proxy through which it is reached, perhaps
    with a password; empty: none. Times in seconds.
    """

    name: str
    base_url: str
    api_key: str = field(default="", repr=False)
    auth: Auth = "bearer"
    models: tuple[str, ...] = ()
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    proxy: str = field(default="", repr=False)
