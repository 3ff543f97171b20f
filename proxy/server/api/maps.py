"""`POST /-/api/maps`: operators over HTTP (`engine/mapping`). Their results are streamed as they come, a line for each.

A run ends with its client: what runs is cancelled when the connection closes. The calls go to the upstreams of the
settings, with the keys that are set there.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.engine.mapping.running import MapRun, MapTotals, OperatorEngine
from proxy.engine.reports.sessions import write_json
from proxy.model.errors import BadRequest, ProxyError
from proxy.model.results import MapResult
from proxy.server.endpoints import GUARDS, Endpoint, Media

MOST_BYTES = 16 * 1024 * 1024
_MEDIA = "application/x-ndjson"
_HEADERS = {**GUARDS, "x-accel-buffering": "no"}  # a proxy before us must not hold results back to fill its buffer

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=1000)]


class MapOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of an operator: what is asked for each input, and of which model. Without a number: as the settings say.

    `prompt_template` is Jinja's language, and has to use `item`. `output_schema` is the JSON Schema of an answer.
    """

    model: Text
    inputs: list[Any]
    prompt_template: Text
    output_schema: dict[str, Any]
    concurrency: Count | None = None
    max_retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    system_prompt: str | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = 0.0
    timeout: Annotated[float, Meta(gt=0, description="seconds of one call")] = 60.0


class MapResultLine(msgspec.Struct, frozen=True, tag="result"):
    """The result for the input number `index`, from 0."""

    index: int
    result: MapResult


class MapEndLine(msgspec.Struct, frozen=True, tag="end"):
    """The last line: what the run has come to, and where its calls are kept. `error` is why it ended early, if so."""

    run: str
    session: str
    totals: MapTotals
    error: str | None = None


class MapsApi:
    """The endpoint of operators."""

    def __init__(self, engine: OperatorEngine) -> None:
        self._engine = engine

    def list_routes(self) -> Sequence[Route]:
        """Return the routes, below `/-`."""
        return [Route("/api/maps", Endpoint().on("POST", self._run, most_bytes=MOST_BYTES))]

    async def _run(self, body: MapOrder) -> Annotated[Response, Media(_MEDIA, "a line of JSON for each result")]:
        """Ask a model for an answer to each input, and stream the results in the order in which they come."""
        try:
            run, results = await asyncio.to_thread(_begin, self._engine, body)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return StreamingResponse(_write(run, results), headers=_HEADERS, media_type=_MEDIA)


def _begin(engine: OperatorEngine, body: MapOrder) -> tuple[MapRun, AsyncGenerator[tuple[int, MapResult]]]:
    """Check an order. Return its run and the results to come. Raises ValueError. Blocks for a moment at first."""
    # What makes prompts and checks answers takes 0.3 s to import, and few need it.
    from proxy.engine.mapping.llm_map import LlmMapOrder, LlmMapper  # noqa: PLC0415
    from proxy.engine.mapping.prompts import ItemTemplate, OutputSchema  # noqa: PLC0415

    order = LlmMapOrder(
        template=ItemTemplate(body.prompt_template),
        schema=OutputSchema(body.output_schema),
        model=body.model,
        max_retries=body.max_retries,
        system_prompt=body.system_prompt,
        temperature=body.temperature,
        timeout=body.timeout,
    )
    run = engine.begin("llm_map", body.model, body.concurrency)
    return run, LlmMapper(order, run, engine).results(body.inputs)


async def _write(run: MapRun, results: AsyncGenerator[tuple[int, MapResult]]) -> AsyncGenerator[bytes]:
    error = None
    async with aclosing(results):
        try:
            async for index, result in results:
                yield write_json(MapResultLine(index, result))
        except ProxyError as problem:
            error = str(problem)
    yield write_json(MapEndLine(run.id, run.session, run.totals, error))
