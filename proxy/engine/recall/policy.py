"""The settings of recall."""

from dataclasses import dataclass
from typing import Annotated, Literal

from proxy.context.references import PAGE
from proxy.model.settings import Rule

RecallScope = Literal["branch", "session", "tenant"]
"""What a request may recall. `branch`: what it continues, and what the agent that delegated it continued then.
`session`: also other branches of its session. `tenant`: also other sessions of its tenant.
"""


@dataclass(frozen=True, slots=True)
class RecallPolicy:
    """Reading again what was removed from a context, by a tool that the proxy adds and executes."""

    inject: bool = True
    """Whether requests get the tool context_recall once something was removed from their context."""
    max_hops: Annotated[int, Rule(ge=1, le=64)] = 4
    """Most times in a row that a model may use it within one response."""
    page_characters: Annotated[int, Rule(ge=1000, le=200_000)] = PAGE
    """Characters of a page of what it returns."""
    scope: RecallScope = "branch"
    """What a request may recall. branch: its own history and that of the agent that delegated it; session: also other
    branches of its session; tenant: also other sessions of the same tenant."""
    shorten_tools_after: Annotated[int, Rule(ge=0, le=10_000)] = 0
    """Steps of an agent after which an epoch shortens the schemas of tools that were not called in them to what a call
    requires. context_recall shows a model the whole of one (tool_details). 0: all tools stay whole."""
    embedding_model: str = ""
    """Model whose embeddings let search also find what says the same in other words. Messages are sent to it in the
    background, at the upstream's /v1/embeddings, within the limits and permissions under compaction. Empty: none."""
