"""Anthropic's wire as Bedrock and Vertex spell it: errors, names of models, a version in the body.

The texts are those that public threads quote (WIRES 1.7, 7). Their own paths, with the model in them, pass unread.
"""

import json
from typing import Any

import pytest

from proxy.context.verbatim import may_bind_reasoning
from proxy.wire import COUNT_ENDINGS, FORMATS, find_wire
from proxy.wire.body import split_body
from proxy.wire.overflow import Overflow, mentions, read_overflow

RETURNED = "The model returned the following errors: "


BOUND = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
LONG = "prompt is too long: 208310 tokens > 200000 maximum"


def nest(message: str) -> dict[str, Any]:
    """An error as Vertex passes it on: the provider's own, as a text."""
    inner = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
    return {"error": {"code": 400, "message": inner, "status": "INVALID_ARGUMENT"}}


@pytest.mark.parametrize(
    ("status", "error", "overflow"),
    [
        (400, {"message": "Input is too long for requested model."}, Overflow()),
        (400, {"message": f"{RETURNED}Input is too long for requested model."}, Overflow()),
        (400, {"message": RETURNED + LONG}, Overflow(200_000, 208_310)),
        (400, nest(LONG), Overflow(200_000, 208_310)),
        (400, [nest(LONG)], Overflow(200_000, 208_310)),
        (
            400,
            {"message": f"{RETURNED}input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, x"},
            Overflow(200_000, 198_000, 8192),
        ),
        (400, {"message": "Too many tokens, please wait before trying again."}, None),
        (429, {"message": "Too many tokens per day, please wait before trying again."}, None),
        (400, {"message": "The provided model identifier is invalid."}, None),
        (400, nest("Unexpected value(s) `x` for the `anthropic-beta` header"), None),
    ],
)
def test_too_long_is_read_and_throttling_is_not(status: int, error: Any, overflow: Overflow | None) -> None:
    assert read_overflow(status, (), json.dumps(error).encode()) == overflow


@pytest.mark.parametrize("error", [{"message": RETURNED + BOUND}, nest(BOUND), [nest(BOUND)]])
def test_a_refusal_of_thinking_is_read(error: Any) -> None:
    content = json.dumps(error).encode()
    assert mentions("bound", (), content) and mentions("reasoning", (), content)


@pytest.mark.parametrize(
    ("model", "is_bound"),
    [
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", False),
        ("us.anthropic.claude-fable-5-2-v1:0", True),
        ("claude-opus-4-5@20251101", False),
        ("claude-opus-5-5@default", True),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0", False),
        ("arn:aws:bedrock:us-east-1:1:application-inference-profile/abc123", True),  # nobody knows which it is
        ("", True),
    ],
)
def test_which_models_bind_their_thinking(model: str, *, is_bound: bool) -> None:
    assert may_bind_reasoning(model) is is_bound


@pytest.mark.parametrize("behavior", ["drop", "drop_block", "error"])
def test_the_member_that_says_what_becomes_of_bound_thinking(behavior: str) -> None:
    form = FORMATS["anthropic_messages"]
    thinking = {"type": "adaptive", "block_binding": {"mismatch_behavior": behavior}}
    body = {"anthropic_version": "bedrock-2023-05-31", "anthropic_beta": ["x"], "thinking": thinking, "messages": []}
    split = split_body(json.dumps(body).encode(), form.items_key)
    assert split is not None
    assert bool(form.find_management(split)) is (behavior == "error")


@pytest.mark.parametrize(
    "path",
    [
        "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/invoke",
        "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/invoke-with-response-stream",
        "/v1/projects/p/locations/global/publishers/anthropic/models/claude-opus-5:streamRawPredict",
        "/v1/projects/p/locations/global/publishers/anthropic/models/count-tokens:rawPredict",
    ],
)
def test_paths_with_the_model_in_them_are_no_wire(path: str) -> None:
    assert (find_wire(path), find_wire(path, COUNT_ENDINGS)) == ("", "")
