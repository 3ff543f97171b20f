"""Where our own server is found, and whether an upstream is none other (BEHAVIOUR B40)."""

import ipaddress
import socket

from proxy.upstream.targets import parse_base

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def name_address(host: str, port: int) -> str:
    """The address at which a server with these settings is found."""
    found = _ANY_ADDRESS.get(host, host)
    return f"http://[{found}]:{port}" if ":" in found else f"http://{found}:{port}"


def leads_back(base_url: str, address: str, port: int) -> bool:
    """Whether an upstream is the server that listens at an address, as far as it can be seen from here; may block.

    It cannot where something between passes calls back: what `x-palimpsest-hop` is for.
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
