"""The settings of nudges."""

from dataclasses import dataclass
from typing import Annotated

from proxy.model.settings import Pause, Rule

GENTLE = "If you have work under way, go on with it. What is out of view can be searched (context_recall)."
FIRM = "Take the next step of your task now. If you have lost track of it, search the history (context_recall)."
URGENT = "Last reminder: act, or say what keeps you from it. context_recall searches what you were asked to do."


@dataclass(frozen=True, slots=True)
class NudgePolicy:
    """Messages to an agent that nobody prompts: for clients that tick, on histories that are held here."""

    enabled: bool = False
    """Whether a call without messages may be nudged (docs/server-history.md)."""
    texts: Annotated[tuple[str, ...], Rule(min_length=1)] = (GENTLE, FIRM, URGENT)
    """What nudges say, one after another. After the last one without an answer the session goes idle."""
    idle_seconds: Pause = 30.0
    """Time after a call without a nudge; seconds."""
    wait_seconds: Pause = 120.0
    """The same for a client that waits for something (x-palimpsest-source: tick:wait); seconds."""
