"""The Responses wire by the openai SDK: an agent far past a small ceiling, at an upstream that checks all its rules."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.lab.upstream import serve_upstream
from tests.journeys.running import run_command, run_proxy
from tests.support.response_sessions import TOOLS
from tests.support.strict_responses import StrictResponses

FIELDS = {"x-palimpsest-session": "agent", "x-palimpsest-ceiling": "8000"}
STEPS = 45


def work(client: openai.OpenAI, history: list[Any], *, is_stream: bool) -> list[Any]:
    """Ask, and add what the model says and the outputs of what it calls. Return the items of the answer."""
    asked: dict[str, Any] = {"model": "gpt-5.6", "instructions": "You are an agent.", "input": history, "tools": TOOLS}
    asked |= {"store": False, "include": ["reasoning.encrypted_content"]}
    if is_stream:
        with client.responses.create(stream=True, **asked) as events:
            response = next(event.response for event in events if event.type == "response.completed")
    else:
        response = client.responses.create(**asked)
    history += response.output
    for item in response.output:
        if item.type == "shell_call":
            outcome = {"type": "exit", "exit_code": 0}
            said: Any = [{"stdout": "line\n" * 300, "stderr": "", "outcome": outcome}]
        else:
            said = f"line {len(history)} of other.path\n" * 60
        if getattr(item, "call_id", ""):
            history.append({"type": f"{item.type}_output", "call_id": item.call_id, "output": said})
    if not any(getattr(item, "call_id", "") for item in response.output):
        history.append({"role": "user", "content": f"Now look at part {len(history)}."})
    return list(response.output)


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_agent_far_past_its_ceiling_is_never_refused(tmp_path: Path, is_stream: bool) -> None:
    upstream = StrictResponses(int(is_stream))
    history: list[Any] = [{"role": "user", "content": "Mend the tests of the parser."}]
    with serve_upstream(upstream) as base_url, run_proxy(tmp_path, base_url, COMPACTION__AUTO="false") as proxy:
        options = {"api_key": "sk-journey", "max_retries": 0, "default_headers": FIELDS}
        with openai.OpenAI(base_url=proxy.base_url, **options) as client:  # type: ignore[arg-type]
            for _ in range(STEPS):
                work(client, history, is_stream=is_stream)
            counted = client.responses.input_tokens.count(model="gpt-5.6", input=history, tools=TOOLS)  # type: ignore[arg-type]
    bodies = [call.body for call in upstream.calls if isinstance(call.body, bytes)]
    assert upstream.refusals == [] and len(bodies) == STEPS + 1
    assert len(bodies[STEPS - 1]) < 60_000 < len(json.dumps([str(item) for item in history]))
    assert counted.input_tokens == len(bodies[-1]) // 4 < 20_000
    (session,) = json.loads(run_command("sessions", "--json", "--data", str(tmp_path)).stdout)
    assert session["family"] == "agent"
