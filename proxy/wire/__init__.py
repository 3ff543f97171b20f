"""The wire formats of clients and providers: one Format object for each supported API."""

from collections.abc import Mapping

from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses

CHAT, RESPONSES, MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()
FORMATS: Mapping[str, Format] = {form.name: form for form in (CHAT, RESPONSES, MESSAGES)}
"""All formats by name."""
OWN_FORMAT: Format = CHAT
"""The format of calls that programs and we make, and of what programs put into the log."""

# Only the endings count, since clients use various prefixes: Azure's `/openai/deployments/NAME`, `/api/v1`, or none.
_ENDINGS = {form.path_ending: form.name for form in FORMATS.values()}
COUNT_ENDINGS = {form.count_ending: form.name for form in FORMATS.values() if form.count_ending}
"""The formats by the endings of paths at which an upstream counts tokens."""


def find_wire(path: str, endings: Mapping[str, str] = _ENDINGS) -> str:
    """Return the wire format of a POST to a path by the path's ending, or an empty string.

    Below `/threads/` the same endings mean something else, and paths below `/-/` are our own pages. `endings` may be
    `COUNT_ENDINGS`, those of paths at which an upstream counts tokens.
    """
    for ending, wire in endings.items():
        if path.endswith(ending):
            return "" if "/threads/" in path or path.lstrip("/").startswith("-/") else wire
    return ""
