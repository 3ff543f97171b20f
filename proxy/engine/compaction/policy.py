"""The settings of summaries, as values; `config` fills them in."""

from collections.abc import Callable
from dataclasses import dataclass

PromptHook = Callable[[str, int], str]
"""Takes the instruction for a summary and its level (1 or 2), returns the instruction to use."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Who writes summaries, of what, and at what cost; each field has a setting of the same name."""

    # Whether summaries are made in the background.
    auto: bool = True
    # The model that is asked, where empty the conversation's own; the fallbacks, in their order, where that fails. They
    # are asked at the conversation's upstream, or at one that `may_receive` names.
    model: str = ""
    fallback_models: tuple[str, ...] = ()
    may_receive: tuple[str, ...] = ()
    # Stands in place of the built-in instruction; the hook is the dotted path of a function that may change it.
    prompt: str = ""
    prompt_hook: str = ""
    # Whether a short form is asked for where a summary was rejected.
    level2: bool = True
    # Whether summaries are merged, and in how many rounds at most.
    condensation: bool = True
    max_rounds: int = 10
    # How long a request above the high mark waits for a summary that is being made.
    hard_wait_seconds: float = 2.0
    # The user's newest turns that are never part of a summary.
    protect_turns: int = 2
    # The part of a model's window that a request for a summary takes at most.
    input_fraction: float = 0.75
    # Spending is bounded by a part of what a session's own calls cost, and by an amount of money for all sessions in a
    # day of UTC; 0 is no cap.
    spend_fraction: float = 0.05
    spend_per_day: float = 0.0
    # The part of all sessions that is not managed at all, to compare with.
    holdout_fraction: float = 0.0
    # Whether credentials of people's subscriptions may be used.
    subscription_calls: bool = False
    # When a call for a summary ends at the latest.
    time_limit_seconds: float = 60.0
    # Tokens that a model may think beside what it writes.
    reasoning_tokens: int = 8192
