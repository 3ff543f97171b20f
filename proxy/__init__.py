"""palimpsest: a transparent reverse proxy for LLM APIs that records and manages an LLM agent's context.

Each layer imports only from the layers below it (ARCHITECTURE.md). The import contracts in pyproject.toml enforce this.
Importing this package loads nothing; the names of the SDK are loaded when they are used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.config import Settings
    from proxy.engine.turns.tools import make_tool
    from proxy.model.parts import FileRefPart, MessagePart, PatchPart, ReasoningPart, TextPart, ToolPart, ToolStatus
    from proxy.model.results import AgentMapResult, CompactionResult, MapResult, TokenUsage, TurnResult
    from proxy.sdk.engines import close_all
    from proxy.sdk.events import EventBus
    from proxy.sdk.operators import AgenticMap, LLMMap
    from proxy.sdk.session import Session

__version__ = "0.1.0"
__all__ = [
    "AgentMapResult",
    "AgenticMap",
    "CompactionResult",
    "EventBus",
    "FileRefPart",
    "LLMMap",
    "MapResult",
    "MessagePart",
    "PatchPart",
    "ReasoningPart",
    "Session",
    "Settings",
    "TextPart",
    "TokenUsage",
    "ToolPart",
    "ToolStatus",
    "TurnResult",
    "close_all",
    "make_tool",
]

_MODULES = {
    "Session": "proxy.sdk.session",
    "close_all": "proxy.sdk.engines",
    "EventBus": "proxy.sdk.events",
    **dict.fromkeys(("AgenticMap", "LLMMap"), "proxy.sdk.operators"),
    "make_tool": "proxy.engine.turns.tools",
    "Settings": "proxy.config",
    **dict.fromkeys(
        ("AgentMapResult", "CompactionResult", "MapResult", "TokenUsage", "TurnResult"), "proxy.model.results"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "proxy.model.parts")), name)
