"""Where requests of an upstream go: its origin, the target for a client's path, and the headers.

Targets are those that an SDK would request with the same base URL. Ambiguous paths are refused, because the upstream or
a server in front of it may normalise them differently.
"""

import ipaddress
import re
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

import certifi
import msgspec

from proxy.model.errors import BadRequest
from proxy.model.exchange import Headers
from proxy.upstream.policy import NO_PROXY, UpstreamPolicy
from proxy.wire.headers import forward_request, is_credential, is_loopback

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_TRICK = re.compile(rb"(?i)(?:^|/)\.{1,2}(?:/|$)|%2e|%2f|%5c|\\|;|[\x00-\x20\x7f]")
# For paths that were percent-decoded, once or more: other characters are legitimate there.
_HIDDEN_TRICK = re.compile(rb"(?i)(?:^|/)\.{1,2}(?:/|$)|%2e|%2f|%5c")
_MOST_DECODED = 4
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """The scheme, host and port of a server."""

    host: str
    port: int
    is_tls: bool

    @property
    def address(self) -> bytes:
        """The host and the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii" if host.isascii() else "idna")

    @property
    def host_header(self) -> bytes:
        """The value of the Host header."""
        return self.address.removesuffix(b":%d" % _DEFAULT_PORTS["https" if self.is_tls else "http"])


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy, and the header fields that name its user, each with the end of its line."""

    origin: Origin
    fields: bytes = field(repr=False)


class UpstreamTarget(msgspec.Struct, frozen=True, gc=False):
    """Path and query of a request. A configured key may be sent only if `is_under_base`."""

    path: bytes
    is_under_base: bool


def parse_base(base_url: str) -> tuple[Origin, bytes]:
    """Return the origin of an SDK's base URL, and its path without a final slash. Raises ValueError."""
    parts = urlsplit(base_url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{base_url!r} is not an http(s) address")
    origin = Origin(parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "https")
    return origin, parts.path.rstrip("/").encode("ascii")


def parse_proxy(url: str) -> HttpProxy | None:
    """Return the proxy at a URL, which may have a user and a password; None for none."""
    if url == NO_PROXY:
        return None
    user = urlsplit(url).netloc.rpartition("@")[0]
    told = b":".join(map(unquote_to_bytes, user.partition(":")[::2]))
    return HttpProxy(parse_base(url)[0], b"proxy-authorization: Basic %s\r\n" % b64encode(told) if user else b"")


def _hides_trick(path: bytes) -> bool:
    """Return whether a path turns into another when it is decoded repeatedly, as chained servers may do."""
    for _ in range(_MOST_DECODED):
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return False
        if _HIDDEN_TRICK.search(decoded):
            return True
        path = decoded
    return True


def map_target(base_path: bytes, target: bytes) -> UpstreamTarget:
    """Return the upstream's path and query for a client's target.

    `/v1/X` goes to base + `/X` where the base has a path (OpenAI's `/v1`, Gemini's `/v1beta/openai`); every other
    path goes to the origin unchanged. Raises BadRequest for ambiguous paths.
    """
    path, separator, query = target.partition(b"?")
    if not path.startswith(b"/") or _TRICK.search(path) or (b"%" in path and _hides_trick(path)):
        raise BadRequest("this path has dot segments, encoded slashes or the like; send it in its plain form")
    if base_path and path.startswith(b"/v1/"):
        return UpstreamTarget(base_path + path[3:] + separator + query, True)
    is_under = not base_path or path == base_path or path.startswith(base_path + b"/")
    return UpstreamTarget(target, is_under)


def make_key_header(policy: UpstreamPolicy) -> tuple[bytes, bytes] | None:
    """Return the header that carries the configured key, or None if there is none."""
    key = policy.api_key.encode("latin-1")
    if not key or policy.auth == "none":
        return None
    return (b"authorization", b"Bearer " + key) if policy.auth == "bearer" else (b"x-api-key", key)


def choose_headers(
    headers: Headers, key: tuple[bytes, bytes] | None, target: UpstreamTarget
) -> list[tuple[bytes, bytes]]:
    """Return the client's headers to send upstream. Under the base, a configured key replaces its credentials."""
    chosen = forward_request(headers)
    if key is not None and target.is_under_base:
        chosen = [header for header in chosen if not is_credential(header[0])]
        chosen.append(key)
    return chosen


def make_tls_context() -> ssl.SSLContext:
    """Return a context that trusts the system's root certificates and certifi's: some Python builds have none."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def is_near(host: str) -> bool:
    """Return whether a host is this machine or a non-public address."""
    try:
        return is_loopback(host) or not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def name_address(host: str, port: int) -> str:
    """Return the URL of our server for the host and port at which it listens."""
    found = _ANY_ADDRESS.get(host, host)
    return f"http://[{found}]:{port}" if ":" in found else f"http://{found}:{port}"


def leads_back(base_url: str, address: str, port: int) -> bool:
    """Return whether an upstream's host resolves to the address where this server listens. May block.

    This does not detect loops through other servers; `x-palimpsest-hop` does.
    """
    origin, _ = parse_base(base_url)
    if origin.port != port:
        return False
    listening = ipaddress.ip_address(address)
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(origin.host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return any(_is_same(ipaddress.ip_address(str(each).partition("%")[0]), listening) for each in found)


def _is_same(named: _Address, listening: _Address) -> bool:
    if named.version != listening.version:
        return False
    if listening.is_unspecified:
        return named.is_unspecified or _is_of_this_machine(named)
    return named == listening or (named.is_unspecified and listening.is_loopback)


def _is_of_this_machine(address: _Address) -> bool:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
