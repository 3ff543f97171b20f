"""litellm as a library: how it is imported, its entry points, what it may be handed, and how its answers are written.

It is imported only for an upstream that needs it, which takes 4 s and 150 MB, and reads the map of models that comes
with it: nothing is fetched. A request may have only the listed members. litellm takes its own options by the same
names as the API's, so any other could choose an address, a credential or a file of this machine.
"""

import importlib
import importlib.util
import json
import logging
import os
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from proxy.model.errors import BadRequest

NEEDED = ("litellm", "mcp")
"""The modules of the extra `providers`."""

# Read when litellm is imported: no map of models is fetched, no .env is read.
_SWITCHES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "PYTHON_DOTENV_DISABLED": "1"}
# Advice is not printed, tokens that a provider does not report are not made up, and no tokenizer is fetched.
_SETTINGS = {
    "telemetry": False,
    "suppress_debug_info": True,
    "turn_off_message_logging": True,
    "disable_streaming_logging": True,
    "disable_token_counter": True,
    "disable_hf_tokenizer_download": True,
}
_ADAPTER = "litellm.llms.anthropic.pass_through.adapters.handler"
_THINKING = b'"type": "thinking"'
_VERTEX = "vertex_ai"
_ERROR = "Error: "
_TOLD_ERROR = re.compile(r"\W*\w*error\b", re.IGNORECASE)  # also `<tool_use_error>`, `[Error]`, `TypeError:`

Call = Callable[..., Awaitable[Any]]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _names(
    "top_k top_a min_p repetition_penalty enable_thinking thinking_budget chat_template_kwargs safety_settings"
)
_CHAT = _SAMPLING | _names(
    "audio context_management frequency_penalty function_call functions logit_bias logprobs max_completion_tokens "
    "max_tokens messages modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key "
    "prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream "
    "stream_options temperature thinking tool_choice tools top_logprobs top_p user verbosity web_search_options"
)
_RESPONSES = _names(
    "background context_management include input instructions max_output_tokens max_tool_calls metadata model "
    "parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning "
    "safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p "
    "truncation user"
)
_MESSAGES = _names(
    "cache_control container context_management inference_geo max_tokens mcp_servers messages metadata model "
    "output_config output_format service_tier speed stop_sequences stream system temperature thinking tool_choice "
    "tools top_k top_p"
)
# What clients send for us, or for a gateway's statistics, and no provider needs.
_ABOUT_CALLS = frozenset({"client_metadata", "litellm_session_id", "litellm_trace_id", "session_id", "diagnostics"})


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """litellm's function for a wire, the members that it may be handed, and those that are left out."""

    name: str
    members: frozenset[str]
    left_out: frozenset[str] = _ABOUT_CALLS
    end: bytes = b""  # what ends a stream
    has_event_names: bool = True  # the events of a stream have their type as a name, too
    is_own_api: bool = False  # some providers speak it themselves, and litellm hands these requests on

    def read_members(self, body: bytes) -> dict[str, Any]:
        """Return the members of a request's body. Raises BadRequest for a body that is none, or has others."""
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise BadRequest("the body is not a JSON object")
        if unknown := sorted(value.keys() - self.members - self.left_out):
            names = ", ".join(name[:64] for name in unknown[:8])
            raise BadRequest(f"an upstream of kind litellm does not take: {names}; leave it out (docs/providers.md)")
        return {name: member for name, member in value.items() if name in self.members}

    def write_event(self, chunk: Any) -> bytes:
        """Return a piece of a streamed response as it is sent."""
        if isinstance(chunk, bytes | str):
            return _mend_thinking(chunk.encode() if isinstance(chunk, str) else chunk)
        value = chunk if isinstance(chunk, dict) else chunk.model_dump(mode="json", exclude_none=True, warnings=False)
        return self._name(str(value.get("type", ""))) + b"data: %s\n\n" % orjson.dumps(value)

    def write_error(self, body: bytes) -> bytes:
        """Return an error in the middle of a stream."""
        return self._name("error") + b"data: %s\n\n" % body

    def _name(self, kind: str) -> bytes:
        return b"event: %s\n" % kind.encode() if self.has_event_names else b""


