"""Our pages: their paths, what each shows, its files, and the headers that keep a browser from running anything else.

A page comes with its first data, the document that the API has at the path which it names. The same document is at the
page's own path with `.json` behind it. What was recorded is untrusted: in a page it is data only, never markup.
"""

import hashlib
import html
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from proxy import __version__
from proxy.engine.recorded.documents import write_json
from proxy.model.errors import NotFound, ProxyError
from proxy.server.access import START_PAGE, make_cookie
from proxy.server.endpoints import ANY, Endpoint, Operation
from proxy.server.errors import render_error
from proxy.wire.headers import OWN_COOKIE

Facts = Sequence[tuple[str, str]]

_FILES = Path(__file__).parent / "static"
_MEDIA: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_TEMPLATES = frozenset({".html"})
_FOREVER = "private, max-age=31536000, immutable"
_REVALIDATED = "private, no-cache"
_HTML = "text/html; charset=utf-8"
# What JSON may hold that ends a script element, or a line of a script, elsewhere than in JSON.
_ESCAPES = ((b"<", b"\\u003c"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


class PageRoute(NamedTuple):
    """A page below `/-`: its path, its fragment, its title, and the path of the API's document that it shows.

    A fragment of HTML and a script have that name. A page that `needs` a query parameter shows nothing without it.
    """

    path: str
    fragment: str
    title: str
    document: str
    needs: str = ""

    @property
    def twin(self) -> str:
        """The path at which the document is, too."""
        return f"{'/sessions' if self.path == '/' else self.path}.json"


PAGES = (
    PageRoute("/", "sessions", "Sessions", "/api/sessions"),
    PageRoute("/sessions/{id}", "session", "Session", "/api/sessions/{id}"),
    PageRoute("/sessions/{id}/conversation", "conversation", "Conversation", "/api/sessions/{id}/conversation"),
    PageRoute("/sessions/{id}/calls/{n}", "call", "Call", "/api/sessions/{id}/exchanges/{n}"),
    PageRoute("/sessions/{id}/epochs/next", "epoch", "The next epoch", "/api/sessions/{id}/epochs/next"),
    PageRoute("/sessions/{id}/epochs/{n}", "epoch", "Epoch", "/api/sessions/{id}/epochs/{n}"),
    PageRoute("/sessions/{id}/summaries", "summaries", "Summaries", "/api/sessions/{id}/summaries"),
    PageRoute("/search", "search", "Search", "/api/search", "q"),
    PageRoute("/health", "health", "Health", "/api/health"),
)
_NAVIGATION = (
    ("/-/", "Sessions", ("sessions", "session", "conversation", "call", "epoch", "summaries")),
    ("/-/search", "Search", ("search",)),
    ("/-/health", "Health", ("health",)),
)


class StaticFile(NamedTuple):
    """A file that pages use. Its tag is a digest of its content."""

    content: bytes
    media: str
    tag: str


class Pages:
    """Serves the pages over the routes of the API."""

    def __init__(self, api: Sequence[Route]) -> None:
        self._endpoints = {route.path: route.endpoint for route in api if isinstance(route.endpoint, Endpoint)}
        self._files = load_files(_FILES)
        self._template = Template((_FILES / "page.html").read_text("utf-8"))
        self._fragments = {
            page.fragment: (_FILES / "views" / f"{page.fragment}.html").read_text("utf-8") for page in PAGES
        }

    def list_routes(self) -> Sequence[BaseRoute]:
        """Return the routes, below `/-`."""
        twins = [Route(page.twin, self._endpoints[page.document]) for page in PAGES]
        pages = [Route(page.path, Endpoint(self._make_responder(page), ANY)) for page in PAGES]
        return [Route("/static/{name:path}", Endpoint(self._send_file, "v")), *twins, *pages]

    def _make_responder(self, page: PageRoute) -> Callable[[Request], Awaitable[Response]]:
        operation = self._endpoints[page.document].operations["GET"]

        async def respond(request: Request) -> Response:
            """Show a page, or set the cookie of the start-up link and lead to the page."""
            token = request.query_params.get("token") if page.path == "/" else None
            if token is not None:
                return set_cookie(token)
            is_asked = not page.needs or page.needs in request.query_params
            status, data = await _load(operation, request) if is_asked else (200, b"null")
            return self._render(page, request, data, status)

        return respond

    def _render(self, page: PageRoute, request: Request, data: bytes, status: int) -> Response:
        nonce = secrets.token_urlsafe(16)
        query = f"?{request.url.query}" if request.url.query else ""
        found = self._template.substitute(
            nonce=nonce,
            title=html.escape(page.title),
            view=page.fragment,
            status=status,
            links=_link_pages(page.fragment),
            main=self._fragments[page.fragment],
            footer=html.escape(f"palimpsest {__version__} · {request.url.netloc}"),
            twin=html.escape(f"{request.url.path.rstrip('/')}.json{query}" if page.path != "/" else "/-/sessions.json"),
            data=escape_data(data).decode("utf-8", "replace"),
            **{f"file_{Path(name).stem}": self._name_file(name) for name in self._files if "/" not in name},
        )
        return Response(found.encode(), status, headers=make_page_headers(nonce), media_type=_HTML)

    def _name_file(self, name: str) -> str:
        """Return the address of a file. It changes with the content, so that browsers may keep it."""
        return f"/-/static/{name}?v={self._files[name].tag}"

    async def _send_file(self, request: Request) -> Response:
        """Send a file of our pages."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            status, _, body = render_error(NotFound(f"there is no file {request.path_params['name'][:40]!r}"))
            return Response(body, status, media_type="application/json")
        is_named = request.query_params.get("v") == found.tag
        headers = {
            "etag": f'"{found.tag}"',
            "cache-control": _FOREVER if is_named else _REVALIDATED,
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
        }
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if f'"{found.tag}"' in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media)


async def _load(operation: Operation, request: Request) -> tuple[int, bytes]:
    """Return the document that a page shows, or an error in its place, with the status."""
    try:
        return 200, write_json(await operation.answer(request)).rstrip()
    except ProxyError as error:
        status, _, body = render_error(error)
        return status, body


def set_cookie(token: str) -> Response:
    """Return the response to the start-up link, whose token was checked: it leads to the page, without the token."""
    response = RedirectResponse(START_PAGE, 303, headers={"cache-control": "no-store"})
    value = make_cookie(token)
    response.set_cookie(OWN_COOKIE.decode(), value, httponly=True, samesite="strict", path=START_PAGE)
    return response


def make_page_headers(nonce: str) -> dict[str, str]:
    """Return the headers of a page: only what has the nonce runs, and only our own server is asked for anything."""
    policy = (
        "default-src 'none'",
        f"script-src 'nonce-{nonce}'",
        f"style-src 'nonce-{nonce}'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }


def escape_data(document: bytes) -> bytes:
    """Return a JSON document as it may stand in a script element: the same to whoever parses it."""
    for character, escape in _ESCAPES:
        document = document.replace(character, escape)
    return document


def load_files(directory: Path) -> dict[str, StaticFile]:
    """Load the files that pages use."""
    found = {}
    for path in sorted(directory.rglob("*.*")):
        if path.suffix not in _TEMPLATES:
            content = path.read_bytes()
            found[path.relative_to(directory).as_posix()] = StaticFile(
                content, _MEDIA[path.suffix], hashlib.sha256(content).hexdigest()[:16]
            )
    return found


def _link_pages(fragment: str) -> str:
    """Return the links to the main pages; the one that leads to this one is marked."""
    here = {path: ' aria-current="page"' for path, _, fragments in _NAVIGATION if fragment in fragments}
    return "".join(f'<a href="{path}"{here.get(path, "")}>{name}</a>' for path, name, _ in _NAVIGATION)
