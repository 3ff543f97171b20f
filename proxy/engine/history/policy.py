"""The settings of nudges, as values; `config` fills them in."""

from dataclasses import dataclass

GENTLE = (
    "Nobody has written to you for a while. If you have work under way, go on with it. If nothing is left to do, say so"
    " in one sentence. What is no longer in view can be found by searching the history (context_recall)."
)
FIRM = (
    "This is the second reminder. Go on with your task now: take its next step. If you have lost track of it, search"
    " the history (context_recall) for what you were asked and what you did last."
)
URGENT = (
    "This is the last reminder; without an answer the session goes idle. Act now: take the next step of your task, or"
    " say that it is done, or what keeps you from it. The history can be searched (context_recall) for all that you"
    " were asked."
)


@dataclass(frozen=True, slots=True)
class NudgePolicy:
    """Whether, how often and in which words an agent is nudged that nobody prompts.

    Each field but the last has a setting of the same name.
    """

    enabled: bool = False
    # What stands last in the calls, in turn. The session goes idle after the last one.
    texts: tuple[str, ...] = (GENTLE, FIRM, URGENT)
    # Seconds after a call during which there is no nudge.
    idle_seconds: float = 30.0
    # The same for a client that says that it waits for something.
    wait_seconds: float = 120.0
    # Messages at the end of the history in which a prompt makes a nudge needless.
    scan_messages: int = 20
