"""`POST /-/api/maps`: operators over HTTP (`engine/mapping`). Their results are streamed as they come, a line for each.

A run ends with its client: what runs is cancelled when the connection closes. The calls go to the upstreams of the
settings, with the keys that are set there.
"""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.engine.mapping.agentic_map import AGENT_PROMPT, AgenticMapOrder, AgentMapper
from proxy.engine.mapping.llm_map import LlmMapOrder, LlmMapper
from proxy.engine.mapping.running import MapRun, MapTotals, OperatorEngine
from proxy.engine.mapping.sandbox import TaskFailed
from proxy.engine.recorded.documents import describe, write_json
from proxy.engine.turns.conversation import MOST_TURNS
from proxy.model.errors import BadRequest, ProxyError
from proxy.model.results import AgentMapResult, MapResult
from proxy.server.endpoints import GUARDS, Endpoint, Media
from proxy.wire.json_values import is_shallow

MOST_BYTES = 16 * 1024 * 1024
_MEDIA = "application/x-ndjson"
_HEADERS = {**GUARDS, "x-accel-buffering": "no"}  # a proxy before us must not hold results back to fill its buffer

Text = Annotated[str, Meta(min_length=1)]


Results = AsyncGenerator[tuple[int, MapResult]] | AsyncGenerator[tuple[int, AgentMapResult]]


class MapOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of an operator: what is asked for each input, and of which model. Without a number: as the settings say.

    `prompt_template` is Jinja's language, and has to use `item`. `output_schema`, `temperature` and `timeout` are for
    `llm_map` only, which needs a schema; `max_turns`, `agent` and `parent_session_id` are for `agentic_map` only.
    """

    model: Text
    inputs: list[Any]
    prompt_template: Text
    operator: Literal["llm_map", "agentic_map"] = "llm_map"
    output_schema: Annotated[dict[str, Any], Meta(description="the JSON Schema of an answer")] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | None = None
    max_retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    system_prompt: str | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = 0.0
    timeout: Annotated[float, Meta(gt=0, description="seconds of one call")] = 60.0
    max_turns: Annotated[int, Meta(ge=1, le=1000, description="the most answers of an agent")] = MOST_TURNS
    agent: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,80}$", description="part of its sessions' names")] = (
        "general"
    )
    parent_session_id: str = ""


class MapResultLine(msgspec.Struct, frozen=True, tag="result"):
    """The result for the input number `index`, from 0."""

    index: int
    result: MapResult | AgentMapResult


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
        """Ask a model, or an agent, for a result for each input, and stream the results as they come."""
        try:
            run, results = await _begin(self._engine, body)
        except (ValueError, TaskFailed) as error:
            raise BadRequest(str(error)) from error
        if body.parent_session_id:
            await self._engine.home.archive.find_session(body.parent_session_id)
        return StreamingResponse(_write(run, results), headers=_HEADERS, media_type=_MEDIA)


async def _begin(engine: OperatorEngine, body: MapOrder) -> tuple[MapRun, Results]:
    """Check an order. Return its run and the results to come. Raises ValueError, TaskFailed and WorkerLost."""
    run = engine.begin(body.operator, body.model, body.concurrency)
    schema = body.output_schema
    if body.operator == "agentic_map":
        if schema is not None:
            raise ValueError("output_schema is for llm_map; an agent's result is its last text")
        agents = describe(
            AgenticMapOrder,
            body,
            template=await run.sandbox.check(body.prompt_template, ""),
            parent=body.parent_session_id,
            system_prompt=AGENT_PROMPT if body.system_prompt is None else body.system_prompt,
        )
        return run, AgentMapper(agents, run, engine).results(body.inputs)
    if schema is None:
        raise ValueError("llm_map needs an output_schema")
    if body.parent_session_id:
        raise ValueError("parent_session_id is for agentic_map; the calls of llm_map belong to no session")
    if not is_shallow(schema):
        raise ValueError("output_schema is nested too deeply")
    template = await run.sandbox.check(body.prompt_template, json.dumps(schema))
    order = describe(LlmMapOrder, body, template=template, schema=schema)
    return run, LlmMapper(order, run, engine).results(body.inputs)


async def _write(run: MapRun, results: Results) -> AsyncGenerator[bytes]:
    error = None
    async with aclosing(results):
        try:
            async for index, result in results:
                yield write_json(MapResultLine(index, result))
        except ProxyError as problem:
            error = str(problem)
    yield write_json(MapEndLine(run.id, run.session, run.totals, error))
