"""The settings of one upstream."""

from dataclasses import dataclass, field
from typing import Literal

Auth = Literal["bearer", "x-api-key", "none"]
Kind = Literal["openai", "litellm"]


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One provider's server. Times are in seconds.

    `base_url` is in the form that SDKs use (usually ending in `/v1`). `api_key`, if set, replaces the client's own
    credential for paths under the base, in the header that `auth` names. `models` are shell patterns of the model names
    that are sent here; an empty tuple means all. `proxy` is the URL of the HTTP proxy to use, perhaps with a password.
    Of `kind` litellm, `base_url` is empty where litellm knows the provider's address.
    """

    name: str
    base_url: str
    api_key: str = field(default="", repr=False)
    auth: Auth = "bearer"
    models: tuple[str, ...] = ()
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    proxy: str = field(default="", repr=False)
    kind: Kind = "openai"
    is_deferred: bool = False  # litellm is imported with the first call, not before

    @property
    def address(self) -> str:
        """Return where it is: its base URL, or its name behind `litellm:`."""
        return f"litellm:{self.name}" if self.kind == "litellm" else self.base_url
