"""Anthropic's SDK at a provider behind litellm: it asks for clearing, and reads in its own types what was cleared."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaClearToolUses20250919EditResponse as Cleared
from anthropic.types.beta import BetaMessage

from tests.journeys.test_litellm_upstream import configure, make_messages
from tests.support import provider_answers as says
from tests.support.scripted import LIMIT, ScriptedUpstream
from tests.support.server_process import running

MODEL = "hosted_vllm/m"
BETA = "context-management-2025-06-27"
TOOLS: Any = [{"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}}]
EDITS: Any = [
    {"type": "clear_thinking_20251015", "keep": "all"},
    {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 9_000},
        "exclude_tools": ["list"],
    },
]


async def ask(client: anthropic.AsyncAnthropic, messages: Any, *, is_stream: bool) -> BetaMessage:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "messages": messages, "tools": TOOLS, "betas": [BETA]}
    asked["context_management"] = {"edits": EDITS}
    if not is_stream:
        answer: BetaMessage = await client.beta.messages.create(**asked)
        return answer
    async with client.beta.messages.stream(**asked) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_sdk_of_anthropic_reads_what_was_cleared_turn_after_turn(tmp_path: Path, is_stream: bool) -> None:
    async with ScriptedUpstream() as provider, ScriptedUpstream() as direct, asyncio.timeout(LIMIT):
        provider.answer_with(says.stream(says.CHAT_EVENTS) if is_stream else says.whole(says.CHAT))
        upstreams = configure(provider, direct, models=["hosted_vllm/*"])
        async with running(direct, tmp_path, upstreams=upstreams) as server:
            history: list[Any] = []
            told: list[int] = []
            headers = {"x-session-id": "test"}
            url = f"http://127.0.0.1:{server.port}"
            async with anthropic.AsyncAnthropic(
                api_key="k", base_url=url, max_retries=0, default_headers=headers
            ) as sdk:
                for message in make_messages():
                    history.append(message)
                    if message["role"] == "assistant":
                        continue
                    answer = await ask(sdk, history, is_stream=is_stream)
                    assert answer.stop_reason == "tool_use"
                    assert answer.context_management is not None
                    uses = [each for each in answer.context_management.applied_edits if isinstance(each, Cleared)]
                    told.append(sum([each.cleared_tool_uses for each in uses]))
                    assert (sum([each.cleared_input_tokens for each in uses]) > 0) == (told[-1] > 0)
        assert told == sorted(told)
        assert told[0] == 0 < told[-1] < 40
        assert len(set(told)) > 2  # several epochs, and the same number under each
        assert not any(b"context_management" in asked.body for asked in provider.requests)
