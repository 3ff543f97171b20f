"""What a person may decide of how contexts are built. Rule: settings of the same names; the rest is the builder's."""

from dataclasses import dataclass

# So many of the newest groups of calls and results stay real where they fit (BEHAVIOUR B14).
REAL_GROUPS = 3


@dataclass(frozen=True, slots=True)
class BuilderPolicy:
    """Which messages stay, and which are shown by an outline.

    `protect_turns`: so many of the user's newest turns stay word for word. Where `is_pruning`, outputs that
    would stay but were asked for again, repeated, or errors that were mended, are replaced by a marker, unless they are
    among the newest `protect_tokens` of outputs or of one of the `protected_tools`, and if at least `minimum_tokens`
    go; both scale down with a small budget. Outputs above
    `inline_tokens` are shown whole once, then as a block, with their structure where `has_outlines`.
    """

    protect_turns: int = 2
    is_pruning: bool = True
    protect_tokens: int = 40_000
    minimum_tokens: int = 20_000
    protected_tools: tuple[str, ...] = ("skill",)
    inline_tokens: int = 10_000
    has_outlines: bool = True
