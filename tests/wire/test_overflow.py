"""Refusals as too long, as upstreams spell them, and refusals that only look like it."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.exchange import Usage
from proxy.wire.overflow import (
    Overflow,
    SilentOverflow,
    find_silent_overflow,
    mentions,
    read_overflow,
    read_refusal,
    read_stream_start,
)
from tests.support.echoes import values

OPENAI = "This model's maximum context length is 8192 tokens. However, {}. Please reduce the length of the messages."
RESULTED = OPENAI.format("your messages resulted in 9000 tokens")
PARTED = OPENAI.format("you requested 9000 tokens (5000 in the messages, 4000 in the completion)").replace(
    ") tokens", ")"
)
OPENROUTER = (
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7884 of text "
    'input, 131072 in the output). Please reduce the length of either one, or use the "middle-out" transform to '
    "compress your prompt automatically."
)
ANTHROPIC = "prompt is too long: 210266 tokens > 200000 maximum"
OUTPUT = (
    "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease input length or "
    "`max_tokens` and try again"
)
VLLM = (
    "This model's maximum context length is 8192 tokens. However, your request has 8195 input tokens. Please reduce "
    "the length of the input messages. (parameter=input_tokens, value=8195)"
)
WINDOW = "Your input exceeds the context window of this model. Please adjust your input and try again."
LLAMA = {
    "code": 400,
    "message": "the request exceeds the available context size. try increasing the context size or enable context "
    "shift",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 14429,
    "n_ctx": 8192,
}
GPT_5 = (
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 280000 tokens. Please reduce "
    "the length of the messages."
)
GEMINI = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
JSON = ((b"content-type", b"application/json"),)


def error(message: str, **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **members}}


def read(value: Any, status: int = 400) -> Overflow | None:
    return read_overflow(status, JSON, json.dumps(value).encode())


REFUSALS: list[tuple[Any, Overflow]] = [
    (error(RESULTED, param="messages", code="context_length_exceeded"), Overflow(8192, 9000)),
    (error(PARTED, param="messages", code="context_length_exceeded"), Overflow(8192, 5000, 4000)),
    (error(OPENAI.format("you requested 9,000 tokens"), code=None), Overflow(8192, 9000)),
    (error(PARTED, code="invalid_request_error"), Overflow(8192, 5000, 4000)),
    (error(GPT_5, code="context_length_exceeded"), Overflow(272000, 280000)),
    (error("Input tokens exceed the configured limit of 272000 tokens."), Overflow(272000)),
    (error(WINDOW, code="context_length_exceeded", param="input"), Overflow()),
    (error("Too much.", code="context_length_exceeded"), Overflow()),
    (
        {"object": "error", "message": RESULTED, "type": "BadRequestError", "param": None, "code": 400},
        Overflow(8192, 9000),
    ),
    (error(VLLM, type="BadRequestError", param="input_tokens", code=400), Overflow(8192, 8195)),
    (
        error(VLLM.replace("8195 input tokens.", "8 input tokens plus 8190 'max_tokens'."), code=400),
        Overflow(8192, 8, 8190),
    ),
    (
        error(
            "This model's maximum context length is 4096 tokens. However, you requested 2000 output tokens and your "
            "prompt contains at least 2097 input tokens, for a total of at least 4097 tokens."
        ),
        Overflow(4096, 2097, 2000),
    ),
    (
        error(
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 4096 "
            "tokens and your request has 100 input tokens (4096 > 4096 - 100)."
        ),
        Overflow(4096, 100, 4096),
    ),
    (
        error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        Overflow(4096, 5000),
    ),
    ({"error": LLAMA}, Overflow(8192, 14429)),
    (
        {"error": LLAMA | {"message": "request (9 tokens) exceeds the available context size (8 tokens)"}},
        Overflow(8192, 14429),
    ),
    (error("request (9 tokens) exceeds the available context size (8 tokens), try increasing it"), Overflow(8)),
    (error(OPENROUTER, code=400, metadata={"provider_name": None}), Overflow(131072, 7884, 131072)),
    (
        error("Provider returned error", code=400, metadata={"raw": json.dumps(error(ANTHROPIC))}),
        Overflow(200000, 210266),
    ),
    ({"type": "error", **error(ANTHROPIC)}, Overflow(200000, 210266)),
    ({"type": "error", **error(OUTPUT), "request_id": "r"}, Overflow(200000, 143653, 64000)),
    ({"error": {"code": 400, "message": GEMINI, "status": "INVALID_ARGUMENT"}}, Overflow(1048576, 1200000)),
    ([{"error": {"code": 400, "message": GEMINI, "status": "INVALID_ARGUMENT"}}], Overflow(1048576, 1200000)),
    (
        error("The input token count exceeds the maximum number of tokens allowed 1048576."),
        Overflow(1048576),
    ),
    ({"error": ANTHROPIC}, Overflow(200000, 210266)),
    ({"detail": RESULTED}, Overflow(8192, 9000)),
    ({"message": RESULTED}, Overflow(8192, 9000)),
    (
        error("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"),
        Overflow(32768, 40000),
    ),
    (
        error("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        Overflow(131072, 537812),
    ),
    (
        error("prompt token count of 135000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"),
        Overflow(128000, 135000),
    ),
    (error("The prompt is too long: 267657, model maximum context length: 262143"), Overflow(262143, 267657)),
    (error("Input is too long for requested model."), Overflow()),
]


SGLANG = (
    "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 40000 "
    "tokens: 36000 tokens from the input messages and 4000 tokens for the completion. Please reduce the number of "
    "tokens in the input messages or the completion to fit within the limit."
)
THROTTLED = "Too many tokens, please wait before trying again."

# WIRES §7: what each upstream answers, and what it says of window, input and output.
TABLE: list[tuple[str, Any, Overflow | None]] = [
    ("OpenAI", error(WINDOW, code="context_length_exceeded", param="input"), Overflow()),
    ("Anthropic", {"type": "error", **error(ANTHROPIC)}, Overflow(200000, 210266)),
    ("Claude Code's gateways", error("capability_rejected: prompt_too_long"), Overflow()),
    ("Claude Code's short form", error("Prompt is too long"), Overflow()),
    (
        "vLLM",
        error(
            "This model's maximum context length is 4096 tokens. However, you requested 2000 output tokens and your "
            "prompt contains at least 2097 input tokens."
        ),
        Overflow(4096, 2097, 2000),
    ),
    ("SGLang", error(SGLANG, type="BadRequestError"), Overflow(32768, 36000, 4000)),
    ("SGLang's beginning", error(SGLANG.partition(".")[0]), Overflow(32768)),
    (
        "llama.cpp",
        error("the request exceeds the available context size, try increasing it", code=400),
        Overflow(),
    ),
    ("Ollama", {"error": "prompt too long; exceeded max context length by 1234 tokens"}, Overflow()),
    (
        "OpenRouter",
        error("Input length 300000 exceeds the maximum allowed input length of 262144 tokens.", code=400),
        Overflow(262144, 300000),
    ),
    ("Bedrock", {"message": "Input is too long for requested model."}, Overflow()),
    ("Bedrock, throttling", {"message": THROTTLED}, None),
    ("Bedrock, throttling beside a length", {"message": f"{THROTTLED} Input is too long for requested model."}, None),
    ("Bedrock, by its type", {"error": {"type": "ThrottlingException", "message": "prompt is too long"}}, None),
    (
        "xAI",
        error("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        Overflow(131072, 537812),
    ),
    ("Groq", error("Please reduce the length of the messages or completion.", code="x"), Overflow()),
    (
        "Groq, its rate",
        error("Request too large: tokens per minute. Please reduce the length of the messages or completion."),
        None,
    ),
    ("any, too often", error("Too many requests. The prompt is too long."), None),
    (
        "Mistral",
        error("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"),
        Overflow(32768, 40000),
    ),
    ("Kimi", error("Your request exceeded model token limit: 262144 (requested: 291351)"), Overflow(262144, 291351)),
    ("MiniMax", error("invalid params, context window exceeds limit (2013)"), Overflow()),
    (
        "Together",
        error("The input (70000 tokens) is longer than the model's context length (65536 tokens)."),
        Overflow(65536, 70000),
    ),
    ("Ollama, input", {"error": "the input length exceeds the context length"}, Overflow()),
    ("llama.cpp, prompt", error("Context size has been exceeded.", code=500, type="server_error"), Overflow()),
    (
        "TGI",
        error(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens "
            "and 500 `max_new_tokens`"
        ),
        Overflow(4096, 4000, 500),
    ),
    (
        "TGI, input",
        error("Input validation error: `inputs` must have less than 1024 tokens. Given: 1103"),
        Overflow(1024, 1103),
    ),
    (
        "LM Studio",
        error(
            "Trying to keep the first 5115 tokens when context the overflows. However, the model is loaded with "
            "context length of only 4096 tokens, which is not enough."
        ),
        Overflow(4096),
    ),
    ("LiteLLM", error("litellm.ContextWindowExceededError: too many", code="400"), Overflow()),
]


@pytest.mark.parametrize(("value", "overflow"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table_of_refusals_is_read(value: Any, overflow: Overflow | None) -> None:
    assert read(value) == overflow
    assert read(value, 413) == overflow


FULL = "model_context_window_exceeded"


@pytest.mark.parametrize(
    ("finish", "usage", "facts", "found"),
    [
        (FULL, Usage(190_000, 10_000), {}, SilentOverflow("stopped", 200_000)),
        (f"stop,{FULL}", Usage(190_000, None), {}, SilentOverflow("stopped", 190_000)),
        (FULL, Usage(), {}, SilentOverflow("stopped")),
        ("model_context_window_exceeded_not", Usage(5, 5), {}, None),
        ("stop", Usage(131_073, 5), {"window": 131_072}, SilentOverflow("beyond", 131_072)),
        ("stop", Usage(131_072, 5), {"window": 131_072}, None),
        ("length", Usage(131_000, 0), {"window": 131_072}, SilentOverflow("truncated", 131_000)),
        ("max_tokens", Usage(131_000, 0), {}, SilentOverflow("truncated", 131_000)),
        ("length", Usage(131_000, None), {}, None),  # it does not say that there was no output
        ("length", Usage(131_000, 1), {}, None),
        ("stop", Usage(131_000, 0), {}, None),
        ("length", Usage(9, 0), {"window": 131_072}, None),  # for another reason
        ("length", Usage(None, 0), {}, None),
        ("stop", Usage(4_000, 5), {"sent": 20_000, "share": 0.4}, SilentOverflow("truncated", 4_000)),
        ("stop", Usage(8_000, 5), {"sent": 20_000, "share": 0.4}, None),
        ("stop", Usage(4_000, 5), {"sent": 20_000, "share": 0.4, "window": 17_000}, None),  # too small to be believed
        ("stop", Usage(1_023, 5), {"sent": 20_000, "share": 0.4}, None),  # nor this one
        ("stop", Usage(1_024, 5), {"sent": 20_000, "share": 0.4}, SilentOverflow("truncated", 1_024)),
        ("stop", Usage(4_000, 5, 16_000), {"sent": 20_000, "share": 0.4}, None),  # what the cache has is counted apart
        ("stop", Usage(4_000, 5, 4_000), {"sent": 20_000, "share": 0.4}, SilentOverflow("truncated", 4_000)),
        ("stop", Usage(0, 5), {"sent": 20_000, "share": 0.4}, None),
        ("", Usage(), {}, None),
    ],
)
def test_a_response_shows_that_its_request_was_too_long(
    finish: str, usage: Usage, facts: dict[str, Any], found: SilentOverflow | None
) -> None:
    assert find_silent_overflow(finish, usage, **facts) == found


@pytest.mark.parametrize("content", [b"", b" \r\n"])
def test_a_refusal_without_a_word_may_be_one(content: bytes) -> None:
    assert read_overflow(400, (), content) == read_overflow(413, (), content) == Overflow(is_guess=True)
    assert read_overflow(500, (), content) is read_overflow(200, (), content) is read_overflow(422, (), content) is None


@pytest.mark.parametrize(("value", "overflow"), REFUSALS)
def test_every_spelling_is_read(value: Any, overflow: Overflow) -> None:
    assert read(value) == overflow


@pytest.mark.parametrize("value", [each for each, _ in REFUSALS if "error" in each and isinstance(each["error"], dict)])
def test_an_error_in_place_of_an_answer_is_read(value: Any) -> None:
    assert read(value, 200) == read(value) == read(value, 500) == read(value, 424) == read(value, 503)


@pytest.mark.parametrize(
    ("overflow", "is_cured"),
    [
        (Overflow(8192, 5000, 4000), True),
        (Overflow(8192, 8192, 4000), False),
        (Overflow(8192, 9000), False),
        (Overflow(None, 9000, 10), False),
        (Overflow(8192, None, 10), False),
    ],
)
def test_whether_less_output_is_the_cure(overflow: Overflow, is_cured: bool) -> None:
    assert overflow.fits_with_less_output is is_cured


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (
            400,
            error("Invalid schema for function 'f': In context=(), 'required' is required.", code="invalid_function"),
        ),
        (400, error("max_tokens is too large: 100000. This model supports at most 4096 completion tokens.")),
        (400, error("The response was filtered due to the prompt", code="content_filter")),
        (
            400,
            error(
                "Invalid 'messages[0].content': string too long. Expected maximum length 1048576", code="string_above"
            ),
        ),
        (400, error("messages: text content blocks must be non-empty")),
        (400, error("You have exceeded your quota for context_length tokens", code="insufficient_quota")),
        (400, []),
        (400, 7),
        (
            413,
            error(
                "Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit 6000, Requested "
                "8000, please reduce your message size and try again.",
                type="tokens",
                code="rate_limit_exceeded",
            ),
        ),
        (400, error(RESULTED + " Limit of tokens per minute.")),
        (200, error(RESULTED, code=429)),
        (429, error(RESULTED, code="context_length_exceeded")),
        (401, error(RESULTED)),
        (404, error(RESULTED)),
        (503, error("The engine is currently overloaded, please try again later")),
        (200, {"id": "c", "choices": [{"message": {"role": "assistant", "content": RESULTED}}]}),
        (200, {"id": "r", "status": "completed", "error": None, "output": [{"type": "message", "content": WINDOW}]}),
        (200, {"message": RESULTED}),
        (200, error("Provider returned error", code=502, metadata={"raw": {"error": "overloaded"}})),
        (400, {"error": {"message": "no", "metadata": "none"}}),
    ],
)
def test_any_other_refusal_is_none(status: int, value: Any) -> None:
    assert read(value, status) is None


def test_a_body_too_large_is_one_whatever_it_says() -> None:
    assert read(
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds"}}, 413
    ) == Overflow(is_status=True)
    assert read_overflow(413, (), b"<html>413 Request Entity Too Large</html>") == Overflow(is_status=True)
    assert read(error(ANTHROPIC), 413) == Overflow(200000, 210266)


def test_a_refusal_in_plain_text_is_read() -> None:
    assert read_overflow(400, (), ANTHROPIC.encode()) == Overflow(200000, 210266)
    assert read_overflow(200, (), ANTHROPIC.encode()) is None


def test_a_compressed_refusal_is_read() -> None:
    packed = gzip.compress(json.dumps(error(ANTHROPIC)).encode(), mtime=0)
    assert read_overflow(400, ((b"content-encoding", b"gzip"),), packed) == Overflow(200000, 210266)
    assert read_overflow(400, ((b"content-encoding", b"br"),), packed) is None


def test_numbers_that_no_window_has_are_not_read() -> None:
    assert read(error(f"prompt is too long: {'9' * 9000} tokens > 200000 maximum")) == Overflow()
    assert read(error(OPENAI.format("you requested 5 tokens (9 in the completion)"))) == Overflow(8192, 0, 9)


def event(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def delta(**members: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": members, "finish_reason": None}]})


FLAT = {"type": "error", "code": "context_length_exceeded", "message": WINDOW, "param": "input"}
FAILED = {
    "type": "response.failed",
    "response": {"status": "failed", "error": {"code": FLAT["code"], "message": WINDOW}},
}


@pytest.mark.parametrize(
    ("stream", "overflow"),
    [
        (event(error(RESULTED, code="context_length_exceeded")), Overflow(8192, 9000)),
        (
            b": OPENROUTER PROCESSING\n\n" + delta(role="assistant", content="") + event(error(OPENROUTER)),
            Overflow(131072, 7884, 131072),
        ),
        (
            event({"type": "message_start"}, "message_start") + event({"type": "error", **error(ANTHROPIC)}, "error"),
            Overflow(200000, 210266),
        ),
        (event({"type": "response.created"}, "response.created") + event(FAILED, "response.failed"), Overflow()),
        (event(FLAT, "error"), Overflow()),
        (event(ANTHROPIC, "error"), Overflow(200000, 210266)),
        (event(RESULTED, "error").replace(b"\n", b"\r\n"), Overflow(8192, 9000)),
    ],
)
def test_an_overflow_inside_a_stream(stream: bytes, overflow: Overflow) -> None:
    assert read_stream_start(stream) == "refused"
    assert read_overflow(200, ((b"content-type", b"text/event-stream"),), stream) == overflow


@pytest.mark.parametrize(
    "stream",
    [
        delta(content="Hi"),
        delta(role="assistant", tool_calls=[{"index": 0}]),
        delta(role="assistant") + delta(reasoning_content="hm"),
        event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        event({"choices": [{"message": {"content": "x"}}]}),
        event({"choices": [{"text": "x"}]}),
        event("[DONE]"),
        event("no JSON"),
        event({"type": "content_block_start"}, "content_block_start"),
        event({"type": "response.output_item.added"}),
        event({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "oops"}}}),
        event({"type": "error", **error("Overloaded", type="overloaded_error")}, "error"),
        event(error(RESULTED, code="rate_limit_exceeded")),
        event({"choices": [], "error": "broken"}),
        delta(content="Hi") + event(error(RESULTED)),
    ],
)
def test_a_stream_that_has_begun_is_let_go(stream: bytes) -> None:
    assert read_stream_start(stream) == "content"
    assert read_overflow(200, (), stream) is None


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b": keep-alive\n\n",
        b"data: {",
        delta(content="Hi")[:-1],
        delta(role="assistant", content="", refusal=None),
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": [{"index": 0, "delta": None}]}),
        event({"type": "message_start", "message": {}}, "message_start") + event({"type": "ping"}, "ping"),
        event({"type": "response.created", "response": {"error": None}}) + event({"type": "response.in_progress"}),
        event({"type": "message_start"}) + event(error(RESULTED))[:-2],
    ],
)
def test_a_stream_that_has_only_opened_is_undecided(stream: bytes) -> None:
    assert read_stream_start(stream) == "undecided"


@given(st.sampled_from([200, 400, 413]), values, st.sampled_from(["error", "response", "choices", "detail", "code"]))
def test_reading_is_total(status: int, value: Any, name: str) -> None:
    assert read({name: value}, status) in (None, Overflow(is_status=True))
    assert read_stream_start(event({name: value})) in ("content", "undecided")


@given(st.binary())
def test_any_bytes_are_read(content: bytes) -> None:
    assert read_overflow(400, (), content) == (None if content.strip() else Overflow(is_guess=True))
    assert read_stream_start(content) in ("content", "undecided")


@pytest.mark.parametrize(
    ("message", "is_so"),
    [
        (
            "messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
            "conversation. Remove the block.",
            True,
        ),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", True),
        (
            "messages.5: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
            True,
        ),
        ("Provider returned error: The block is bound to a different conversation", True),
        ("Invalid signature of the request", False),
        (ANTHROPIC, False),
        ("", False),
    ],
)
def test_a_refusal_of_reasoning_is_told_by_its_words(message: str, *, is_so: bool) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    assert mentions("bound", (), body) == is_so
    packed = ((b"content-encoding", b"gzip"),)
    assert mentions("bound", packed, gzip.compress(body)) == is_so
    assert not mentions("bound", packed, body)


@pytest.mark.parametrize(
    ("message", "may_be"),
    [
        ("Invalid signature", True),
        ("Corrupted thought signature", True),
        ("`thinking` blocks do not belong here", True),
        ("reasoning_details: item 3 is of another conversation", True),
        ("Function tools with reasoning_effort are not supported", False),
        ("no such parameter", False),
    ],
)
def test_any_words_about_reasoning_are_enough_where_it_may_be_so(message: str, *, may_be: bool) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    assert mentions("reasoning", (), body) == may_be
    assert not mentions("reasoning", ((b"content-encoding", b"gzip"),), body)


@pytest.mark.parametrize(("said", "is_about"), [(b"Unknown Tool", True), (b"function x", True), (b"busy", False)])
def test_an_error_may_be_about_tools(said: bytes, is_about: bool) -> None:
    assert mentions("tools", (), said) is is_about
    assert not mentions("tools", ((b"content-encoding", b"gzip"),), said)


def say(message: str, **members: Any) -> dict[str, Any]:
    return error(message, **{"type": "server_error", **members})


ROLES = "conversation roles must alternate user and assistant roles except for tool calls and results."
JINJA = {"error": {"code": 500, "message": f"...\nError: Jinja Exception: After it, {ROLES}", "type": "server_error"}}


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (500, JINJA),
        (500, say("Engine protocol predict request returned 500: " + json.dumps(JINJA))),  # LM Studio
        (500, {"status": 500, "detail": "Last message role should be 'user'"}),
        (500, say("chat messages must alternate roles between 'user' and 'assistant'.")),
        (500, {"object": "error", "message": "No user query found in messages.", "type": "InternalServerError"}),
        (500, say("litellm.BadRequestError: OpenAIException - tool id not found", code="500")),
        (502, say("Provider returned error", metadata={"raw": '{"message":"x","type":"invalid_request_error"}'})),
        (503, say("An error occurred (ValidationException) when calling the Converse operation: x")),
        (424, say("Template error: invalid operation", type="template_error")),
        (200, say("unsupported content", code=400)),
        (500, {"error": 'template: :3: chat_template raised "x"'}),
        (400, say("anything")),
        (404, []),
        (422, {"detail": [{"loc": ["body"]}]}),
    ],
)
def test_a_refusal_is_known_by_what_it_says(status: int, value: Any) -> None:
    assert read_refusal(status, (), json.dumps(value).encode()) == "form"


@pytest.mark.parametrize(
    ("status", "value"),
    [
        (500, say("Internal server error", type="server_error")),
        (500, say("CUDA out of memory: tried to allocate 2.00 GiB", code=500)),
        (502, "<html>Bad Gateway</html>"),
        (503, say("Overloaded", type="overloaded_error")),
        (504, say("upstream request timeout")),
        (529, say("Overloaded", type="overloaded_error")),
        (500, say("Rate limit reached; see invalid_request_error", code=500)),
        (401, say("must alternate")),
        (429, say("must alternate")),
        (302, say("must alternate")),
        (200, {"choices": [{"message": {"content": "roles must alternate"}}]}),
        (200, {"id": "error", "choices": [{"message": {"content": "roles must alternate"}}]}),
    ],
)
def test_what_is_broken_busy_or_forbidden_refuses_no_form(status: int, value: Any) -> None:
    assert read_refusal(status, (), json.dumps(value).encode()) is None


def test_a_refusal_as_too_long_comes_first_and_what_cannot_be_read_says_nothing() -> None:
    assert read_refusal(500, (), json.dumps(error(RESULTED)).encode()) == Overflow(8192, 9000)
    assert read_refusal(500, ((b"content-encoding", b"unheard-of"),), json.dumps(JINJA).encode()) is None
    assert read_refusal(500, (), b"") is None


@pytest.mark.parametrize("value", [JINJA, say("bad", code=400), {"type": "error", **say(ROLES)}])
def test_a_refusal_of_the_form_inside_a_stream(value: Any) -> None:
    stream = delta(role="assistant") + event(value, "error")
    assert read_stream_start(stream) == "refused"
    assert read_refusal(200, ((b"content-type", b"text/event-stream"),), stream) == "form"


@pytest.mark.parametrize(
    ("said", "is_about"),
    [
        (ROLES, True),
        ("chat messages must alternate roles between 'user' and 'assistant'", True),
        ('roles must alternate between "user" and "assistant", but found multiple "user" roles in a row', True),
        ("multiple user roles in a row", True),
        ("consecutive user messages are not supported", True),
        ("unknown tool", False),
    ],
)
def test_roles_that_do_not_alternate_are_told(said: str, *, is_about: bool) -> None:
    assert mentions("roles", (), json.dumps(say(said)).encode()) is is_about
    assert not mentions("roles", ((b"content-encoding", b"unheard-of"),), said.encode())
