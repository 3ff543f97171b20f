"""The settings of summaries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from proxy.model.settings import DottedPath, Fraction, Pause, PositiveFraction, Price, Rule, Seconds, Small, Tokens

PromptHook = Callable[[str, int, Sequence[bytes]], str]
"""Takes the instruction for a summary, its level (1 or 2), and the raw messages that are summarised.

Returns the instruction to use.
"""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Summaries of older messages, made by a model in the background."""

    auto: bool = True
    """Whether summaries are made in the background."""
    model: str = ""
    """Model that makes them. Empty: that of the conversation."""
    fallback_models: tuple[str, ...] = ()
    """Models to use when that one fails, in this order."""
    prompt: str = ""
    """Instruction to the model, instead of the built-in one."""
    prompt_hook: DottedPath = ""
    """Dotted path of a function that takes the instruction and its level (1 or 2) and returns the one to use; by name
    also messages (those that are summarised) and config (these settings)."""
    level2: bool = True
    """Whether a shorter form is requested where a summary was rejected."""
    max_rounds: Small = 10
    """Most rounds of merging summaries in one run."""
    condensation: bool = True
    """Whether summaries are merged when there are many of them."""
    hard_wait_seconds: Pause = 2.0
    """Longest time that a request above its budget waits for its plan and a pending summary, and again for the log to
    keep that plan; seconds."""
    protect_turns: Annotated[int, Rule(ge=2)] = 2
    """Number of the user's most recent turns that are never summarised."""
    input_fraction: PositiveFraction = 0.75
    """Largest fraction of the model's window that is filled with messages to summarise."""
    spend_fraction: Fraction = 0.05
    """Most to spend on a session's summaries, as a fraction of the cost of its requests."""
    spend_per_day: Price = 0.0
    """Most to spend on all summaries of a day (UTC); currency units, as in pricing. Models of unknown price are not
    used then. 0: no limit."""
    holdout_fraction: Fraction = 0.0
    """Fraction of the sessions that are only observed, so that savings can be measured."""
    subscription_calls: bool = False
    """Whether personal subscriptions (OAuth tokens) may be used for summaries."""
    may_receive: tuple[str, ...] = ()
    """Names of upstreams to which conversations with other upstreams may be sent for a summary."""
    time_limit_seconds: Seconds = 60.0
    """Longest time for making one summary; seconds."""
    reasoning_tokens: Tokens = 8192
    """Tokens that a model may use for reasoning, in addition to the summary's."""
