"""The wire formats of clients and providers: one Format object for each supported API."""

from collections.abc import Mapping

from proxy.wire.anthropic_messages import AnthropicMessages
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.format import Format
from proxy.wire.responses import Responses

FORMATS: Mapping[str, Format] = {form.name: form for form in (ChatCompletions(), Responses(), AnthropicMessages())}
"""All formats by name."""
