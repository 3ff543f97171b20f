"""What may be taken out of a context. Rule: values only; who fills them in is above this room."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuilderPolicy:
    """How a context is shortened.

    `is_pruning`: whether outputs that stay in view may be taken out; then the newest `protect_tokens` of them stay,
    nothing is taken out unless it is `minimum_tokens` together, and never what one of `protected_tools` put out. Files'
    contents of up to `inline_tokens` stay as they are; with `is_outlining` the structure of a longer one stands in its
    place. The newest `protect_turns` turns of the user always stay.
    """

    is_pruning: bool = True
    protect_tokens: int = 40_000
    minimum_tokens: int = 20_000
    protected_tools: tuple[str, ...] = ("skill",)
    inline_tokens: int = 10_000
    is_outlining: bool = True
    protect_turns: int = 2
