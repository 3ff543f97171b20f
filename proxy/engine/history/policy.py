"""The settings of nudges, as values; `config` fills them in."""

from dataclasses import dataclass

GENTLE = "If you have work under way, go on with it. What is out of view can be searched (context_recall)."
FIRM = "Take the next step of your task now. If you have lost track of it, search the history (context_recall)."
URGENT = "Last reminder: act, or say what keeps you from it. context_recall searches what you were asked to do."


@dataclass(frozen=True, slots=True)
class NudgePolicy:
    """Whether, how often and in which words an agent is nudged that nobody prompts.

    Each of the first four fields has a setting of the same name.
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
    # Names of upstreams that refuse two answers in a row, as a nudge that is not stored leaves them.
    alternating: frozenset[str] = frozenset()
