"""What a person may decide of summaries. Rule: values only, settings of the same names; who fills them in is above."""

from collections.abc import Callable
from dataclasses import dataclass

PromptHook = Callable[[str, int], str]
"""Given the instruction for a report and its level (1 or 2), the instruction to use."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Who makes summaries, of what, and at what cost.

    Where `auto`, they are made in the background. `model` is who is asked, the conversation's own where it is empty,
    and `fallback_models` in their order where that fails; they are asked at the conversation's upstream, or at one of
    those named by `may_receive`. `prompt` stands in place of the instruction that comes with the program, `prompt_hook`
    is the dotted path of a function that may change it. `level2`: whether a short form is asked for where a report was
    no good; `condensation`: whether summaries are merged, in `max_rounds` at most.

    A request above the high mark waits `hard_wait_seconds` for a summary that is being made. The user's `protect_turns`
    newest turns are never part of one; what is asked takes `input_fraction` of the model's window at most. Spending is
    bounded by `spend_fraction` of what a session's own calls cost, and by `spend_per_day` in money for all of them (a
    day is UTC's; 0: no cap). So large a share as `holdout_fraction` of all sessions is not managed at all, to compare.
    `subscription_calls`: whether people's plans may be used. A call ends after `time_limit_seconds`; a model may think
    for `reasoning_tokens` besides what it writes.
    """

    auto: bool = True
    model: str = ""
    fallback_models: tuple[str, ...] = ()
    prompt: str = ""
    prompt_hook: str = ""
    level2: bool = True
    max_rounds: int = 10
    condensation: bool = True
    hard_wait_seconds: float = 2.0
    protect_turns: int = 2
    input_fraction: float = 0.75
    spend_fraction: float = 0.05
    spend_per_day: float = 0.0
    holdout_fraction: float = 0.0
    subscription_calls: bool = False
    may_receive: tuple[str, ...] = ()
    time_limit_seconds: float = 60.0
    reasoning_tokens: int = 8192
