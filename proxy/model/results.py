"""What programs get back: the tokens of a call, and the results of turns, compactions, files and operators."""

from typing import Any, Literal

import msgspec

from proxy.model.epoch import SummaryLevel
from proxy.model.exchange import Usage
from proxy.model.parts import FileRefPart

FinishReason = Literal["stop", "max_tokens", "tool_use", "error"]
"""Why an answer ended: by itself, at its limit of tokens, to have tools called, or by a fault of the provider."""


class ProgramResult(msgspec.Struct, frozen=True):
    """What all results have in common."""

    def model_dump(self) -> dict[str, Any]:
        """Return the result as mappings, lists and plain values, as JSON has them."""
        dumped: dict[str, Any] = msgspec.to_builtins(self)
        return dumped


class TokenUsage(ProgramResult, frozen=True, gc=False):
    """The tokens of one call, or of several.

    The four counts have no token in common: `input` are those of prompts that no cache had, `cache_read` and
    `cache_write` those read from and written to the provider's cache, `output` those of answers. `total` is what the
    provider reported as the whole, 0 where it did not.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total: int = 0

    def effective_total(self) -> int:
        """Return `total` where it is known, else the sum of the other four: the tokens that were in the context."""
        return self.total or self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """Return the sum. Its effective total is the sum of both; it has a `total` as soon as one of them has one."""
        has_total = self.total or other.total
        return TokenUsage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.effective_total() + other.effective_total() if has_total else 0,
        )


def count_usage(usage: Usage | None) -> TokenUsage:
    """Return what a provider counted, whose input includes what its cache was read and written for."""
    if usage is None:
        return TokenUsage()
    read, written = usage.cached or 0, usage.written or 0
    whole, output = usage.input or 0, usage.output or 0
    return TokenUsage(max(0, whole - read - written), output, read, written, whole + output)


class CompactionResult(ProgramResult, frozen=True, kw_only=True):
    """The result of a compaction that has shortened what is sent.

    `summary_message_id` is the id of the newest summary that was made, null if there is only a ledger. `level_used` is
    1 for a report of a model, 2 for a short one, 3 for what was made without a model, such as a ledger.
    `compacted_message_count` are the messages that are covered; of an epoch those that are not sent whole.
    `tokens_before` and `tokens_after` are those of what is sent; of a summary those of what it covers, and its own.
    """

    session_id: str
    summary_message_id: str | None
    level_used: SummaryLevel
    compacted_message_count: int
    summary_token_count: int
    tokens_before: int
    tokens_after: int
    elapsed_ms: int


class TurnResult(ProgramResult, frozen=True, kw_only=True):
    """The result of `Session.send`: the answer's text, and the id of its message.

    `cost` is in the currency of the prices, null where no price is known. `compaction_triggered`: a summary began to be
    made behind the call, or the call opened an epoch. `compaction_result` is the newest summary that was made since the
    result before, else the epoch, whose `elapsed_ms` are 0 for they are part of the call; null if there is neither.
    """

    message_id: str
    text: str
    finish_reason: FinishReason
    tokens: TokenUsage = TokenUsage()
    cost: float | None = None
    compaction_triggered: bool = False
    compaction_result: CompactionResult | None = None
    doom_loop_detected: bool = False


class TurnFigures(ProgramResult, frozen=True, kw_only=True):
    """What one answered call of a session has taken. `n` is its number in the session, `exchange` its id in the log.

    `cost` is in the currency of the prices, null where no price is known; `seconds` are those until its last byte.
    """

    n: int
    exchange: str
    at_ms: int
    model: str
    tokens: TokenUsage
    cost: float | None
    seconds: float


class RecordResult(ProgramResult, frozen=True, kw_only=True):
    """The result of recording a turn that was made elsewhere: the ids of its two messages, and its tokens."""

    user_message_id: str
    assistant_message_id: str
    tokens: TokenUsage = TokenUsage()
    compaction_triggered: bool = False


class BuiltContext(ProgramResult, frozen=True, kw_only=True):
    """What is to be sent in a call that is made elsewhere: the messages of a wire format, and their tokens.

    `system` is the system prompt where the format has it beside the messages; else it is the first of these.
    """

    messages: list[dict[str, Any]]
    token_estimate: int
    system: str = ""


class FileHandleResult(ProgramResult, frozen=True, kw_only=True):
    """How a file is to be sent: `inline_content` is its text, or else `file_ref` a reference in its place."""

    path: str
    inline_content: str | None = None
    file_ref: FileRefPart | None = None

    @property
    def is_inline(self) -> bool:
        """Whether the file is to be sent as it is."""
        return self.file_ref is None


class MapResult(ProgramResult, frozen=True, kw_only=True):
    """The result for one input of an LLMMap: what a model answered, valid by the schema, or the error."""

    input: Any
    output: Any = None
    success: bool = False
    error: str | None = None
    attempts: int = 0


class AgentMapResult(ProgramResult, frozen=True, kw_only=True):
    """The result for one input of an AgenticMap: the last text of its agent, and the session that it has worked in."""

    input: Any
    session_id: str
    output_text: str = ""
    success: bool = False
    error: str | None = None
    token_usage: TokenUsage = TokenUsage()
