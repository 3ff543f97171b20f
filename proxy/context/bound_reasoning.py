"""Reasoning that a provider binds to what goes before it: the rules for every wire format (BEHAVIOUR B37).

Some providers sign a block of reasoning over the whole request that it answered. Behind any other beginning they refuse
or drop the block. A *rendering* is a form in which a history is sent: an epoch's, or the client's own. A request has
exactly the blocks that were made under its rendering; all others are removed whole, and by the same rule every time. So
what precedes a block is the same whenever the block is sent, and there is never a gap before another.

A wire format only says where such blocks stand (`MessageStructure.signed`) and how a message looks without them
(`Format.strip_reasoning`). Signatures of calls (Gemini's `thought_signature`) and unsigned reasoning are not bound.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from proxy.context.model_catalog import list_names, strip_cloud
from proxy.model.messages import LinkedMessage

OWN = ""
"""The rendering of the client's own messages. Any other one is named by the id of its epoch."""

# Models whose providers are not known to refuse reasoning behind a different prefix (WIRES 1 and 8): all that are not
# Anthropic's, and Anthropic's up to Opus 5, Sonnet 5, Fable 5 and Haiku 4.5.
_UNBOUND = re.compile(
    r"gemini|gemma|(?:chat)?gpt|o\d|codex|grok|deepseek|qwen|kimi|glm|minimax|mistral|magistral|devstral|llama"
    r"|claude-(?:instant|[1-4](?![\d])|v\d|(?:opus|sonnet|fable|haiku)-(?:[1-4](?!\d)|5(?![-.]?\d)))"
)
# Of text in languages with Latin letters. Text of other scripts has more tokens than this says.
_CHARACTERS_OF_A_TOKEN = 4


@lru_cache(maxsize=1024)
def may_bind_reasoning(model: str) -> bool:
    """Return whether signed reasoning of this model may be refused behind a different beginning; unknown: True."""
    return not any(_UNBOUND.match(name) for name in (strip_cloud(model), *list_names(model)))


def list_foreign(
    messages: Sequence[LinkedMessage], start: int, rendering: str, find_origin: Callable[[int], str]
) -> Iterator[int]:
    """Yield the places from `start` on of the assistant's messages that were made under another rendering.

    `find_origin` returns the rendering of the request that had the first messages only, given their number. Consecutive
    messages of the assistant are one answer.
    """
    at = start
    while 0 < at < len(messages) and _is_assistant(messages[at]) and _is_assistant(messages[at - 1]):
        at -= 1
    is_foreign = False
    for place in range(at, len(messages)):
        if not _is_assistant(messages[place]):
            continue
        if place == at or not _is_assistant(messages[place - 1]):
            is_foreign = find_origin(place) != rendering
        if is_foreign and place >= start:
            yield place


def _is_assistant(message: LinkedMessage) -> bool:
    return message.role == "assistant"


def estimate_reasoning(characters: int) -> int:
    """Estimate the tokens of so many characters of reasoning."""
    return characters // _CHARACTERS_OF_A_TOKEN
