"""What only this process can say of values: its directories, and the proxies that its environment names."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from proxy.engine.policy import expand
from proxy.model.settings import Rule
from proxy.wire.headers import is_loopback

DirectoryPath = Annotated[Path, Rule(check=expand)]
OptionalDirectory = Annotated[str, Rule(check=lambda value: str(expand(Path(value))) if value else "")]
"""A path as a text, empty for none."""


def find_environment_proxy(base_url: str) -> str:
    """Return the URL of the proxy that the environment names for an address, or an empty string.

    The rules are curl's: HTTPS_PROXY or HTTP_PROXY by the scheme, else ALL_PROXY, lower case first; none for hosts in
    NO_PROXY. Loopback addresses never use a proxy, since there they would mean the proxy's own machine.
    """
    parts, proxies = urlsplit(base_url), getproxies_environment()
    if is_loopback(parts.hostname or "") or proxy_bypass_environment(parts.netloc, proxies):
        return ""
    found = proxies.get(parts.scheme) or proxies.get("all", "")
    return f"http://{found}" if found and "://" not in found else found
