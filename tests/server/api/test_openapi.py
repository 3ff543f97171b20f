"""The API's document: valid, complete, and true of the server that serves it."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.loops import MovableUvloop
from tests.support.scripted import ScriptedUpstream
from tests.support.whole_server import WholeServer, serving_whole

DOCUMENT = "/-/api/openapi.json"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ITEMS = ("ep_0001", "sem_0001")
STREAMS = ("/-/api/events",)
EXAMPLES = settings().max_examples // 4


class Lent:
    """A server on a loop that the tests of this module run by hand."""

    def __init__(self, data: Path) -> None:
        self.loop = MovableUvloop()
        self._data = data

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    async def open(self) -> None:
        self.upstream = await ScriptedUpstream().__aenter__()
        self._serving = serving_whole(self._data, self.upstream, **{"budget.ceiling_tokens": 4000})
        self.server: WholeServer = await self._serving.__aenter__()
        self.session = await self.server.talk("talk", 16)
        await self.server.talk("other", 2)
        await self.ask("POST", f"/-/api/sessions/{self.session}/pins?newest=true")
        compaction = {"level": 3}
        await self.ask("POST", f"/-/api/sessions/{self.session}/compact", compaction)
        (self.summary, *_) = (await self.ask("GET", f"/-/api/sessions/{self.session}/summaries"))["items"]
        (self.message, *_) = (await self.ask("GET", f"/-/api/sessions/{self.session}/messages"))["items"]
        await self.ask("POST", f"/-/api/sessions/{self.session}/memory/compact", compaction)

    def name(self, path: str, parameter: str, number: int) -> object:
        """What is in the log, for a parameter of a path; None where any name will do."""
        if path.endswith("/refs/{id}"):
            return self.summary["id"]
        ids = {"id": self.session, "sid": self.summary["id"], "node": self.message["id"], "item": ITEMS[number % 2]}
        return {**ids, "n": 1 + number % 2}.get(parameter)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        got = await self.server.client.request(method, path, json=body)
        assert got.status_code == 200, got.text
        return got.json()

    async def close(self) -> None:
        await self._serving.__aexit__(None, None, None)
        await self.upstream.__aexit__(None, None, None)


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lent]:
    lent = Lent(tmp_path_factory.mktemp("log"))
    lent.run(lent.open())
    yield lent
    lent.run(lent.close())
    lent.loop.close()


@pytest.fixture(scope="module")
def document(lent: Lent) -> Any:
    return lent.run(lent.ask("GET", DOCUMENT))


def test_the_document_is_valid(document: Any) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_every_handler_has_types_and_says_what_it_does(document: Any) -> None:
    ids = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            assert operation["summary"], (path, method)
            shown = [each["schema"] for each in next(iter(operation["responses"].values())).get("content", {}).values()]
            assert all(shown) or path == DOCUMENT or path.endswith("/export"), (path, method)
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
            assert all(each["description"] for each in operation["parameters"]), (path, method)
    assert len(set(ids)) == len(ids)


def test_the_list_of_links_has_every_path_of_the_document(lent: Lent, document: Any) -> None:
    links = lent.run(lent.ask("GET", "/-/api"))
    assert {link["path"] for link in links["links"]} == set(document["paths"])
    assert links["document"] == DOCUMENT
    for link in links["links"]:
        assert {method.lower() for method in link["methods"]} == set(document["paths"][link["path"]])
        assert link["text"]


def try_operation(lent: Lent, operation: Any) -> list[int]:
    """Ask for an operation in ways that its schema allows, of what is in the log and of what is not."""
    seen: list[int] = []

    async def ask(case: Any) -> Any:
        given = case.as_transport_kwargs(base_url=f"http://127.0.0.1:{lent.server.port}")
        given.pop("cookies", None)
        sent = given.pop("data", None)
        own = dict(given.pop("headers", None) or {})
        fields = {name: value for name, value in own.items() if name.lower() == "content-type"}
        return await lent.server.client.request(**given, content=sent, headers=fields)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), is_known=st.integers(0, 3), number=st.integers(0, 30))
    def try_case(case: Any, is_known: int, number: int) -> None:
        for name in case.path_parameters if is_known else ():
            case.path_parameters[name] = lent.name(operation.path, name, number) or case.path_parameters[name]
        got = lent.run(asyncio.wait_for(ask(case), 60))
        case.validate_response(got, checks=CHECKS)
        seen.append(got.status_code)

    try_case()
    return seen


def test_the_server_does_what_its_document_says(lent: Lent, document: Any) -> None:
    operations: list[Any] = [
        result.ok()  # type: ignore[union-attr]
        for result in schemathesis.openapi.from_dict(document).get_all_operations()
    ]
    # what changes the log comes after what shows it, and what removes a session last
    operations.sort(key=lambda each: (each.method != "get", each.method == "delete", -len(each.path)))
    for operation in operations:
        if operation.path in STREAMS:
            continue
        seen = try_operation(lent, operation)
        if operation.path == "/-/api/sessions/{id}/epochs/next":
            seen = [200 if status == 409 else status for status in seen]  # nothing would get shorter
        assert 200 in seen or operation.method != "get", (operation.method, operation.path, seen)


def test_a_method_that_a_path_does_not_take_is_refused(lent: Lent, document: Any) -> None:
    for path, method in itertools.product(document["paths"], ("GET", "POST", "DELETE", "PUT", "PATCH", "TRACE")):
        if method.lower() not in document["paths"][path]:
            got = lent.run(lent.server.client.request(method, path.replace("{id}", lent.session).replace("{n}", "1")))
            assert (got.status_code, got.json()["error"]["code"]) == (405, "method_not_allowed"), (path, method)
