"""Reading what an upstream refuses: a request that is too long, or one in a form that it does not take.

What an error says counts before its status, since servers and gateways give any status to it. The reading is
conservative: an error is an overflow only if its code or text says so in a known form. A
limit of tokens per minute, a throttled request, or a limit of the output alone is not; that is looked for first. The
numbers are the upstream's, and some upstreams print wrong ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from proxy.model.card import OverflowKind
from proxy.model.exchange import Headers, Usage
from proxy.wire.body import decode_content
from proxy.wire.headers import find_header
from proxy.wire.json_values import read_count, read_object, read_objects, read_text
from proxy.wire.streams import EVENT_END, ServerEvent, read_events, read_kind

StreamStart = Literal["refused", "content", "undecided"]
_Fields = Mapping[str, object]

# Local servers and gateways give 5xx or 424 to errors of a request; with 200 the body is an error, not a response.
_STATUSES = frozenset({200, 400, 413, 422, 424, *range(500, 600)})
_FIRST_ERROR, _CLIENT_ERRORS = 400, range(400, 500)
# Statuses about credentials and rates, not about the request's form.
_NOT_ITS_FORM = frozenset({401, 402, 403, 407, 408, 425, 429})
_TOO_LARGE, _RATE_LIMITED = 413, 429
_SILENT = frozenset({400, 413})  # with which Cerebras refuses without a body
_MOST_READ = 64 * 1024
_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_max_prompt_tokens_exceeded"})
_RATE = re.compile(
    r"rate.?limit|\bper (?:minute|hour|day)\b|\b[TR]PM\b|quota|throttl|too many requests|too many tokens, please wait",
    re.IGNORECASE,
)
Subject = Literal["roles", "compaction", "tools", "reasoning", "bound"]
# By which words an error may be about messages of a role in a row, a provider's own compaction, tools, or reasoning;
# what a provider says of reasoning behind another beginning, or of a loop's reasoning that was changed.
_SUBJECTS: Mapping[Subject, re.Pattern[bytes]] = {
    "roles": re.compile(
        rb"alternat|(?:multiple|two|consecutive)[^.]{0,40}roles? in a row|consecutive (?:user|assistant)", re.IGNORECASE
    ),
    "compaction": re.compile(rb"compaction|encrypted", re.IGNORECASE),
    "tools": re.compile(rb"tool|function|schema", re.IGNORECASE),
    "reasoning": re.compile(
        rb"signature|thought|redacted_thinking|thinking\W{1,3}blocks?|reasoning(?!_effort)", re.IGNORECASE
    ),
    "bound": re.compile(
        rb"bound to a different conversation|invalid \W*signature\W* in \W*thinking"
        rb"|thinking\W{1,4} (?:or \W*redacted_thinking\W* )?blocks in the latest assistant message cannot be modified",
        re.IGNORECASE,
    ),
}
_FORM_CODES = (400, 422, "400", "422")
# What servers, and the gateways before them, say of a request in a form that they do not take, whatever the status.
_FORM = re.compile(
    r"jinja|chat.?template|template (?:error|exception)|TemplateError|raise_exception"
    r"|roles? (?:must|should) (?:be )?alternat|must alternate"
    r"|message role (?:must|should) be|no user query found|must (?:begin|start|end) with (?:a |an )?(?:user|system)"
    r"|invalid.?request.?error|BadRequestError|ValidationException|INVALID_ARGUMENT"
    r"|\b(?:status|code)\W{1,4}(?:400|422)\b|\b400 bad request",
    re.IGNORECASE,
)
_STREAM_BEGINNINGS = (b"data:", b"event:", b":")
# Events that come before anything is known of the response.
_PRELUDES = frozenset({"message_start", "ping", "response.created", "response.in_progress", "response.queued"})

_WINDOW, _SENT, _TOTAL, _OUTPUT = (
    rf"\(?(?P<{name}>\d[\d,]{{0,15}})\)?" for name in ("window", "sent", "total", "output")
)
_MAXIMUM = rf"maximum context length is {_WINDOW} tokens"
_FORMS = [
    re.compile(form, re.IGNORECASE | re.DOTALL)
    for form in (
        # OpenAI, Azure, DeepSeek; OpenRouter says "This endpoint's" and "about".
        rf"{_MAXIMUM}\. However, (?:your messages resulted in {_SENT}|you requested (?:about )?{_TOTAL}) tokens",
        # vLLM through the years.
        rf"{_MAXIMUM}\. However, your (?:request|prompt) (?:has|contains) (?:at least )?{_SENT} input tokens"
        rf"(?: plus {_OUTPUT})?",
        rf"{_MAXIMUM}\. However, you requested {_OUTPUT} output tokens and your prompt contains (?:at least )?{_SENT}",
        rf"too large: {_OUTPUT}\W.{{0,20}}{_MAXIMUM} and your request has {_SENT} input tokens",
        rf"prompt \(length {_SENT}\) is longer than the maximum model length of {_WINDOW}",
        # OpenAI's gpt-5 family, and Responses, where there is no number.
        rf"input tokens exceed the configured limit of {_WINDOW} tokens(?:\. Your messages resulted in {_SENT})?",
        r"input exceeds the context window of this model",
        # Anthropic.
        rf"prompt is too long: {_SENT} tokens > {_WINDOW} maximum",
        rf"input length and `max_tokens` exceed context limit:\s+{_SENT} \+ {_OUTPUT} > {_WINDOW}",
        # Gemini.
        rf"input token count (?:{_SENT} )?exceeds the maximum number of tokens allowed {_WINDOW}",
        # llama.cpp; and from public threads: Mistral, xAI, Copilot, Moonshot, Bedrock.
        rf"exceeds the available context size(?: {_WINDOW})?",
        rf"prompt contains {_SENT} tokens.{{0,40}} too large for model with {_WINDOW} maximum context length",
        rf"maximum prompt length is {_WINDOW} but the request contains {_SENT} tokens",
        rf"prompt token count of {_SENT} exceeds the limit of {_WINDOW}",
        rf"prompt is too long: {_SENT}, model maximum context length: {_WINDOW}",
        r"input is too long for requested model",
        # SGLang; Together and SGLang; Ollama, whose number is the excess.
        rf"exceeds the model's maximum context length of {_WINDOW} tokens"
        rf"(?:\. You requested a total of \d+ tokens: {_SENT} tokens from the input messages and {_OUTPUT})?",
        rf"input \({_SENT} tokens\) is longer than the model's context length \({_WINDOW} tokens\)",
        r"prompt too long; exceeded max context length by \d",
        r"input length exceeds the context length",
        # llama.cpp while it reads a prompt; TGI; LM Studio; LiteLLM, whatever the provider behind it said.
        r"context size has been exceeded",
        rf"`inputs` tokens \+ `max_new_tokens` must be <= {_WINDOW}\. Given: {_SENT} `inputs` tokens"
        rf"(?: and {_OUTPUT} `max_new_tokens`)?",
        rf"`inputs` must have less than {_WINDOW} tokens\. Given: {_SENT}",
        rf"loaded with context length of only {_WINDOW} tokens",
        r"ContextWindowExceededError",
        # OpenRouter, Moonshot, MiniMax, Groq, gateways of Claude Code.
        rf"input length {_SENT} exceeds the maximum allowed input length of {_WINDOW} tokens",
        rf"exceeded model token limit: {_WINDOW} \(requested: {_SENT}\)",
        r"context window exceeds limit",
        r"please reduce the length of the messages or completion",
        r"capability_rejected: prompt_too_long",
        r"\bprompt is too long\b",
    )
]
# Anthropic's models from 4.5 on, z.ai, MiMo.
_WINDOW_FULL = "model_context_window_exceeded"
_LIMIT_REASONS = frozenset({"length", "max_tokens", "max_output_tokens"})
# A learned window of a smaller share is not believed.
_LEAST_OF_WINDOW = 0.25
# Nor is a smaller one: contexts of Ollama begin at 2,048 tokens, and mocks report a few tokens of every request.
_LEAST_WINDOW = 1024
_ASKED = re.compile(r"(?P<output>\d{1,15}) in the (?:completion|output)")


class Overflow(msgspec.Struct, frozen=True, gc=False):
    """A "too long" error. Each number is None if the error does not have it."""

    window: int | None = None
    sent: int | None = None  # input tokens
    output: int | None = None  # requested output tokens
    is_guess: bool = False  # the error says nothing at all
    is_status: bool = False  # nothing but its status says so, which may be about bytes

    @property
    def fits_with_less_output(self) -> bool:
        """Whether a lower `max_tokens` alone would make the request fit."""
        return bool(self.output) and self.window is not None and self.sent is not None and self.sent < self.window


class SilentOverflow(msgspec.Struct, frozen=True, gc=False):
    """A sign that an upstream accepted a request that is too long for it. `window` is None if the sign shows none."""

    kind: OverflowKind
    window: int | None = None


def find_silent_overflow(
    finish: str, usage: Usage, *, window: int | None = None, sent: int = 0, share: float = 0.0
) -> SilentOverflow | None:
    """Return the sign in what a response says of itself that its request was too long, or None.

    `window` is the known one. An upstream that reads less than `share` of the `sent` tokens has left out the rest
    (Ollama); one that stops at the limit before the first token has none left (z.ai, MiMo).
    """
    reasons, given, output = set(finish.split(",")), usage.input or 0, usage.output
    if _WINDOW_FULL in reasons:
        return SilentOverflow("stopped", given + (output or 0) if given else None)
    if window is not None and given > window:
        return SilentOverflow("beyond", window)
    is_mute = output == 0 and bool(reasons & _LIMIT_REASONS)
    # One that reports fewer tokens than it has read from its cache counts these apart.
    is_whole = given >= max(_LEAST_WINDOW, _LEAST_OF_WINDOW * (window or 0), usage.cached or 0)
    if is_whole and (is_mute or given < share * sent):
        return SilentOverflow("truncated", given)
    return None


def mentions(subject: Subject, headers: Headers, body: bytes) -> bool:
    """Return whether the body of an error may be about a subject, in whatever words."""
    content = _read_body(headers, body)
    return content is not None and _SUBJECTS[subject].search(content) is not None


def _read_body(headers: Headers, body: bytes) -> bytes | None:
    """Return the beginning of a body, or None if it cannot be decoded."""
    coding = find_header(headers, b"content-encoding").decode("latin-1")
    try:
        return decode_content(body[:_MOST_READ], coding, _MOST_READ)
    except ValueError:
        return None


def read_refusal(status: int, headers: Headers, body: bytes) -> Overflow | Literal["form"] | None:
    """Return what a response refuses of a request: its length, or its `form`; None if nothing. As `read_overflow`.

    A client error refuses the form unless it is about credentials or rates; any other response if it says so.
    """
    overflow = read_overflow(status, headers, body)
    if overflow is not None:
        return overflow
    if status in _CLIENT_ERRORS:
        return None if status in _NOT_ITS_FORM else "form"
    content = _read_body(headers, body) if status in _STATUSES else None
    return "form" if content is not None and any(map(_refuses_form, _find_errors(status, content))) else None


def read_overflow(status: int, headers: Headers, body: bytes) -> Overflow | None:
    """Return the overflow in a response, or None if it is anything else. The beginning of a stream is enough."""
    if status not in _STATUSES:
        return None
    content = _read_body(headers, body)
    if content is None:
        return None
    if status >= _FIRST_ERROR and not content.strip():
        return Overflow(is_guess=True) if status in _SILENT else None
    errors = _find_errors(status, content)
    if any(map(_is_other_limit, errors)):
        return None
    found = next(filter(None, map(_read_error, errors)), None)
    return Overflow(is_status=True) if found is None and status == _TOO_LARGE else found


def read_stream_start(chunk: bytes) -> StreamStart:
    """Return what a stream begins with: a refusal, content, or nothing that decides yet.

    Comments, events that only open a response, and an incomplete event decide nothing.
    """
    end = max((match.end() for match in EVENT_END.finditer(chunk)), default=0)
    return _read_events(read_events(chunk[:end]))[0]


def _find_errors(status: int, content: bytes) -> list[_Fields]:
    """Return the errors in a response; of a stream, those of the first event that decides."""
    if content.lstrip().startswith(_STREAM_BEGINNINGS):
        return _read_events(read_events(content))[1]
    is_error = status >= _FIRST_ERROR
    if not is_error and b"error" not in content:  # so nearly all responses return here
        return []
    text = content.decode(errors="replace")
    errors = [error for value in _list_objects(text) for error in _list_errors(value, is_error=is_error)]
    return errors if errors or not is_error else [{"message": text}]


def _read_events(events: Iterable[ServerEvent]) -> tuple[StreamStart, list[_Fields]]:
    """Return the verdict of the first event that decides, and its errors."""
    for event in events:
        sent = event.value
        if sent is None:
            return "content", []
        errors = list(_list_errors(sent, is_error=event.name == "error"))
        if any(_read_error(error) is not None or _refuses_form(error) for error in errors):
            return "refused", errors
        if errors or not _is_prelude(event, sent):
            return "content", errors
    return "undecided", []


def _is_prelude(event: ServerEvent, sent: _Fields) -> bool:
    if "choices" in sent:
        return not any(map(_says_something, read_objects(sent["choices"])))
    return read_kind(event, sent) in _PRELUDES


def _says_something(choice: _Fields) -> bool:
    """Return whether a choice has more than a role."""
    delta = choice.get("delta")
    said = [value for name, value in delta.items() if name != "role"] if isinstance(delta, dict) else []
    return any(said) or any(choice.get(name) for name in ("finish_reason", "message", "text"))


def _list_objects(text: str) -> list[dict[str, object]]:
    """Return the object in a body, or the objects if the body is an array (Gemini)."""
    value = read_object(f'{{"all":{text}}}') or {}
    whole = value.get("all")
    return read_objects(whole if isinstance(whole, list) else [whole])


def _list_errors(value: _Fields, *, is_error: bool) -> Iterator[_Fields]:
    """Yield the errors in an object: under `error`, in a failed response, or itself (vLLM, FastAPI, error events)."""
    response = value.get("response")
    inner = response.get("error") if isinstance(response, dict) else None
    for error in (value.get("error"), inner):
        if error and isinstance(error, dict | str):
            yield {"message": error} if isinstance(error, str) else error
    if is_error or value.get("object") == "error" or value.get("type") == "error":
        yield value


def _is_other_limit(error: _Fields) -> bool:
    """Return whether an error is about a rate limit, which may also mention tokens and lengths."""
    codes = [error.get(name) for name in ("code", "type", "status")]
    return _RATE_LIMITED in codes or any(_RATE.search(text) for text in (*map(read_text, codes), _read_words(error)))


def _refuses_form(error: _Fields) -> bool:
    """Return whether an error says that the request is not in a form which its upstream takes."""
    if _is_other_limit(error):
        return False
    codes = [error.get(name) for name in ("code", "type", "status")]
    said = "\n".join((*map(read_text, codes), _read_words(error)))
    return any(code in _FORM_CODES for code in codes) or _FORM.search(said) is not None


def _read_error(error: _Fields) -> Overflow | None:
    if _is_other_limit(error):
        return None
    words = _read_words(error)
    match = next(filter(None, (form.search(words) for form in _FORMS)), None)
    if match is None and not {read_text(error.get("code")), read_text(error.get("type"))} & _CODES:
        return None
    told = {name: int(text.replace(",", "")) for name, text in (match.groupdict() if match else {}).items() if text}
    asked = _ASKED.search(words)
    output = int(asked["output"]) if asked else told.get("output")
    sent = max(0, told["total"] - (output or 0)) if "total" in told else told.get("sent")
    window, counted = read_count(error.get("n_ctx")), read_count(error.get("n_prompt_tokens"))
    return Overflow(told.get("window") if window is None else window, sent if counted is None else counted, output)


def _read_words(error: _Fields) -> str:
    """Return an error's message, FastAPI's detail, and the provider's error that a gateway passes on (OpenRouter)."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else ""
    return "\n".join(map(read_text, (error.get("message"), error.get("detail"), raw)))
