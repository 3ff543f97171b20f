"""The sections of the settings on managed context: budgets, what is replaced, recall, prices, and summaries."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from proxy.config.value_types import (
    AutoFraction,
    AutoMargin,
    AutoTokens,
    DottedPath,
    Fraction,
    OptionalDirectory,
    PositiveFraction,
    Price,
    Seconds,
    Section,
    Tokens,
)
from proxy.context.budget import AUTO_CEILING, BudgetPolicy, MemoryMark
from proxy.context.conversation import BuilderPolicy
from proxy.context.loops.detection import MOST_COUNTED
from proxy.engine.compaction.policy import CompactionPolicy
from proxy.engine.history.policy import NudgePolicy
from proxy.engine.policy import EnginePolicy, LoopAction, OperatorPolicy, SnapshotPolicy
from proxy.engine.recall.policy import RecallPolicy, RecallScope
from proxy.model.card import Offer, Prices, Rates
from proxy.model.epoch import Strategy

_BUDGET = BudgetPolicy()
_BUILDER = BuilderPolicy()
_SNAPSHOT = SnapshotPolicy()
_MARK = MemoryMark()
_POLICY = CompactionPolicy()
_RECALL = RecallPolicy()
_NUDGES = NudgePolicy()
_OPERATORS = OperatorPolicy()
_MILLION = 1_000_000


class BudgetSettings(Section):
    """How many tokens a request may send upstream."""

    ceiling_tokens: AutoTokens = Field(
        _BUDGET.ceiling_tokens,
        description=(
            f"Most tokens of a request, tools included. auto: {AUTO_CEILING:,}, or fewer where the model's "
            "long-context prices begin earlier (docs/ceiling.md). Where system prompt and tools alone take "
            "more than 0.8 of it, messages keep 0.2 to 0.3 of it beside them."
        ),
    )
    soft_fraction: AutoFraction = Field(
        _BUDGET.soft_fraction,
        description="Fraction of the budget above which a context is shortened if it pays. auto: 0.6; large ones 0.4.",
    )
    low_fraction: AutoFraction = Field(
        _BUDGET.low_fraction,
        description="Fraction of the budget to which a context is shortened. auto: 0.3; large ones 0.2.",
    )
    output_reserve: Tokens = Field(
        _BUDGET.output_reserve,
        description="Tokens reserved for the response where the request sets no limit, if the model allows as many.",
    )
    compaction_reserve: Tokens = Field(
        _BUDGET.compaction_reserve, description="Further tokens of the window kept free, at most an eighth of it."
    )
    estimator: DottedPath = Field(
        "",
        description=(
            "Dotted path of a function estimate(text, model=None) that returns the tokens of a text as an int. It is "
            "used wherever text is counted, in the worker process, too; model is None for what no model reads yet. "
            "Empty: OpenAI's encodings."
        ),
    )

    @model_validator(mode="after")
    def _check_marks(self) -> Self:
        if self.soft_fraction is not None and self.low_fraction is not None and self.low_fraction >= self.soft_fraction:
            raise PydanticCustomError("marks", "low_fraction must be below soft_fraction, or nothing is gained")
        return self


class PruningSettings(Section):
    """Replacing old tool outputs by references in what is sent; the log keeps them."""

    enabled: bool = Field(
        _BUILDER.is_pruning, description="Whether outputs among the messages that are sent may be replaced."
    )
    protect_tokens: Tokens = Field(
        _BUILDER.protect_tokens, description="The most recent tool outputs up to this many tokens are never replaced."
    )
    minimum_tokens: Tokens = Field(
        _BUILDER.minimum_tokens, description="Nothing is replaced unless that saves at least this many tokens."
    )
    protected_tools: tuple[str, ...] = Field(
        _BUILDER.protected_tools, description="Names of tools whose outputs are never replaced."
    )


class FilesSettings(Section):
    """Contents of files that are too long to be sent in full again and again."""

    inline_tokens: Tokens = Field(
        _BUILDER.inline_tokens, description="Contents of up to this many tokens are never shortened."
    )
    outline: bool = Field(
        _BUILDER.has_outlines,
        description="Replace long contents by their structure; source code other than Python needs the extra "
        "outlines. Off: by their first lines.",
    )
    summary_model: str = Field(
        "",
        description=(
            "Model that adds a sentence to the outlines of long contents: of files that programs show (docs/sdk.md), "
            "of outputs in epochs. It is asked within the limits for summaries (compaction). Empty: none."
        ),
    )


class RecallSettings(Section):
    """Reading again what was removed from a context, by a tool that the proxy adds and executes."""

    inject: bool = Field(
        _RECALL.inject,
        description="Whether requests get the tool context_recall once something was removed from their context.",
    )
    max_hops: int = Field(
        _RECALL.max_hops, ge=1, le=64, description="Most times in a row that a model may use it within one response."
    )
    page_characters: int = Field(
        _RECALL.page_characters, ge=1000, le=200_000, description="Characters of a page of what it returns."
    )
    scope: RecallScope = Field(
        _RECALL.scope,
        description=(
            "What a request may recall. branch: its own history and that of the agent that delegated it; session: also "
            "other branches of its session; tenant: also other sessions of the same tenant."
        ),
    )
    embedding_model: str = Field(
        _RECALL.embedding_model,
        description=(
            "Model whose embeddings let search also find what says the same in other words. Messages are sent to it in "
            "the background, at the upstream's /v1/embeddings, within the limits and permissions under compaction. "
            "Empty: none."
        ),
    )


class TurnsSettings(Section):
    """The strategy turns: each prompt begins a new context."""

    user_turns: int = Field(
        _BUILDER.user_turns, ge=1, le=100, description="Turns whose words of the user are sent, the newest included."
    )
    scan_messages: int = Field(
        _BUILDER.scan_messages, ge=1, le=10_000, description="Newest messages in which prompt and tool loop are sought."
    )


class SnapshotSettings(Section):
    """The strategy snapshot: memory stands for older turns."""

    raw_tail_turns: int = Field(
        _BUILDER.raw_tail_turns, ge=0, le=100, description="Newest turns before the current one that stay, if they fit."
    )
    max_episodic_items: int = Field(
        _SNAPSHOT.max_episodic_items, ge=0, le=100, description="Reports on turns that are shown, the newest."
    )
    max_semantic_items: int = Field(
        _SNAPSHOT.max_semantic_items, ge=0, le=1000, description="Facts that are shown, by importance, then the newest."
    )
    tail: Literal["messages", "text"] = Field(
        "messages", description="Whether these turns are sent as messages, or as text in the message of memory."
    )


class ModelSettings(Section):
    """What differs by model."""

    strategy: Strategy | None = Field(None, description="Strategy of its requests. Without: as for all models.")
    window: AutoTokens = Field(None, description="Its context window; tokens. auto: as known of the model.")
    max_output: AutoTokens = Field(None, description="Most tokens of a response. auto: as known of the model.")
    compaction_ratio: PositiveFraction = Field(
        _MARK.ratio, description="Strategy snapshot: share of the tokens for input above which memory is made."
    )
    safety_margin_tokens: AutoMargin = Field(
        _MARK.margin_tokens, description="Strategy snapshot: tokens left of these for errors of counting. auto: 3 %."
    )


class DoomLoopSettings(Section):
    """Agents that go round in circles."""

    threshold: int = Field(
        EnginePolicy().loop_threshold,
        ge=0,
        le=MOST_COUNTED,
        description=(
            "How often in a row the same call of a tool, with the same arguments, is told as a loop: in the log, the "
            "events and the response header x-palimpsest-doom-loop; the calls go on. 0: no loop is looked for."
        ),
    )
    action: LoopAction = Field(
        EnginePolicy().loop_action,
        description=(
            "notify: as said above. annotate: where the outputs are the same, too, the model is told by a line behind "
            "the newest one, which stays until the next epoch; the client does not see it (docs/troubleshooting.md)."
        ),
    )


class OperatorSettings(Section):
    """LLMMap and AgenticMap: a model call, or an agent, for each item of a list (docs/operators.md)."""

    llm_map_concurrency: int = Field(
        _OPERATORS.llm_map_concurrency, ge=1, le=1000, description="Number of calls that LLMMap makes at once."
    )
    agentic_map_concurrency: int = Field(
        _OPERATORS.agentic_map_concurrency, ge=1, le=1000, description="Number of agents that AgenticMap runs at once."
    )
    max_retries: int = Field(
        _OPERATORS.max_retries,
        ge=0,
        le=100,
        description="How often LLMMap asks again for an item whose answer does not fit, or whose call failed.",
    )

    def policy(self) -> OperatorPolicy:
        """Return the defaults of operators."""
        return OperatorPolicy(**self.model_dump())


class NudgeSettings(Section):
    """Messages to an agent that nobody prompts: for clients that tick, on histories that are held here."""

    enabled: bool = Field(
        _NUDGES.enabled, description="Whether a call without messages may be nudged (docs/server-history.md)."
    )
    texts: tuple[str, ...] = Field(
        _NUDGES.texts,
        min_length=1,
        description="What nudges say, one after another. After the last one without an answer the session goes idle.",
    )
    idle_seconds: float = Field(
        _NUDGES.idle_seconds, ge=0, allow_inf_nan=False, description="Time after a call without a nudge; seconds."
    )
    wait_seconds: float = Field(
        _NUDGES.wait_seconds,
        ge=0,
        allow_inf_nan=False,
        description="The same for a client that waits for something (x-palimpsest-source: tick:wait); seconds.",
    )


class MemorySettings(Section):
    """What is remembered of sessions: traces, reports on turns, and facts."""

    mirror: OptionalDirectory = Field(
        "",
        description="Directory in which the memory of each session is kept current as JSONL files. Empty: none.",
    )


class PriceSettings(Section):
    """What the tokens of a model cost; currency units per million."""

    input: Price = Field(description="Input that is not read from the cache.")
    output: Price | None = Field(None, description="Output. Without: five times the input.")
    cached: Price | None = Field(None, description="Input read from the cache. Without: a tenth of the input.")
    written: Price | None = Field(None, description="Input written to the cache. Without: the price of input.")
    retention_seconds: Seconds | None = Field(
        None, description="How long the cache keeps an entry after its last use; seconds. Without: unknown."
    )

    def offer(self) -> Offer:
        """Return the prices per token."""
        rates = Rates(
            input=self.input / _MILLION,
            output=(5 * self.input if self.output is None else self.output) / _MILLION,
            cached=(0.1 * self.input if self.cached is None else self.cached) / _MILLION,
            written=(self.input if self.written is None else self.written) / _MILLION,
        )
        return Offer(prices=Prices(rates), retention=self.retention_seconds)


class CompactionSettings(Section):
    """Summaries of older messages, made by a model in the background."""

    auto: bool = Field(_POLICY.auto, description="Whether summaries are made in the background.")
    model: str = Field(_POLICY.model, description="Model that makes them. Empty: that of the conversation.")
    fallback_models: tuple[str, ...] = Field(
        _POLICY.fallback_models, description="Models to use when that one fails, in this order."
    )
    prompt: str = Field(_POLICY.prompt, description="Instruction to the model, instead of the built-in one.")
    prompt_hook: DottedPath = Field(
        _POLICY.prompt_hook,
        description=(
            "Dotted path of a function that takes the instruction and its level (1 or 2) and returns the one to use; "
            "by name also messages (those that are summarised) and config (these settings)."
        ),
    )
    level2: bool = Field(
        _POLICY.level2, description="Whether a shorter form is requested where a summary was rejected."
    )
    max_rounds: int = Field(
        _POLICY.max_rounds, ge=0, le=100, description="Most rounds of merging summaries in one run."
    )
    condensation: bool = Field(
        _POLICY.condensation, description="Whether summaries are merged when there are many of them."
    )
    hard_wait_seconds: float = Field(
        _POLICY.hard_wait_seconds,
        ge=0,
        allow_inf_nan=False,
        description=(
            "Longest time that a request above its budget waits for its plan and a pending summary, and again for the "
            "log to keep that plan; seconds."
        ),
    )
    protect_turns: int = Field(
        _POLICY.protect_turns, ge=2, description="Number of the user's most recent turns that are never summarised."
    )
    input_fraction: float = Field(
        _POLICY.input_fraction,
        gt=0,
        le=1,
        description="Largest fraction of the model's window that is filled with messages to summarise.",
    )
    spend_fraction: Fraction = Field(
        _POLICY.spend_fraction,
        description="Most to spend on a session's summaries, as a fraction of the cost of its requests.",
    )
    spend_per_day: Price = Field(
        _POLICY.spend_per_day,
        description=(
            "Most to spend on all summaries of a day (UTC); currency units, as in pricing. Models of unknown price are "
            "not used then. 0: no limit."
        ),
    )
    holdout_fraction: Fraction = Field(
        _POLICY.holdout_fraction,
        description="Fraction of the sessions that are only observed, so that savings can be measured.",
    )
    subscription_calls: bool = Field(
        _POLICY.subscription_calls,
        description="Whether personal subscriptions (OAuth tokens) may be used for summaries.",
    )
    may_receive: tuple[str, ...] = Field(
        _POLICY.may_receive,
        description="Names of upstreams to which conversations with other upstreams may be sent for a summary.",
    )
    time_limit_seconds: Seconds = Field(
        _POLICY.time_limit_seconds, description="Longest time for making one summary; seconds."
    )
    reasoning_tokens: Tokens = Field(
        _POLICY.reasoning_tokens, description="Tokens that a model may use for reasoning, in addition to the summary's."
    )
