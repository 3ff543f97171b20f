"""The API described for programs: an OpenAPI document, made of the types of the handlers, and a list of links."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from proxy import __version__
from proxy.server.endpoints import JSON, Answered, Endpoint, Media, Operation, list_fields, respond_json

API = "/-/api"
DOCUMENT = f"{API}/openapi.json"
_REFERENCE = "#/components/schemas/{name}"
_TEXT = {"type": "string"}
_ERROR = {
    "description": "an error of ours",
    "content": {JSON: {"schema": {"$ref": _REFERENCE.format(name="ErrorDocument")}}},
}
_ABOUT = (
    "Everything that palimpsest has recorded, and what can be done with it. Listings come in pages: `next` is the"
    " cursor of the next one, null on the last. Where an id or a tip is asked for, a unique prefix of it will do. What"
    " is unknown is null. Every path also answers HEAD."
)


class ErrorFacts(msgspec.Struct, frozen=True):
    """What went wrong: in words, and as a code."""

    message: str
    type: str
    param: None
    code: str


class ErrorDocument(msgspec.Struct, frozen=True):
    """An error of ours, as SDKs of providers read it."""

    type: str
    error: ErrorFacts


class Link(msgspec.Struct, frozen=True):
    """A path of the API, with the methods that it takes and what the first of them does."""

    path: str
    methods: list[str]
    text: str


class LinkList(msgspec.Struct, frozen=True):
    """All paths of the API, and where its document is."""

    version: str
    document: str
    links: list[Link]


class ApiDocument:
    """Describes routes of the API and its own, all below `/-`, and serves what describes them."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = (*routes, *self.list_routes())

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        return [
            Route("/api", Endpoint(self._list_links)),
            Route("/api/openapi.json", Endpoint(self._show)),
        ]

    @cached_property
    def content(self) -> bytes:
        """The OpenAPI document as JSON."""
        return msgspec.json.encode(build_document(self._routes))

    async def _list_links(self) -> LinkList:
        """List the paths of the API."""
        links = [
            Link(f"/-{path}", [name for name in operations if name != "HEAD"], _sum_up(next(iter(operations.values()))))
            for path, operations in _list_operations(self._routes)
        ]
        return LinkList(__version__, DOCUMENT, links)

    async def _show(self) -> Annotated[Response, Media(JSON, "this document")]:
        """Describe the API as an OpenAPI document."""
        return respond_json(self.content)


def build_document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of routes below `/-`. Each handler's types say what it takes and returns."""
    described = list(_list_operations(routes))
    forms = {form: None for _, operations in described for each in operations.values() for form in _list_forms(each)}
    schemas, components = msgspec.json.schema_components([*forms, ErrorDocument], ref_template=_REFERENCE)
    shown = dict(zip(forms, schemas, strict=False))
    paths = {
        f"/-{path}": {
            method.lower(): _describe_operation(path, method, each, shown)
            for method, each in operations.items()
            if method != "HEAD"
        }
        for path, operations in described
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "palimpsest", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "security": [{"token": []}, {"cookie": []}],
        "components": {
            "schemas": _list_used(paths, {name: _clean(each) for name, each in components.items()}),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "the admin token"},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "palimpsest_admin",
                    "description": "set by the link that the server writes at its start",
                },
            },
        },
    }


def _list_operations(routes: Sequence[Route]) -> Iterator[tuple[str, Mapping[str, Operation]]]:
    for route in routes:
        if isinstance(route.endpoint, Endpoint):
            yield route.path, route.endpoint.operations


def _list_forms(operation: Operation) -> Iterator[Any]:
    """Yield the types whose schemas an operation needs."""
    if operation.body is not None:
        yield operation.body
    if not list_media(operation.result):
        yield from _list_alternatives(operation.result)


def _list_alternatives(result: Any) -> Iterator[Any]:
    """Yield the documents that a handler may return; none for a response of which nothing is known."""
    if get_origin(result) is Answered:
        (result,) = get_args(result)
    if result is not None and not (isinstance(result, type) and issubclass(result, Response)):
        yield from get_args(result) if isinstance(result, UnionType) else (result,)


def list_media(result: Any) -> list[Media]:
    """Return the media types that the annotation of a response has; none for a JSON document."""
    return [each for each in get_args(result)[1:] if isinstance(each, Media)] if get_origin(result) is Annotated else []


def _describe_operation(
    path: str, method: str, operation: Operation, schemas: Mapping[Any, Mapping[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _name_operation(path, method),
        "summary": _sum_up(operation),
        "tags": [_find_tag(path)],
        "parameters": [*_describe_parameters("path", operation.path), *_describe_parameters("query", operation.query)],
    }
    named = {each["name"] for each in found["parameters"]}
    unread = [(part[1:-1], "path") for part in path.split("/") if part.startswith("{")]
    for name, place in (*unread, *((each, "query") for each in operation.parameters)):
        if name not in named:
            about = {"name": name, "in": place, "required": place == "path"}
            found["parameters"].append({**about, "description": "a text", "schema": _TEXT})
    if operation.body is not None:
        found["requestBody"] = {"required": False, "content": {JSON: {"schema": schemas[operation.body]}}}
    media = list_media(operation.result)
    content = {each.type: {"schema": _TEXT if each.type != JSON else {}} for each in media}
    if not media:
        shown: list[Any] = [schemas[each] for each in _list_alternatives(operation.result)]
        content = {JSON: {"schema": shown[0] if len(shown) == 1 else dict[str, Any](anyOf=shown)}} if shown else {}
    told = "; ".join(each.text for each in media) or _sum_up(operation)
    answer = {"description": told, "content": content} if content else {"description": told}
    return found | {"responses": {**{str(status): answer for status in operation.statuses}, "default": _ERROR}}


def _describe_parameters(place: str, form: type[msgspec.Struct] | None) -> Iterator[dict[str, Any]]:
    if form is None:
        return
    (_, components) = msgspec.json.schema_components([form])
    schemas = components[form.__name__]["properties"]
    for field in list_fields(form):
        schema = dict(schemas[field.encode_name])
        if "anyOf" in schema:  # null is what is not given
            schema = next(each for each in schema["anyOf"] if each != {"type": "null"})
        described = {"name": field.encode_name, "in": place, "required": field.required}
        yield described | {"description": schema.pop("description", ""), "schema": schema}


def _sum_up(operation: Operation) -> str:
    return inspect.cleandoc(operation.text).partition("\n")[0].rstrip(".")


def _name_operation(path: str, method: str) -> str:
    words = [part.strip("{}").replace(".", "_") for part in path.split("/") if part not in ("", "api")]
    return "_".join((method.lower(), *words))


def _find_tag(path: str) -> str:
    words = [part for part in path.split("/") if part and not part.startswith("{")]
    return words[1] if len(words) > 1 else "api"


def _clean(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose description is one paragraph, without the width of our code."""
    text = schema.get("description")
    return schema | {"description": " ".join(text.split())} if text else schema


def _list_used(paths: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the components that are referred to, those of other components included."""
    pending, used = [msgspec.json.encode(paths).decode()], dict[str, Any]()
    while pending:
        text = pending.pop()
        for name in components:
            if name not in used and f'"{_REFERENCE.format(name=name)}"' in text:
                used[name] = components[name]
                pending.append(msgspec.json.encode(components[name]).decode())
    return dict(sorted(used.items()))
