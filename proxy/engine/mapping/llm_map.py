"""LLMMap: one call of a model for each item, with an answer that fits a schema.

The calls are no conversation: all of a run are in one session of the log, each alone (`x-palimpsest-history: none`), as
they were made. A retry after an answer that does not fit shows the model this answer, and what is wrong with it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.engine.call.response_reader import read_received
from proxy.engine.call.response_stream import LocalClient
from proxy.engine.mapping.pool import Inputs
from proxy.engine.mapping.running import CallFailed, CallPacer, MapRun, OperatorEngine, describe_problem
from proxy.engine.mapping.sandbox import PromptTemplate, Unfit
from proxy.engine.runtime import attempt
from proxy.engine.turns.calls import make_call, make_request
from proxy.model.errors import BadRequest, ProxyError
from proxy.model.exchange import SUCCESS, Answer, Usage
from proxy.model.results import MapResult, count_usage
from proxy.wire import OWN_FORMAT
from proxy.wire.headers import read_rate_limits
from proxy.wire.summary_request import read_summary

_MOST_ANSWER = 8 * 1024 * 1024
_ORDERS = (
    "Answer with one JSON value that fits the JSON Schema below, and with nothing else: no explanation, no Markdown.\n"
    "JSON Schema:\n"
)
_CORRECTION = "This answer is not valid:\n{0}\nAnswer again, with nothing but one JSON value that fits the schema."
_CUT_OFF = "the answer was cut off at the limit of output tokens; answer more briefly"

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmMapOrder:
    """What is asked for each item. `timeout` is in seconds. A temperature of None is left to the upstream.

    `schema` is the JSON Schema that the model is shown, and that its answers have to fit; but if there is `convert`,
    that says what an answer's value becomes, or raises Unfit.
    """

    template: PromptTemplate
    schema: Mapping[str, object]
    model: str
    convert: Callable[[object], object] | None = None
    max_retries: int | None = None  # None: as the settings say
    system_prompt: str | None = None
    temperature: float | None = 0.0
    timeout: float = 60.0

    @property
    def system(self) -> str:
        """The system message. It is the same for all items, so that a provider's cache has it."""
        orders = _ORDERS + json.dumps(self.schema, ensure_ascii=False)
        return "\n\n".join(filter(None, (self.system_prompt, orders)))


class LlmMapper:
    """Makes the calls of one run."""

    def __init__(self, order: LlmMapOrder, run: MapRun, engine: OperatorEngine) -> None:
        self._order = order
        self._run = run
        self._exchanges = engine.home.exchanges
        self._prices = engine.home.prices
        retries = engine.policy.max_retries if order.max_retries is None else order.max_retries
        self._pacer = CallPacer(run, retries)
        self._named = (b"x-palimpsest-session", f"map:{run.id}".encode()), (b"x-palimpsest-history", b"none")
        self._rule = "" if order.convert is not None else json.dumps(order.schema)
        self._system: Message = {"role": "system", "content": order.system}

    def results(self, inputs: Inputs[Any]) -> AsyncGenerator[tuple[int, MapResult]]:
        """Yield the number and the result of each item as they are completed."""
        return self._run.go_through(inputs, self._work)

    async def _work(self, number: int, item: Any) -> MapResult:
        problems: list[Exception] = []
        tries: list[int] = []
        result = await attempt(self._find_answer(item, tries), problems.append)
        if result is not None:
            return result
        (problem,) = problems
        return MapResult(input=item, error=describe_problem(problem, Unfit), attempts=len(tries))

    async def _find_answer(self, item: Any, tries: list[int]) -> MapResult:
        """Ask until an answer fits. Each call is noted in `tries`. Raises what is wrong with the last one."""
        prompt: Message = {"role": "user", "content": await self._run.sandbox.render(self._order.template, item)}
        messages, problem = [self._system, prompt], Exception()
        for count in range(1, self._pacer.most_calls + 1):
            await self._pacer.wait()
            tries.append(count)
            try:
                text, is_cut = await self._ask(messages)
                if is_cut:
                    raise Unfit(_CUT_OFF)
                output = await self._read_value(text)
                return MapResult(input=item, output=output, success=True, attempts=count)
            except Unfit as error:
                problem = error
                said = [{"role": "assistant", "content": text}] if text else []
                messages = [self._system, prompt, *said, {"role": "user", "content": _CORRECTION.format(error)}]
            except CallFailed as error:
                await self._pacer.wait_after(error, count)
        raise problem

    async def _read_value(self, text: str) -> object:
        """Return the value that an answer says. Raises Unfit."""
        value = await self._run.sandbox.read(self._rule, text)
        return value if self._order.convert is None else self._order.convert(value)

    async def _ask(self, messages: list[Message]) -> tuple[str, bool]:
        """Make a call. Return the text of the answer, and whether it was cut off. Raises CallFailed."""
        body: dict[str, Any] = {"model": self._order.model, "messages": messages}
        if self._order.temperature is not None:
            body["temperature"] = self._order.temperature
        request = make_request(OWN_FORMAT, json.dumps(body).encode(), *self._named)
        try:
            async with asyncio.timeout(self._order.timeout):
                response = await make_call(self._exchanges, self._run.tasks, request, OWN_FORMAT.name)
        except TimeoutError as error:
            raise CallFailed(f"no complete answer came within {self._order.timeout:g} s") from error
        except ProxyError as error:
            raise CallFailed(str(error), is_final=isinstance(error, BadRequest)) from error
        self._run.session = self._run.session or response.session
        return self._read(response)

    def _read(self, response: LocalClient) -> tuple[str, bool]:
        try:
            answer, _ = read_received(OWN_FORMAT, response.headers, response.content, _MOST_ANSWER)
        except ValueError as error:
            answer = Answer({}, error=f"{error}: {response.content[:100].decode(errors='replace')}")
        if response.status not in SUCCESS:
            pause = read_rate_limits(response.headers, self._run.clock.now_ms()).retry_after
            raise self._pacer.refuse(response.status, f"status {response.status}: {answer.error}", pause)
        self._count(answer.usage)
        if answer.error:
            raise CallFailed(f"the upstream answered with an error: {answer.error}")
        said = read_summary(OWN_FORMAT, answer)
        if said.refusal:
            raise CallFailed(f"the model refused: {said.refusal}", is_final=True)
        return said.text, said.finish == "length"

    def _count(self, usage: Usage | None) -> None:
        if usage is None:
            return self._run.totals.add_call(None, None)
        cost = self._prices.price(self._exchanges.find_upstream(self._order.model), self._order.model, usage)
        self._run.totals.add_call(count_usage(usage), cost.money)
