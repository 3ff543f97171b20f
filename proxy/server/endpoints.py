"""One path of the API: its methods, what they take and return, and how it responds.

What a method takes and returns is read from the annotations of its handler, and so is the API's document
(`server/api/openapi`). A request with an unknown method or parameter gets an error that lists the known ones. The
headers of responses keep browsers from rendering them as pages, since recorded bodies are untrusted.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Self, TypeVar, get_type_hints

import msgspec
from msgspec.inspect import BoolType, IntType, LiteralType, Metadata, NoneType, StructType, UnionType, type_info
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy.engine.recorded.documents import write_json
from proxy.model.errors import BadRequest, ProxyError, TooLarge
from proxy.server.errors import render_body, render_error

JSON = "application/json"
GUARDS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
MAX_BODY_BYTES = 64 * 1024
ANY = "*"
"""The name of a query parameter that stands for all others, which are not read."""
_LONGEST_NUMBER = 9
_OK = (200,)
_PARTS = frozenset({"path", "query", "body", "request"})

Form = TypeVar("Form", bound=msgspec.Struct)
Document = TypeVar("Document", bound=msgspec.Struct)
Responder = Callable[..., Awaitable[object]]
"""A handler: a coroutine function that returns a response, or a document that is sent as JSON.

It takes what it needs of `path`, `query` and `body`, each a Struct by its annotation, and `request`. One with a single
parameter of another name gets the request.
"""


@dataclass(frozen=True, slots=True)
class Media:
    """An annotation of a handler's response that is no JSON document: its media type, and what it has."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Answered(Generic[Document]):
    """A document with the status of its response, where that is not always 200."""

    document: Document
    status: int


