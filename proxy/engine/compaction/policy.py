"""The settings of summaries, as values; `config` fills them in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PromptHook = Callable[[str, int, Sequence[bytes]], str]
"""Takes the instruction for a summary, its level (1 or 2), and the raw messages that are summarised.

Returns the instruction to use.
"""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Who writes summaries, of what, and at what cost. Each field has a setting of the same name."""

    # Whether summaries are made in the background.
    auto: bool = True
    # The model that is asked (empty: the conversation's own), and the fallbacks if it fails, in order. They are asked
    # at the conversation's upstream, or at one that `may_receive` names.
    model: str = ""
    fallback_models: tuple[str, ...] = ()
    may_receive: tuple[str, ...] = ()
    # Replaces the built-in instruction. The hook is the dotted path of a function that may change the instruction.
    prompt: str = ""
    prompt_hook: str = ""
    # Whether a short form is asked for if a summary was rejected.
    level2: bool = True
    # Whether summaries are merged, and in how many rounds at most.
    condensation: bool = True
    max_rounds: int = 10
    # How long a request above the high mark waits for a summary that is being made.
    hard_wait_seconds: float = 2.0
    # The user's newest turns that are never part of a summary.
    protect_turns: int = 2
    # The largest share of a model's window that a request for a summary may take.
    input_fraction: float = 0.75
    # Spending is bounded by a share of the cost of a session's own calls, and by an amount of money for all sessions
    # per UTC day (0: no cap).
    spend_fraction: float = 0.05
    spend_per_day: float = 0.0
    # The share of all sessions that is not managed at all, for comparison.
    holdout_fraction: float = 0.0
    # Whether credentials of people's subscriptions may be used.
    subscription_calls: bool = False
    # The time limit of a call for a summary.
    time_limit_seconds: float = 60.0
    # Tokens that a model may use for reasoning, besides the summary itself.
    reasoning_tokens: int = 8192
