"""The order of the stages."""

from proxy.engine.call.calls import Calls
from proxy.engine.context.controller import ContextController
from proxy.engine.history.held import HeldHistories
from proxy.engine.recall.rounds import RecallRounds
from proxy.engine.stages.clearing import Clearing
from proxy.engine.stages.held import HeldCalls
from proxy.engine.stages.local import LocalCalls
from proxy.engine.stages.loops import LoopWatch
from proxy.engine.stages.prompt_sources import PromptSources
from proxy.engine.stages.recalling import Recalling
from proxy.engine.stages.refusals import Refusals
from proxy.engine.stages.stage import Stage
from proxy.engine.stages.summaries import SummaryWatch
from proxy.engine.stages.usage import Usage


def order_stages(
    controller: ContextController,
    calls: Calls,
    *,
    histories: HeldHistories | None = None,
    loops: LoopWatch | None = None,
    summaries: SummaryWatch | None = None,
    recall: RecallRounds | None = None,
) -> list[Stage]:
    """Return the stages of calls, each where what it needs is known, and before what needs it.

    A program says that we hold the history of its call; what is told of a message comes from that. Who gets a response
    is decided from the client on: what is cleared stands in what the others pass on, and a refusal is told to the last
    of them. A plan is told when all that is told with it is there.
    """
    states = controller.states
    stages = [
        LocalCalls(),
        Clearing(states),
        Usage(controller),
        HeldCalls(histories) if histories is not None else None,
        PromptSources(states.caches.contexts),
        loops,
        summaries,
        Refusals(controller, calls),
        Recalling(recall) if recall is not None else None,
    ]
    return [each for each in stages if each is not None]
