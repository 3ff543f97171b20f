"""AgenticMap: an agent for each item, in a session of its own, until it answers without calling a tool.

A session is one of a program (`engine/turns/conversation`), so that context is managed, and what was removed of it can
be recalled, as in any other. Of an agent's work only its last text comes back; the session has the rest.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.engine.mapping.pool import Inputs
from proxy.engine.mapping.running import CallFailed, CallPacer, MapRun, OperatorEngine, describe_problem, require_least
from proxy.engine.mapping.sandbox import PromptTemplate
from proxy.engine.runtime import attempt
from proxy.engine.turns.conversation import MOST_TURNS, AnsweredTurn, ProgramSession
from proxy.engine.turns.recording import SessionRequest
from proxy.engine.turns.tools import ProgramTool, run_calls
from proxy.model.errors import UpstreamRefused, UpstreamUnreachable
from proxy.model.events import SessionClosedEvent
from proxy.model.parts import MessagePart, TextPart
from proxy.model.results import AgentMapResult, TokenUsage

AGENT_PROMPT = (
    "You work on one task, on your own. Use the tools that you have as often as you need them. Nobody answers"
    " questions. Your last message, the first one that calls no tool, is your result: say in it all that was asked for."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticMapOrder:
    """What each agent is asked, and what it may use. `parent` is the id of the session that starts them, or empty."""

    template: PromptTemplate
    model: str
    agent: str = "general"
    parent: str = ""
    tools: tuple[ProgramTool, ...] = ()
    max_turns: int = MOST_TURNS
    max_retries: int | None = None  # of a call that failed; None: as the settings say
    system_prompt: str = AGENT_PROMPT


@dataclass(slots=True)
class _Work:
    """What an agent has come to so far."""

    session: ProgramSession | None = None
    text: str = ""
    tokens: TokenUsage = field(default_factory=TokenUsage)


class AgentMapper:
    """Runs the agents of one run."""

    def __init__(self, order: AgenticMapOrder, run: MapRun, engine: OperatorEngine) -> None:
        require_least("max_turns", order.max_turns, 1)
        retries = engine.policy.max_retries if order.max_retries is None else order.max_retries
        self._pacer = CallPacer(run, retries)
        self._order = order
        self._run = run
        self._ids = engine.ids
        self._home = engine.home
        self._tools = {tool.name: tool for tool in order.tools}

    async def check(self) -> None:
        """Raise NotFound if the log does not know the session that is to be the agents' parent."""
        if self._order.parent:
            await self._home.archive.find_session(self._order.parent)

    def results(self, inputs: Inputs[Any]) -> AsyncGenerator[tuple[int, AgentMapResult]]:
        """Yield the number and the result of each item as they are completed."""
        return self._run.go_through(inputs, self._work)

    async def _work(self, number: int, item: Any) -> AgentMapResult:
        work, problems = _Work(), list[Exception]()
        try:
            await attempt(self._run_agent(item, work), problems.append)
        finally:
            if work.session is not None:
                self._home.bus.publish(SessionClosedEvent(session=work.session.key.id))
        return AgentMapResult(
            input=item,
            session_id=work.session.key.id if work.session is not None else "",
            output_text=work.text,
            success=not problems,
            error=describe_problem(problems[0]) if problems else None,
            token_usage=work.tokens,
        )

    async def _run_agent(self, item: Any, work: _Work) -> None:
        """Have an agent work until it is done. Raises what keeps it from that."""
        order = self._order
        prompt = await self._run.sandbox.render(order.template, item)
        await self._pacer.wait()
        name = f"{order.agent}-{self._ids.next_exchange()}"
        work.session = await self._home.create(SessionRequest(order.model, name, "", order.system_prompt, order.parent))
        brought: Sequence[MessagePart] = (TextPart(prompt),)
        for _ in range(order.max_turns - 1):
            turn = await self._send(brought, work)
            if not turn.calls:
                break
            brought = await run_calls(self._tools, turn.calls)
        else:
            turn = await self._send(brought, work)
        if turn.calls:
            raise CallFailed(f"the agent was not done after {order.max_turns} answers")
        if turn.result.finish_reason != "stop":
            raise CallFailed(f"the last answer is not whole: {turn.result.finish_reason}")
        await work.session.wait_for_compaction()

    async def _send(self, brought: Sequence[MessagePart], work: _Work) -> AnsweredTurn:
        """Send a message. What an upstream does not take now is sent again."""
        for count in range(1, self._pacer.most_calls + 1):
            await self._pacer.wait()
            assert work.session is not None, "the caller has begun it"
            try:
                turn = await work.session.send(brought, tools=tuple(self._tools.values()))
            except UpstreamRefused as error:
                await self._pacer.wait_after(self._pacer.refuse(error.status, str(error), error.retry_after), count)
            except UpstreamUnreachable as error:
                await self._pacer.wait_after(CallFailed(str(error)), count)
            else:
                self._count(turn, work)
                if turn.result.finish_reason != "error":
                    return turn
                await self._pacer.wait_after(
                    CallFailed("the provider's answer is an error, or no answer at all"), count
                )
        raise AssertionError("the last failure is raised")

    def _count(self, turn: AnsweredTurn, work: _Work) -> None:
        result = turn.result
        work.text, work.tokens = result.text or work.text, work.tokens + result.tokens
        self._run.totals.add_call(result.tokens if result.tokens.effective_total() else None, result.cost)
