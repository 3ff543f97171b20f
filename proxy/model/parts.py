"""The parts of a message, as programs see them: one union, tagged by `type`.

A part is made of raw messages (`engine/memory/messages`), or what a program sends with `Session.send`. Times are in
milliseconds since 1970. An unknown value is null.
"""

from typing import Any, Literal

import msgspec

from proxy.model.epoch import SummaryLevel

ToolState = Literal["pending", "running", "completed", "error"]
"""`pending`: the model has asked for the call. `running`: a program executes it, which only that program knows.
`completed` and `error`: its output is in the conversation."""


class TypedPart(msgspec.Struct, frozen=True, tag_field="type"):
    """What all parts have: their `type`."""


class TextPart(TypedPart, frozen=True, tag="text"):
    """What was said."""

    text: str


class ReasoningPart(TypedPart, frozen=True, tag="reasoning"):
    """What was thought, as far as it can be read."""

    text: str


class ToolStatus(msgspec.Struct, frozen=True):
    """How a call stands. Times are of the calls of the client that first had each part.

    `compacted_at`: since when models are sent something shorter in place of the output; null while they have it whole.
    """

    state: ToolState = "pending"
    started_at: int | None = None
    completed_at: int | None = None
    compacted_at: int | None = None
    error_message: str | None = None


class ToolPart(TypedPart, frozen=True, tag="tool"):
    """A call of a tool, with its output once there is one.

    `input` has the arguments as JSON values, or the text that the model wrote where that is no JSON; null where the
    call is not known. A program sends a result as one with the id of the call and its output.
    """

    tool_name: str
    tool_call_id: str
    input: Any = None
    output: str | None = None
    status: ToolStatus = ToolStatus()

    @property
    def error_message(self) -> str | None:
        """Why the call has failed, if it has."""
        return self.status.error_message

    @property
    def compacted_at(self) -> int | None:
        """Since when models are sent something shorter in place of the output; None while they have it whole."""
        return self.status.compacted_at


class CompactionPart(TypedPart, frozen=True, tag="compaction"):
    """A summary that was made of the messages up to this one; `summary_node_id` is its id."""

    summary_node_id: str
    level: SummaryLevel
    compacted_message_count: int


class StepStartPart(TypedPart, frozen=True, tag="step_start"):
    """A response of the model begins; steps are counted from 1 along the conversation."""

    step_index: int


class StepFinishPart(TypedPart, frozen=True, tag="step_finish"):
    """It ends; `tokens_used` are those of its prompt and of the response, null where the provider did not say."""

    step_index: int
    tokens_used: int | None = None


class PatchPart(TypedPart, frozen=True, tag="patch"):
    """A patch: what a call applies, or what a message shows."""

    unified_diff: str
    files_changed: list[str]


class FileRefPart(TypedPart, frozen=True, tag="file_ref"):
    """A large content in whose place models are sent an outline; `content_id` is the reference to all of it."""

    content_id: str
    path: str
    file_type: str
    token_count: int
    exploration_summary: str


MessagePart = (
    TextPart | ReasoningPart | ToolPart | CompactionPart | StepStartPart | StepFinishPart | PatchPart | FileRefPart
)
