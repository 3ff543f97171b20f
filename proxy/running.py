"""Where a server runs on a data directory, and how commands reach it."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote, urlencode

from proxy.config import KEPT_FILE, Settings
from proxy.model.errors import NotFound, StoreUnavailable, UpstreamUnreachable
from proxy.store.secrets import load_or_create_secret, read_secret
from proxy.upstream.admin_client import AdminClient
from proxy.upstream.origin import name_address

TOKEN_FILE = "admin-token"
ADDRESS_FILE = "address"
_UPSTREAMS_FILE = "upstreams"
NO_QUERY: Mapping[str, str] = MappingProxyType({})

_log = logging.getLogger("palimpsest")


def find_admin_token(settings: Settings) -> str:
    """Return the configured admin token, or the one kept in the data directory. Raises StoreUnavailable."""
    if token := settings.server_policy().admin_token:
        return token
    path = settings.data / TOKEN_FILE
    try:
        return load_or_create_secret(path)
    except OSError as error:
        raise StoreUnavailable(f"the admin token cannot be kept in {path}: {error.strerror}; choose --data") from error


@contextlib.contextmanager
def note_address(settings: Settings, port: int) -> Iterator[None]:
    """Keep the running server's address in the data directory, for commands and for the container's health check.

    Beside it are the addresses of its upstreams: `palimpsest run` shares only a server with those of its client; and
    the settings by which commands judge its calls, which are kept when it ends. If the files cannot be written, the
    server runs all the same, and commands go by their own settings.
    """
    upstreams = "".join(f"{policy.address}\n" for policy in settings.upstream_policies())
    noted = {_UPSTREAMS_FILE: upstreams, ADDRESS_FILE: name_address(settings.server.host, port) + "\n"}
    for name, text in {**noted, KEPT_FILE: settings.dump_judging()}.items():
        try:
            (settings.data / name).write_text(text, "utf-8")
        except OSError as error:
            _log.warning(
                "%s cannot be written, so commands may not find this server: %s", settings.data / name, error.strerror
            )
    try:
        yield
    finally:
        for name in noted:
            with contextlib.suppress(OSError):
                (settings.data / name).unlink()


def find_address(settings: Settings) -> str:
    """Return the server's address: from the settings if they name a port, else the one that the server has noted."""
    is_stated = settings.server.port and "server.port" in settings.model_fields_set
    noted = [] if is_stated else _read_noted(settings)
    return noted[0] if noted else name_address(settings.server.host, settings.server.port)


def _read_noted(settings: Settings, file: str = ADDRESS_FILE) -> list[str]:
    try:
        return (settings.data / file).read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []


def find_server(settings: Settings) -> tuple[str, ...]:
    """Return the address of the server that runs on the data directory, then those of its upstreams.

    Return nothing if no server answers at the address that is noted there.
    """
    noted = _read_noted(settings)
    if not noted:
        return ()
    is_live = AdminClient(noted[0], "").is_live()
    return (noted[0], *_read_noted(settings, _UPSTREAMS_FILE)) if is_live else ()


def find_link(settings: Settings) -> str:
    """Return the link to the server's page, with the admin token.

    Raises NotFound if there is no token yet, and UpstreamUnreachable if no server answers.
    """
    address, token = find_address(settings), _read_token(settings)
    if not AdminClient(address, "").is_live():
        what = f"no server answers at {address}, so there is no page to open; `{_start(settings)}`"
        raise UpstreamUnreachable(f"{what} shows its log, or name another by --data, or --host and --port")
    return f"{address}/-/?token={quote(token, safe='')}"


def _start(settings: Settings) -> str:
    return f"palimpsest serve --data {settings.data}"


def _reach(settings: Settings) -> AdminClient:
    return AdminClient(find_address(settings), _read_token(settings), _start(settings))


def ask_server(
    settings: Settings, path: str, body: bytes = b"", *, method: str = "POST", query: Mapping[str, str] = NO_QUERY
) -> tuple[int, bytes]:
    """Send a request to the API of the running server. Return the status and body of the response.

    Raises NotFound if there is no admin token, and UpstreamUnreachable if the server does not respond.
    """
    target = f"/-/api{quote(path)}{'?' if query else ''}{urlencode(query)}"
    return _reach(settings).ask(target, body, method)


def follow_events(
    settings: Settings, query: Sequence[tuple[str, str]], last_id: str, take: Callable[[bytes], object]
) -> tuple[int, bytes]:
    """Pass on the bytes of the running server's stream of events until it ends, those after the event `last_id`.

    Return the status, and the body if it is not 200. Raises NotFound and UpstreamUnreachable as `ask_server` does.
    """
    return _reach(settings).follow(f"/-/api/events?{urlencode(query)}", last_id, take)


def read_admin_token(settings: Settings) -> str:
    """Return the admin token as `find_admin_token` does, but make none: it is empty then."""
    return settings.server_policy().admin_token or read_secret(settings.data / TOKEN_FILE)


def _read_token(settings: Settings) -> str:
    token = read_admin_token(settings)
    if not token:
        raise NotFound(f"no server has run with its data in {settings.data}; choose --data, or --admin-token")
    return token
