"""Settings of summaries: who makes them, of what, and at what cost.

Rule: as in `config/settings`, which composes them.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from proxy.config.kinds import Price, Seconds, Section, Tokens
from proxy.engine.compaction.policy import CompactionPolicy

_POLICY = CompactionPolicy()
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def _check_dotted(value: str) -> str:
    if value and not _DOTTED.fullmatch(value):
        raise PydanticCustomError("dotted", "must be the dotted path of a function, such as my_package.prompts.adapt")
    return value


Fraction = Annotated[float, Field(ge=0, le=1)]
DottedPath = Annotated[str, AfterValidator(_check_dotted)]


class CompactionSettings(Section):
    """Summaries of what a conversation said long ago, made by a model beside the calls."""

    auto: bool = Field(_POLICY.auto, description="Whether summaries are made in the background.")
    model: str = Field(_POLICY.model, description="Model that is asked for them. Empty: the conversation's own.")
    fallback_models: tuple[str, ...] = Field(
        _POLICY.fallback_models, description="Models that are asked where that one fails, in this order."
    )
    prompt: str = Field(
        _POLICY.prompt, description="Instruction to the model, in place of the one that comes with the program."
    )
    prompt_hook: DottedPath = Field(
        _POLICY.prompt_hook,
        description=(
            "Dotted path of a function that is given the instruction and its level (1 or 2) and returns the one to use."
        ),
    )
    level2: bool = Field(
        _POLICY.level2, description="Whether a shorter form is asked for where a summary was no good. Off: none is."
    )
    max_rounds: int = Field(
        _POLICY.max_rounds, ge=0, le=100, description="Most rounds in which summaries are merged at a time."
    )
    condensation: bool = Field(
        _POLICY.condensation, description="Whether summaries are merged when there are too many of them."
    )
    hard_wait_seconds: float = Field(
        _POLICY.hard_wait_seconds,
        ge=0,
        allow_inf_nan=False,
        description="How long a call above its budget waits for its plan and a summary that is being made; seconds.",
    )
    protect_turns: int = Field(
        _POLICY.protect_turns, ge=2, description="So many of the user's newest turns are never part of a summary."
    )
    input_fraction: float = Field(
        _POLICY.input_fraction, gt=0, le=1, description="Most of the model's window that is filled with what to report."
    )
    spend_fraction: Fraction = Field(
        _POLICY.spend_fraction,
        description="Most to spend for a session's summaries, as a share of what its calls cost.",
    )
    spend_per_day: Price = Field(
        _POLICY.spend_per_day,
        description=(
            "Most to spend for all summaries of a day (UTC); money, as in pricing. Models whose prices nobody knows "
            "are not asked then. 0: no cap."
        ),
    )
    holdout_fraction: Fraction = Field(
        _POLICY.holdout_fraction,
        description="Share of the sessions that are only observed, so that what managing saves can be told.",
    )
    subscription_calls: bool = Field(
        _POLICY.subscription_calls, description="Whether people's plans (OAuth tokens) may be used for summaries."
    )
    may_receive: tuple[str, ...] = Field(
        _POLICY.may_receive,
        description="Names of upstreams that may be sent conversations of others, where their models are asked.",
    )
    time_limit_seconds: Seconds = Field(
        _POLICY.time_limit_seconds, description="How long a model may take for a summary; seconds."
    )
    reasoning_tokens: Tokens = Field(
        _POLICY.reasoning_tokens, description="Tokens that a model may think for besides those of the summary."
    )
