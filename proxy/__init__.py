"""palimpsest: a transparent reverse proxy for LLM APIs that records and manages an LLM agent's context.

Each layer imports only from the layers below it (ARCHITECTURE.md). The import contracts in pyproject.toml enforce this.
Importing this package loads nothing; the names of the SDK are loaded when they are used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxy.config import ConfigError, Settings
    from proxy.engine.turns.tools import make_tool
    from proxy.model.errors import BadRequest, Conflict, ProxyError, TooLarge, UpstreamRefused, UpstreamUnreachable
    from proxy.model.parts import (
        CompactionPart,
        FileRefPart,
        MessagePart,
        PatchPart,
        ReasoningPart,
        StepFinishPart,
        StepStartPart,
        TextPart,
        ToolPart,
        ToolStatus,
    )
    from proxy.model.results import (
        AgentMapResult,
        BuiltContext,
        CompactionResult,
        FileHandleResult,
        MapResult,
        RecordResult,
        TokenUsage,
        TurnFigures,
        TurnResult,
    )
    from proxy.sdk.engines import close_all
    from proxy.sdk.errors import (
        DuplicateIDError,
        ImmutableFieldError,
        LogHeldError,
        MessageNotFoundError,
        PartNotFoundError,
        SessionClosedError,
        SessionNotFoundError,
        StoreError,
    )
    from proxy.sdk.events import Event, EventBus
    from proxy.sdk.files import LargeFileHandler
    from proxy.sdk.models import ModelInfo
    from proxy.sdk.operators import AgenticMap, LLMMap
    from proxy.sdk.session import Session

__version__ = "0.1.0"

_MODULES = {
    "proxy.config": "ConfigError Settings",
    "proxy.engine.turns.tools": "make_tool",
    "proxy.model.errors": "BadRequest Conflict ProxyError TooLarge UpstreamRefused UpstreamUnreachable",
    "proxy.model.parts": (
        "CompactionPart FileRefPart MessagePart PatchPart "
        "ReasoningPart StepFinishPart StepStartPart TextPart "
        "ToolPart ToolStatus "
    ),
    "proxy.model.results": (
        "AgentMapResult BuiltContext CompactionResult FileHandleResult MapResult RecordResult TokenUsage "
        "TurnFigures TurnResult "
    ),
    "proxy.sdk.engines": "close_all",
    "proxy.sdk.errors": (
        "DuplicateIDError ImmutableFieldError LogHeldError MessageNotFoundError "
        "PartNotFoundError SessionClosedError SessionNotFoundError StoreError "
    ),
    "proxy.sdk.events": "Event EventBus",
    "proxy.sdk.files": "LargeFileHandler",
    "proxy.sdk.models": "ModelInfo",
    "proxy.sdk.operators": "AgenticMap LLMMap",
    "proxy.sdk.session": "Session",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "AgentMapResult",
    "AgenticMap",
    "BadRequest",
    "BuiltContext",
    "CompactionPart",
    "CompactionResult",
    "ConfigError",
    "Conflict",
    "DuplicateIDError",
    "Event",
    "EventBus",
    "FileHandleResult",
    "FileRefPart",
    "ImmutableFieldError",
    "LLMMap",
    "LargeFileHandler",
    "LogHeldError",
    "MapResult",
    "MessageNotFoundError",
    "MessagePart",
    "ModelInfo",
    "PartNotFoundError",
    "PatchPart",
    "ProxyError",
    "ReasoningPart",
    "RecordResult",
    "Session",
    "SessionClosedError",
    "SessionNotFoundError",
    "Settings",
    "StepFinishPart",
    "StepStartPart",
    "StoreError",
    "TextPart",
    "TokenUsage",
    "TooLarge",
    "ToolPart",
    "ToolStatus",
    "TurnFigures",
    "TurnResult",
    "UpstreamRefused",
    "UpstreamUnreachable",
    "close_all",
    "make_tool",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
