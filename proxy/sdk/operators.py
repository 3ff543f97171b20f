"""Operators for Python programs: LLMMap and AgenticMap over the engine's own (`engine/mapping`).

`run` checks its arguments at once and returns results to be read with `async for`. The engine is opened when the first
one is asked for, and given back after the last one. On a terminal a line on standard error shows how far a run is.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from proxy.config import Settings
from proxy.engine.mapping.agentic_map import AgenticMapOrder, AgentMapper
from proxy.engine.mapping.llm_map import LlmMapOrder, LlmMapper
from proxy.engine.mapping.pool import Inputs
from proxy.engine.mapping.prompts import ItemTemplate, OutputSchema
from proxy.engine.mapping.running import MapRun, MapTotals, Operator, OperatorEngine, require_least
from proxy.engine.mapping.sandbox import PromptTemplate, Unfit, join_errors, name_place
from proxy.engine.policy import OperatorPolicy
from proxy.engine.turns.conversation import MOST_TURNS
from proxy.engine.turns.tools import make_tools
from proxy.model.results import AgentMapResult, MapResult
from proxy.sdk.engines import ENGINES, SharedEngine
from proxy.sdk.errors import naming_errors
from proxy.sdk.events import EventBus
from proxy.sdk.session import AGENT_NAME, Tool

_EVERY_SECONDS = 0.1
_BAR = 24

R = TypeVar("R", bound=MapResult | AgentMapResult)
Config = Settings | OperatorPolicy | None
"""All settings, or only those of operators: the others are then those of the environment and its file."""
Begin = Callable[[OperatorEngine, MapRun], AsyncGenerator[tuple[int, R]]]

Convert = Callable[[object], object]

_log = logging.getLogger("palimpsest.sdk.operators")


class MapResults(Generic[R]):
    """The results of a run, in the order in which they are completed, and its totals so far.

    Nothing runs before the first one is asked for. Leaving the loop, `aclose` and cancellation end all that runs.
    """

    def __init__(self, results: AsyncGenerator[tuple[int, R]], totals: MapTotals) -> None:
        self.totals = totals
        self._results = results
        self._taking = asyncio.Lock()  # a loop that was left is closed by a task, while the program goes on
        self._is_ended = False

    async def __aiter__(self) -> AsyncGenerator[R]:
        """Yield the results. Leaving the loop ends the run, also while something refers to this object."""
        try:
            while True:
                yield await anext(self)
        except StopAsyncIteration:
            return
        finally:
            await self.aclose()

    async def __anext__(self) -> R:
        async with self._taking:
            if self._is_ended:
                raise StopAsyncIteration
            return (await anext(self._results))[1]

    async def aclose(self) -> None:
        """End the run. Nothing of it is running afterwards."""
        self._is_ended = True
        async with self._taking:
            await self._results.aclose()

    async def in_order(self) -> list[R]:
        """Return all results that are still to come, in the order of the inputs."""
        found = {number: result async for number, result in self._results}
        return [found[number] for number in sorted(found)]


class _Operator:
    """What both operators have: their settings, and the bus that is told of their runs."""

    operator: Operator

    def __init__(self, config: Config = None, event_bus: EventBus | None = None) -> None:
        if not isinstance(event_bus, EventBus | None):
            raise TypeError(f"event_bus is an EventBus, not {event_bus!r:.100}")
        self._config = _check_config(config)
        self._bus = event_bus
        self._totals = MapTotals()

    @property
    def totals(self) -> MapTotals:
        """The totals of the newest run: items, calls, tokens and cost."""
        return self._totals

    def _start(
        self,
        inputs: Inputs[Any],
        model: str,
        begin: Begin[R],
        *,
        concurrency: int | None,
        config: Config = None,
        parent: str = "",
    ) -> MapResults[R]:
        """Return the results to come. Raises ValueError for a concurrency below 1, and a model without a name."""
        if not isinstance(inputs, Iterable | AsyncIterable):
            raise TypeError(
                f"inputs are a list, a generator or another iterable, also an async one, not {inputs!r:.100}"
            )
        if not isinstance(model, str) or not model:
            raise ValueError(f"model is the name of a model, not {model!r:.100}")
        if concurrency is not None:
            require_least("concurrency", concurrency, 1)
        totals = self._totals = MapTotals()
        config = self._config if config is None else _check_config(config)
        results = self._run(inputs, model, begin, concurrency=concurrency, config=config, parent=parent, totals=totals)
        return MapResults(results, totals)

    async def _run(
        self,
        inputs: Inputs[Any],
        model: str,
        begin: Begin[R],
        *,
        concurrency: int | None,
        config: Config,
        parent: str,
        totals: MapTotals,
    ) -> AsyncGenerator[tuple[int, R]]:
        shared = await _acquire(config, parent)
        try:
            shared.check_model(model)
            settings = config if isinstance(config, OperatorPolicy) else shared.settings.operators
            engine = OperatorEngine(shared.engine.conversations, settings, shared.engine.sandbox)
            with naming_errors():
                if parent:
                    await shared.engine.archive.find_session(parent)
                publish = None if self._bus is None else self._bus.publish
                run = engine.begin(self.operator, model, concurrency, publish)
                run.totals = totals
                progress = ProgressLine(type(self).__name__, len(inputs) if isinstance(inputs, Sized) else None)
                try:
                    async with aclosing(begin(engine, run)) as results:
                        async for each in results:
                            progress.show(totals)
                            yield each
                finally:
                    progress.end(totals)
        finally:
            await ENGINES.release(shared)


class LLMMap(_Operator):
    """Asks a model for an answer to each input, which fits a schema. The calls are logged, and belong to no session.

    `config` are settings, or their part `operators`. `event_bus` is told of each run; without one nobody is.
    """

    operator = "llm_map"

    def run(
        self,
        inputs: Inputs[Any],
        prompt_template: str,
        output_schema: dict[str, Any] | type[BaseModel],
        model: str,
        *,
        concurrency: int | None = None,
        max_retries: int | None = None,
        system_prompt: str | None = None,
        temperature: float | None = 0.0,
        timeout: float = 60.0,
    ) -> MapResults[MapResult]:
        """Return the results to come, in the order in which they are completed; failures are among them.

        `inputs` may be lazy, and async. `prompt_template` is Jinja's language, and has to use `item`. With a pydantic
        model as schema the outputs are instances of it. An answer that does not fit is asked for again, with the
        error. `timeout` is that of one call, in seconds; a temperature of None is left to the upstream. Raises
        ValueError for a template, a schema or a number that cannot be.
        """
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r:.100}")
        if not isinstance(temperature, int | float | None):
            raise ValueError(f"temperature is a number, or None, not {temperature!r:.100}")
        if max_retries is not None:
            require_least("max_retries", max_retries, 0)
        document, convert = _read_schema(output_schema)
        order = LlmMapOrder(
            template=_read_template(prompt_template),
            schema=document,
            convert=convert,
            model=model,
            max_retries=max_retries,
            system_prompt=system_prompt,
            temperature=temperature,
            timeout=timeout,
        )

        def begin(engine: OperatorEngine, run: MapRun) -> AsyncGenerator[tuple[int, MapResult]]:
            return LlmMapper(order, run, engine).results(inputs)

        return self._start(inputs, model, begin, concurrency=concurrency)

    async def run_batch(
        self,
        inputs: Inputs[Any],
        prompt_template: str,
        output_schema: dict[str, Any] | type[BaseModel],
        model: str,
        **options: Any,
    ) -> list[MapResult]:
        """Return all results in the order of the inputs. It takes what `run` takes."""
        results = self.run(inputs, prompt_template, output_schema, model, **options)
        return await results.in_order()


class AgenticMap(_Operator):
    """Runs an agent for each input, in a session of its own. Only its last text comes back; the session has the rest.

    `config` are settings, or their part `operators`. `event_bus` is told of each run, not of what the agents do.
    """

    operator = "agentic_map"

    def run(
        self,
        inputs: Inputs[Any],
        agent_prompt_template: str,
        model: str,
        *,
        concurrency: int | None = None,
        read_only: bool = True,
        parent_session_id: str | None = None,
        tools: Sequence[Tool] | None = None,
        max_turns: int = MOST_TURNS,
        agent: str = "general",
        config: Config = None,
    ) -> MapResults[AgentMapResult]:
        """Return the results to come, in the order in which they are completed; failures are among them.

        An agent works until it answers without calling a tool. After `max_turns` answers it has failed, and its last
        text is kept. `read_only`: only tools that are marked so are offered (`make_tool(..., is_read_only=True)`). The
        sessions are children of `parent_session_id`, in its log. Raises ValueError for a template or a number that
        cannot be, and TypeError for what is no tool.
        """
        require_least("max_turns", max_turns, 1)
        if not AGENT_NAME.fullmatch(agent):
            raise ValueError(f"agent is a name of letters, digits and . _ : / -, not {agent!r:.100}")
        made = make_tools(tools)
        offered = tuple([each for each in made if each.is_read_only or not read_only])
        if made and not offered:
            _log.warning("no tool is marked as read-only, so that the agents have none; see make_tool, and read_only")
        order = AgenticMapOrder(
            template=_read_template(agent_prompt_template),
            model=model,
            agent=agent,
            parent=parent_session_id or "",
            tools=offered,
            max_turns=max_turns,
        )

        def begin(engine: OperatorEngine, run: MapRun) -> AsyncGenerator[tuple[int, AgentMapResult]]:
            return AgentMapper(order, run, engine).results(inputs)

        return self._start(inputs, model, begin, concurrency=concurrency, config=config, parent=order.parent)

    async def run_batch(
        self, inputs: Inputs[Any], agent_prompt_template: str, model: str, **options: Any
    ) -> list[AgentMapResult]:
        """Return all results in the order of the inputs. It takes what `run` takes."""
        return await self.run(inputs, agent_prompt_template, model, **options).in_order()


def _read_template(text: str) -> PromptTemplate:
    """Return a template that was checked. Raises ValueError."""
    template = ItemTemplate(text)
    return PromptTemplate(text, template.render, template.parts)


def _read_schema(schema: dict[str, Any] | type[BaseModel]) -> tuple[Mapping[str, Any], Convert | None]:
    """Return a schema as a document, and what makes instances if it is a pydantic model. Raises ValueError."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_json_schema(), partial(_make_instance, schema)
    if not isinstance(schema, Mapping):
        raise ValueError(f"output_schema is a JSON Schema or a pydantic model, not {type(schema).__name__}")
    OutputSchema(schema)
    return schema, None


