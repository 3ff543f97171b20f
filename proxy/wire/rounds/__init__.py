"""Calls of a tool of ours inside responses: several rounds of a model, which the client gets as one response."""

from proxy.wire.rounds.requests import (
    add_tool,
    append_tool,
    continue_request,
    find_obstacle,
    make_stitcher,
    name_calls,
    read_round,
    restore_answer,
    spell_tool,
)
from proxy.wire.rounds.stitching import OwnCall, OwnResult, PlayedRound, RoundEnd, RoundStitcher
from proxy.wire.rounds.tool import OwnTool

__all__ = [
    "OwnCall",
    "OwnResult",
    "OwnTool",
    "PlayedRound",
    "RoundEnd",
    "RoundStitcher",
    "add_tool",
    "append_tool",
    "continue_request",
    "find_obstacle",
    "make_stitcher",
    "name_calls",
    "read_round",
    "restore_answer",
    "spell_tool",
]
