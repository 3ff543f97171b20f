"""The running server, as a command asks it to do something (BEHAVIOUR B32e: one process writes the log), and whether an
upstream is none other (B40).

Rule: one request on a connection of its own; the admin token goes to the address that the settings name, nowhere else.
"""

import ipaddress
import socket

from proxy.engine.ports import UpstreamResponse
from proxy.model.errors import TooLarge, UpstreamUnreachable
from proxy.upstream.forwarder import Forwarder, Spawn
from proxy.upstream.policy import UpstreamPolicy
from proxy.upstream.targets import parse_base

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_MOST_BYTES = 16 * 1024 * 1024
# What is asked may take several calls of models, of a minute each.
_PATIENCE_SECONDS = 1800.0


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


async def ask_own_server(
    address: str, token: str, target: str, body: bytes, spawn: Spawn, most: int = _MOST_BYTES
) -> tuple[int, bytes]:
    """Status and body of the answer to a POST, `most` bytes. Raises UpstreamUnreachable where no server answers."""
    forwarder = Forwarder(UpstreamPolicy("palimpsest", address, idle_timeout=_PATIENCE_SECONDS), spawn)
    headers = ((b"authorization", b"Bearer " + token.encode()), (b"content-type", b"application/json"))
    try:
        return await _read(await forwarder.send("POST", target.encode(), headers, body), most)
    except UpstreamUnreachable as error:
        what = (
            f"the server at {address} does not answer: {error}; start it by `palimpsest serve`, or say --host, --port"
        )
        raise UpstreamUnreachable(what) from error
    finally:
        forwarder.close()


async def _read(answer: UpstreamResponse, most: int) -> tuple[int, bytes]:
    content, status = b"", answer.status
    try:
        while piece := await answer.read():
            content += piece
            if len(content) > most:
                raise TooLarge("the answer of the server has no end")
    finally:
        answer.close()
    return status, content
