"""What a model's name tells. Rule: a name says which entries may speak of it, in order, not what is in them."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Encoding = Literal["o200k_base", "cl100k_base"]
Vendor = Literal["openai", "anthropic", "gemini", "other"]

# `-2024-08-06`, `-20241022`, `@20240620`, `-0613`, `-latest`, `-preview-05-06`, Bedrock's `-v1:0`
_VARIANT = re.compile(
    r"(?:[-@](?:20\d{2}-?[01]\d-?[0-3]\d|[01]\d-?[0-3]\d|latest|default|preview|exp)|-v\d+)$", re.IGNORECASE
)
_REGION = re.compile(r"^(?:us|eu|apac|au|jp|global|us-gov)\.(?=[a-z]+\.)")
_CLOUD_VENDOR = re.compile(r"^(?:anthropic|amazon|meta|mistral|deepseek|cohere|ai21|openai|qwen)\.")

_OLD_OPENAI = re.compile(r"gpt-(?:4(?![o.\d])|3\.5|35)|text-embedding-(?:3|ada)")
_OPENAI = re.compile(r"(?:chat)?gpt|o\d|codex|davinci|text-embedding-")


# Models whose providers are not known to refuse reasoning that stands behind another beginning (WIRES 1 and 8): others
# than Anthropic's, and Anthropic's up to Opus 5, Sonnet 5, Fable 5 and Haiku 4.5.
_UNBOUND = re.compile(
    r"gemini|gemma|(?:chat)?gpt|o\d|codex|grok|deepseek|qwen|kimi|glm|minimax|mistral|magistral|devstral|llama"
    r"|claude-(?:instant|[1-4](?![\d])|v\d|(?:opus|sonnet|fable|haiku)-(?:[1-4](?!\d)|5(?![-.]?\d)))"
)


@dataclass(frozen=True, slots=True)
class Family:
    """Whose rules a model's tokens are counted by. `is_exact`: the encoding is the model's own."""

    vendor: Vendor
    encoding: Encoding
    is_exact: bool


def list_names(model: str) -> tuple[str, ...]:
    """The names an entry for this model may have, the most exact first, in lower case.

    The name itself; without what stands before each slash; without a variant behind a colon (`:free`, `:8b`); without
    region and vendor of a cloud (`us.anthropic.`); without dates, versions and `latest`, one after the other.
    """
    name = model.strip().lower()
    found = dict.fromkeys([name])
    for spelled in _without_prefixes(name):
        found[spelled] = None
    for spelled in tuple(found):
        found |= dict.fromkeys(_without_variants(spelled))
    return tuple(found)


def strip_provider(name: str) -> str:
    """The part of an entry's name behind the last slash."""
    return name.rpartition("/")[2]


@lru_cache(maxsize=1024)
def find_family(model: str) -> Family:
    """Whose the model is, as far as its name tells."""
    name = _bare(model)
    if _OLD_OPENAI.match(name):
        return Family("openai", "cl100k_base", is_exact=True)
    if _OPENAI.match(name):
        return Family("openai", "o200k_base", is_exact=True)
    if name.startswith("claude"):
        return Family("anthropic", "o200k_base", is_exact=False)
    if name.startswith(("gemini", "gemma")):
        return Family("gemini", "o200k_base", is_exact=False)
    return Family("other", "o200k_base", is_exact=False)


@lru_cache(maxsize=1024)
def may_bind_reasoning(model: str) -> bool:
    """Whether signed reasoning of this model may be refused behind another beginning (BEHAVIOUR B37); unknown: yes."""
    return not any(_UNBOUND.match(name) for name in (_bare(model), *list_names(model)))


def _bare(model: str) -> str:
    name = strip_provider(model.strip().lower())
    return _CLOUD_VENDOR.sub("", _REGION.sub("", name))


def _without_prefixes(name: str) -> list[str]:
    found = []
    while "/" in name:
        name = name.partition("/")[2]
        found.append(name)
    bare = _bare(name)
    return [*found, *([bare] if bare != name else [])]


def _without_variants(name: str) -> list[str]:
    found = []
    if ":" in name:
        name = name.partition(":")[0]
        found.append(name)
    while (shorter := _VARIANT.sub("", name)) != name:
        name = shorter
        found.append(name)
    return found
