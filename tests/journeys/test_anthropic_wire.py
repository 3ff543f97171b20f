"""Anthropic's wire through the proxy: the bytes are the provider's, and the log can tell what was said."""

import json
from pathlib import Path

import httpx

from tests.journeys.provider import WORDS, run_provider
from tests.journeys.running import run_command, run_proxy

BODY = {"model": "m", "max_tokens": 99, "stream": True, "messages": [{"role": "user", "content": "Tell me."}]}
HEADERS = {"x-api-key": "sk-ant-0123456789abcdef", "anthropic-version": "2023-06-01", "x-claude-code-session-id": "c1"}


def test_a_streamed_message_is_the_providers_and_is_understood(tmp_path: Path) -> None:
    with run_provider() as provider, run_proxy(tmp_path, provider.base_url) as proxy:
        answers = [
            httpx.post(f"{origin}/v1/messages?beta=true", json=BODY, headers=HEADERS)
            for origin in (provider.base_url.removesuffix("/v1"), proxy.origin)
        ]
        direct, through = provider.seen
    assert answers[0].content == answers[1].content
    assert (direct.target, direct.body) == (through.target, through.body)
    assert through.target == "/v1/messages?beta=true"
    (session,) = json.loads(run_command("sessions", "--json", "--data", str(tmp_path)).stdout)
    assert (session["family"], session["sent_tokens"], session["output_tokens"]) == ("claude-code:c1:main", 7, 11)
    exported = json.loads(run_command("export", session["id"], "--openai", "--data", str(tmp_path)).stdout)
    assert exported == [*BODY["messages"], {"role": "assistant", "content": [{"type": "text", "text": "".join(WORDS)}]}]  # type: ignore[misc]
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and HEADERS["x-api-key"].encode() in p.read_bytes()]
