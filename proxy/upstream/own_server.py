"""The running server, as a command asks it to do something (BEHAVIOUR B32e: one process writes the log).

Rule: one request on a connection of its own; the admin token goes to the address that the settings name, nowhere else.
"""

from proxy.engine.ports import UpstreamResponse
from proxy.model.errors import TooLarge, UpstreamUnreachable
from proxy.upstream.forwarder import Forwarder, Spawn
from proxy.upstream.policy import UpstreamPolicy

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_MOST_BYTES = 16 * 1024 * 1024
# What is asked may take several calls of models, of a minute each.
_PATIENCE_SECONDS = 1800.0


def name_address(host: str, port: int) -> str:
    """The address at which a server with these settings is found."""
    found = _ANY_ADDRESS.get(host, host)
    return f"http://[{found}]:{port}" if ":" in found else f"http://{found}:{port}"


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