def _make_instance(model: type[BaseModel], value: object) -> object:
    """Return the instance of a model that a value says. Raises Unfit."""
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise Unfit(join_errors(_list_errors(error))) from error


def _list_errors(error: ValidationError) -> Iterator[str]:
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        yield f"{name_place(each['loc'])}: {each['msg']}"


def _check_config(config: Config) -> Config:
    if not isinstance(config, Settings | OperatorPolicy | None):
        raise TypeError(f"config is Settings(...), or its part operators, not {config!r:.100}")
    return config


async def _acquire(config: Config, parent: str) -> SharedEngine:
    """Return the engine of a run: with the settings, else the one in which its parent is open, else the usual one."""
    settings = config if isinstance(config, Settings) else None
    path = None
    if settings is None and parent:
        path = next((each.path for each in ENGINES.open.values() if parent in each.engine.conversations.open), None)
    return await ENGINES.acquire(settings, path)


class ProgressLine:
    """A line on a terminal that shows how far a run is. Elsewhere it shows nothing."""

    def __init__(self, name: str, total: int | None, stream: TextIO | None = None) -> None:
        self._name = name
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._is_shown = self._stream.isatty()
        self._next = 0.0
        self._length = 0

    def show(self, totals: MapTotals) -> None:
        """Show how far the run is, ten times in a second at most."""
        if self._is_shown and (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            self._write(describe_progress(self._name, self._total, totals))

    def end(self, totals: MapTotals) -> None:
        """Leave the line as it is at the end."""
        if self._is_shown:
            self._write(describe_progress(self._name, self._total, totals))
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text:<{self._length}}")
        self._stream.flush()
        self._length = len(text)


def describe_progress(name: str, total: int | None, totals: MapTotals) -> str:
    """Return how far a run is, as a line."""
    done = totals.succeeded + totals.failed
    bar, count = "", f"{done:,}"
    if total:
        filled = min(_BAR, _BAR * done // total)
        bar, count = f"[{'#' * filled}{'.' * (_BAR - filled)}] ", f"{done:,}/{total:,}"
    failed = f", {totals.failed:,} failed" if totals.failed else ""
    tokens = totals.tokens.effective_total()
    cost = f", cost {totals.cost:.4f}" if totals.cost else ""
    return f"{name} {bar}{count}{failed}, {tokens:,} tokens{cost}"
