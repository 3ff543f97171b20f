"""The settings of recall, as values; `config` fills them in."""

from dataclasses import dataclass
from typing import Literal

from proxy.context.references import PAGE

RecallScope = Literal["branch", "session", "tenant"]
"""What a request may recall. `branch`: what it continues, and what the agent that delegated it continued then.
`session`: also other branches of its session. `tenant`: also other sessions of its tenant.
"""


@dataclass(frozen=True, slots=True)
class RecallPolicy:
    """Whether models get a tool to recall with, and what that returns. Each field has a setting of the same name."""

    # Whether the tool is added to requests once something was removed from their context.
    inject: bool = True
    # How many times in a row a model may recall within one answer.
    max_hops: int = 4
    # Characters of a page of a result.
    page_characters: int = PAGE
    # Whose content may be recalled.
    scope: RecallScope = "branch"
    # The model whose vectors are a further ranker of search; empty: search is by words only.
    embedding_model: str = ""
