"""What providers say themselves of a cache that was not read, and the markers of a whole request."""

from typing import Any

import pytest

from proxy.model.card import CacheTerms
from proxy.wire import FORMATS
from proxy.wire.body import split_body
from proxy.wire.format import read_diagnosis
from proxy.wire.messages import list_markers


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ({"type": "model_changed"}, "model"),
        ({"type": "system_changed"}, "system"),
        ({"type": "tools_changed"}, "tools"),
        ({"type": "messages_changed"}, "message"),
        ({"type": "previous_message_not_found"}, ""),
        ({"type": "unavailable"}, ""),
        (None, ""),
    ],
)
def test_a_reason_of_anthropic_names_a_cause(reason: Any, cause: str) -> None:
    assert read_diagnosis({"diagnostics": {"cache_miss_reason": reason}}) == cause


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ({"type": "cache_miss", "reason": "tools_changed"}, "tools"),
        ({"type": "cache_miss", "reason": {"type": "instructions_changed"}}, "system"),
        ({"type": "cache_miss", "reason": "input_changed"}, "message"),
        ({"type": "cache_miss", "reason": "settings_changed"}, "parameters"),
        ({"type": "cache_hit"}, ""),
        ({"type": "comparison_response_not_found"}, ""),
        ("tools", ""),
    ],
)
def test_a_diagnosis_of_openai_names_a_cause(found: Any, cause: str) -> None:
    assert read_diagnosis({"prompt_cache_diagnostics": found}) == cause


def test_a_response_that_says_nothing_names_none() -> None:
    assert read_diagnosis({"diagnostics": None}) == ""
    assert read_diagnosis({}) == ""


def test_markers_of_a_request_are_listed_once_each() -> None:
    body = b'{"system":[{"cache_control":{"type":"ephemeral"}}],"messages":[{"cache_control" : {"ttl": "1h"}},'
    assert list_markers(body + b'{"cache_control":{"type":"ephemeral"}}]}') == ("1h", "5m")
    assert list_markers(b'{"messages":[]}') == ()


def test_the_terms_of_a_whole_request_have_all_its_markers_and_what_its_members_ask_for() -> None:
    marker = b'{"cache_control":{"type":"ephemeral","ttl":"1h"}}'
    content = b'{"tools":[%b],"prompt_cache_options":{"ttl":"24h","mode":"explicit"},"messages":[{},%b]}' % (
        marker,
        marker,
    )
    body = split_body(content, "messages")
    assert body is not None
    terms = FORMATS["chat_completions"].read_terms(body)
    assert terms == CacheTerms(messages=("1h",), lifetime="24h", is_explicit=True)