class Endpoint:
    """An ASGI application for one path. `respond` serves GET and HEAD.

    `parameters` are the names of query parameters that a handler reads by itself from the request.
    """

    def __init__(self, respond: Responder | None = None, *parameters: str) -> None:
        self.operations: dict[str, Operation] = {}
        if respond is not None:
            self.on("GET", respond, *parameters).on("HEAD", respond, *parameters)

    def on(
        self,
        method: str,
        respond: Responder,
        *parameters: str,
        statuses: Sequence[int] = _OK,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> Self:
        """Add a method. `statuses` are those of its responses, `most_bytes` is the most that its body may have."""
        self.operations[method] = Operation(respond, parameters, statuses, most_bytes)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request; a ProxyError becomes an error response."""
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ProxyError as error:
            status, _, body = render_error(error)
            response = respond_json(body, status)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        operation = self.operations.get(request.method)
        if operation is None:
            allowed = ", ".join(self.operations)
            body = render_body(
                "method_not_allowed", f"{request.method[:20]} is not allowed on this path; it takes {allowed}"
            )
            return respond_json(body, 405, {"allow": allowed})
        answer = await operation.answer(request)
        if isinstance(answer, Answered):
            return respond_json(write_json(answer.document), answer.status)
        return answer if isinstance(answer, Response) else respond_json(write_json(answer))


class Operation:
    """One method of a path: its handler, and the names of the query parameters that this reads by itself.

    `path`, `query` and `body` are the Structs that the handler takes, None if it takes none.
    """

    def __init__(
        self,
        respond: Responder,
        parameters: Sequence[str] = (),
        statuses: Sequence[int] = _OK,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.respond = respond
        self.parameters = tuple(parameters)
        self.statuses = tuple(statuses)
        self.most_bytes = most_bytes

    # Read when they are first needed: for all paths together that takes 25 ms, which the start of the server has not.

    @cached_property
    def path(self) -> type[msgspec.Struct] | None:
        """What it takes of the path."""
        return self._hints.get("path")

    @cached_property
    def query(self) -> type[msgspec.Struct] | None:
        """What it takes of the query."""
        return self._hints.get("query")

    @cached_property
    def body(self) -> type[msgspec.Struct] | None:
        """What it takes as a body."""
        return self._hints.get("body")

    @property
    def result(self) -> Any:
        """What it returns."""
        return self._hints.get("return")

    @property
    def text(self) -> str:
        """What it does, as its docstring says."""
        return inspect.getdoc(self._plain) or ""

    @property
    def _plain(self) -> Responder:
        return self.respond.func if isinstance(self.respond, partial) else self.respond

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self._plain, include_extras=True)

    @cached_property
    def _takes(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.respond).parameters)

    @cached_property
    def _path_fields(self) -> Sequence[msgspec.inspect.Field]:
        return list_fields(self.path) if self.path is not None else ()

    @cached_property
    def _query_fields(self) -> Sequence[msgspec.inspect.Field]:
        return list_fields(self.query) if self.query is not None else ()

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset({*self.parameters, *(field.encode_name for field in self._query_fields)})

    async def answer(self, request: Request) -> object:
        """Read what the handler takes from a request, and call it. Raises BadRequest and TooLarge."""
        for name in request.query_params if ANY not in self._known else ():
            if name not in self._known:
                known = ", ".join(sorted(self._known)) or "none"
                raise BadRequest(f"the parameter {name[:40]!r} is not known here; this path takes: {known}")
        if self._takes and _PARTS.isdisjoint(self._takes):
            return await self.respond(request)
        given: dict[str, object] = {}
        if self.path is not None:
            given["path"] = self.path(**read_values(self._path_fields, request.path_params))
        if self.query is not None:
            for field in self._query_fields:
                if len(request.query_params.getlist(field.encode_name)) > 1:
                    raise BadRequest(f"the parameter {field.encode_name!r} is given more than once")
            given["query"] = self.query(**read_values(self._query_fields, request.query_params))
        if self.body is not None:
            given["body"] = read_document(await read_body(request, self.most_bytes), self.body)
        if "request" in self._takes:
            given["request"] = request
        return await self.respond(**given)


def respond_json(body: bytes, status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(body, status, headers={**GUARDS, **(more or {})}, media_type=JSON)


def list_fields(form: type[msgspec.Struct]) -> tuple[msgspec.inspect.Field, ...]:
    """Return the fields of a Struct."""
    found = type_info(form)
    assert isinstance(found, StructType)
    return found.fields


def read_values(fields: Sequence[msgspec.inspect.Field], given: Mapping[str, str]) -> dict[str, object]:
    """Read the values of parameters from their text. Raises BadRequest for one that is missing or cannot be."""
    found: dict[str, object] = {}
    for field in fields:
        name = field.encode_name
        if name in given:
            found[field.name] = _read_value(field.type, name, given[name])
        elif field.required:
            raise BadRequest(f"{name} is missing{_describe(field.type)}")
    return found


def _describe(form: msgspec.inspect.Type) -> str:
    text = (form.extra_json_schema or {}).get("description", "") if isinstance(form, Metadata) else ""
    return f": {text}" if text else ""


def _read_value(form: msgspec.inspect.Type, name: str, text: str) -> object:
    """Read one parameter; one that may be null is null only where it is not given."""
    if isinstance(form, Metadata):
        form = form.type
    if isinstance(form, UnionType):
        form = next(each for each in form.types if not isinstance(each, NoneType))
        return _read_value(form, name, text)
    if isinstance(form, IntType):
        number = read_number(text, name)
        least, most = form.ge or 0, form.le
        if number < least or (most is not None and number > most):
            raise BadRequest(f"{name} is {least} to {most}, not {number}")
        return number
    if isinstance(form, BoolType):
        return read_boolean(text, name)
    if isinstance(form, LiteralType) and text not in form.values:
        raise BadRequest(f"{name} is one of {', '.join(map(str, form.values))}, not {text[:40]!r}")
    return text


def read_number(text: str, name: str) -> int:
    """Parse a number that is not negative. Raises BadRequest, which mentions `name`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        most = 10**_LONGEST_NUMBER - 1
        raise BadRequest(f"{name} is a number from 0 to {most}, not {text[:40]!r}")
    return int(text)


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request to our API. Raises TooLarge above `most` bytes."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise TooLarge(f"the body of this request may have {most} bytes at most")
    return body


def read_document(body: bytes, form: type[Form]) -> Form:
    """Parse a JSON body. An empty body means an empty object. Raises BadRequest."""
    try:
        return msgspec.json.decode(body or b"{}", type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid: {error}") from error


def read_boolean(text: str, name: str) -> bool:
    """Parse `true` or `false`. Raises BadRequest."""
    if text.lower() not in ("true", "false"):
        raise BadRequest(f"{name} is true or false, not {text[:40]!r}")
    return text.lower() == "true"