ENTRY_POINTS = {
    # litellm keeps the metadata of a chat completion to itself
    "chat_completions": EntryPoint(
        "acompletion", _CHAT, _ABOUT_CALLS | {"metadata"}, b"data: [DONE]\n\n", has_event_names=False
    ),
    "responses": EntryPoint("aresponses", _RESPONSES),
    "anthropic_messages": EntryPoint("anthropic_messages", _MESSAGES, is_own_api=True),
}


def is_installed() -> bool:
    """Return whether the extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


def load_litellm() -> Any:
    """Import litellm with its switches set, and what its first call would import. Blocks for seconds."""
    os.environ.update(_SWITCHES)  # noqa: TID251 - litellm reads them nowhere else
    library, *_ = [importlib.import_module(name) for name in NEEDED]
    for name, value in _SETTINGS.items():
        setattr(library, name, value)
    logging.getLogger("LiteLLM").disabled = True  # it quotes requests; what it raises is recorded
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")  # these quote values
    return library


def find_call(library: Any, entry: EntryPoint, members: dict[str, Any]) -> tuple[Call | None, dict[str, Any]]:
    """Return litellm's function for a request, or None if it has none for the wire, and the members that it is handed.

    A streamed response of a provider that itself speaks `/v1/messages` needs litellm's whole proxy, even to be read,
    and goes on being read when the client has gone; for a whole one of Vertex the event loop would wait for a token.
    Such requests are translated as those to other providers are.
    """
    call: Call | None = getattr(library, entry.name, None)
    if not entry.is_own_api or call is None:
        return call, members
    model, provider, _, _ = library.get_llm_provider(model=members.get("model"))
    kinds = library.LlmProviders
    known = provider in [each.value for each in kinds]
    if not known or not library.utils.ProviderConfigManager.get_provider_anthropic_messages_config(
        model=model, provider=kinds(provider)
    ):
        return call, tell_errors(members)
    if not members.get("stream") and provider != _VERTEX:
        return call, members
    handler = importlib.import_module(_ADAPTER).LiteLLMMessagesToCompletionTransformationHandler
    translate: Call = handler.async_anthropic_messages_handler
    return translate, tell_errors(members)


def tell_errors(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a request with errors of tools told in their text: a chat completion has no `is_error`."""
    messages = members.get("messages")
    if not isinstance(messages, list):
        return members
    return {**members, "messages": [_tell_errors_in(message) for message in messages]}


def _tell_errors_in(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(map(_is_error, content)):
        return message
    return {**message, "content": [_tell_error(part) if _is_error(part) else part for part in content]}


def _is_error(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result" and part.get("is_error") is True


def _tell_error(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose text begins with what tells that it is an error, if it does not do so itself."""
    content = result.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    first = parts[0] if parts and isinstance(parts[0], dict) and parts[0].get("type") == "text" else None
    text = str(first.get("text") or "") if first is not None else ""
    if _TOLD_ERROR.match(text):
        return result
    if first is None:
        return {**result, "content": [{"type": "text", "text": _ERROR.strip()}, *parts]}
    if isinstance(content, list):
        return {**result, "content": [{**first, "text": _ERROR + text}, *parts[1:]]}
    return {**result, "content": _ERROR + text}


def write_whole(answer: Any) -> bytes:
    """Return a whole response as JSON. A message without text says so, as OpenAI's do."""
    value = answer if isinstance(answer, dict) else answer.model_dump(mode="json", exclude_none=True, warnings=False)
    for choice in value.get("choices") or ():
        if isinstance(message := choice.get("message"), dict):
            message.setdefault("content", None)
    return orjson.dumps(value)


def _mend_thinking(event: bytes) -> bytes:
    """Take from the start of a thinking block what its first delta says again: clients add both, and break it."""
    if not event.startswith(b"event: content_block_start") or _THINKING not in event:
        return event
    head, _, data = event.partition(b"data: ")
    value = json.loads(data)
    value["content_block"]["thinking"] = ""
    return b"%sdata: %s\n\n" % (head, orjson.dumps(value))


async def close_stream(stream: Any) -> None:
    """Close a stream of litellm, and so the connection under it."""
    for each in (stream, getattr(stream, "litellm_custom_stream_wrapper", None), getattr(stream, "response", None)):
        close = getattr(each, "aclose", None)
        if close is not None:
            await close()
            return


def iterate(stream: Any) -> AsyncIterator[Any]:
    """Return the iterator over the chunks of a stream."""
    iterator: AsyncIterator[Any] = aiter(stream)
    return iterator
