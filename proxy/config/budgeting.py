"""Settings of what is sent: how much of it, what may be taken out, what it costs.

Rule: as in `config/settings`, which composes them.
"""

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from proxy.config.kinds import AutoFraction, AutoTokens, Price, Seconds, Section, Tokens
from proxy.context.budget import AUTO_CEILING, BudgetPolicy
from proxy.context.conversation import BuilderPolicy
from proxy.engine.policy import EnginePolicy
from proxy.model.card import Offer, Prices, Rates

_BUDGET = BudgetPolicy()
_BUILDER = BuilderPolicy()
_ENGINE = EnginePolicy()
_MILLION = 1_000_000


class BudgetSettings(Section):
    """How many tokens a call may send upstream."""

    ceiling_tokens: AutoTokens = Field(
        _BUDGET.ceiling_tokens,
        description=f"Most tokens of a request, tools included. auto: {AUTO_CEILING:,}, below any long-context price.",
    )
    soft_fraction: AutoFraction = Field(
        _BUDGET.soft_fraction,
        description="Share of the budget from which a context is shortened if that pays. auto: 0.6, of large ones 0.4.",
    )
    low_fraction: AutoFraction = Field(
        _BUDGET.low_fraction,
        description="Share of the budget down to which a context is shortened. auto: 0.3, of large ones 0.2.",
    )
    output_reserve: Tokens = Field(
        _BUDGET.output_reserve,
        description="Tokens kept free for an answer whose request names no limit, where the model allows as many.",
    )
    compaction_reserve: Tokens = Field(
        _BUDGET.compaction_reserve,
        description="Tokens of the window kept free besides, at most an eighth of it.",
    )

    @model_validator(mode="after")
    def _check_marks(self) -> Self:
        if self.soft_fraction is not None and self.low_fraction is not None and self.low_fraction >= self.soft_fraction:
            raise PydanticCustomError("marks", "low_fraction must be below soft_fraction, or nothing is gained")
        return self


class PruningSettings(Section):
    """Taking old outputs of tools out of what is sent; the log keeps them."""

    enabled: bool = Field(_BUILDER.is_pruning, description="Whether outputs that stay in view may be taken out at all.")
    protect_tokens: Tokens = Field(
        _BUILDER.protect_tokens, description="The newest outputs of tools, so many tokens together, stay."
    )
    minimum_tokens: Tokens = Field(
        _BUILDER.minimum_tokens, description="Nothing is taken out unless it is so many tokens together."
    )
    protected_tools: tuple[str, ...] = Field(
        _BUILDER.protected_tools, description="Names of tools whose outputs always stay."
    )


class FilesSettings(Section):
    """Contents of files that are too long to be sent whole again and again."""

    inline_tokens: Tokens = Field(
        _BUILDER.inline_tokens, description="Contents of up to so many tokens stay as they are; longer ones may not."
    )
    outline: bool = Field(
        _BUILDER.has_outlines,
        description="Whether a content's structure stands in its place; source code other than Python needs the "
        "extra outlines. Off: its first lines.",
    )


class PriceSettings(Section):
    """What the tokens of a model cost; money per million of them."""

    input: Price = Field(description="Input that no cache holds.")
    output: Price | None = Field(None, description="Output. Without: five times the input.")
    cached: Price | None = Field(None, description="Input read from the cache. Without: a tenth of the input.")
    written: Price | None = Field(None, description="Input written to the cache. Without: as the input.")
    retention_seconds: Seconds | None = Field(
        None, description="How long the cache keeps what it has after its last use; seconds. Without: unknown."
    )

    def offer(self) -> Offer:
        """The same per token."""
        rates = Rates(
            input=self.input / _MILLION,
            output=(5 * self.input if self.output is None else self.output) / _MILLION,
            cached=(0.1 * self.input if self.cached is None else self.cached) / _MILLION,
            written=(self.input if self.written is None else self.written) / _MILLION,
        )
        return Offer(prices=Prices(rates), retention=self.retention_seconds)
