"""openai-python over a long chain of stored responses, each call by the id of the last one.

Rule: the provider refuses whatever its API would.
"""

import json
from pathlib import Path
from typing import Any

import openai

from proxy.lab.upstream import serve_upstream
from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.support.storing_responses import StoringResponses

KEY = "sk-agent-0123456789"
GIVEN: dict[str, Any] = {
    "model": "gpt-5.6",
    "instructions": "You are an agent.",
    "tools": [{"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}],
    "store": True,
}
CEILING = {"x-palimpsest-ceiling": "8000"}


class Agent:
    """An agent on the SDK, which has nothing of its history but the id of the last response."""

    def __init__(self) -> None:
        self.last = self.mode = ""
        self.next: Any = "Mend the tests of the parser."
        self.steps = self.size = 0

    def step(self, proxy: Running, *, is_stream: bool = False) -> str:
        """One call, and the outputs of the tools that it asks for. Return the session, which a stream does not tell."""
        asked: dict[str, Any] = {**GIVEN, "input": self.next, "extra_headers": CEILING}
        if self.last:
            asked["previous_response_id"] = self.last
        with openai.OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, timeout=60) as sdk:
            if is_stream:
                with sdk.responses.stream(**asked) as stream:
                    response: Any = stream.get_final_response()
                session = ""
            else:
                raw = sdk.responses.with_raw_response.create(**asked)
                response, session = raw.parse(), raw.headers["x-palimpsest-session"]
                self.mode = raw.headers.get("x-palimpsest-mode", "")
        self.size += len(json.dumps(self.next)) + len(response.model_dump_json())
        self.last, self.next = response.id, []
        self.steps += 1
        for item in response.output:
            if call := getattr(item, "call_id", ""):
                output: Any = f"def function_{self.steps}(value):\n    return other_{self.steps}.path\n" * 25
                if item.type == "shell_call":
                    output = [{"stdout": output, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
                self.next.append({"type": f"{item.type}_output", "call_id": call, "output": output})
        if not self.next:
            self.next = [{"role": "user", "content": f"Go on with part {self.steps}."}]
        return session


def test_a_chain_of_stored_responses_is_one_session_that_is_shortened(tmp_path: Path) -> None:
    upstream, agent = StoringResponses(), Agent()
    with serve_upstream(upstream) as url:
        sessions: set[str] = set()
        for run in range(3):  # with restarts in between
            with run_proxy(tmp_path, url) as proxy:
                for n in range(12):
                    sessions.add(agent.step(proxy, is_stream=n % 3 == 0))
                    raw = json.loads(upstream.raws[-1])
                    if run == n == 0:
                        assert "previous_response_id" not in raw
                    elif not run and n < 5:  # short: by the client's own bytes
                        assert raw["previous_response_id"] and len(raw["input"]) < 5
    (session,) = sessions - {""}
    assert upstream.refusals == []
    written = [json.loads(raw) for raw in upstream.raws if b"previous_response_id" not in raw]
    assert len(written) > 20 and len(json.dumps(written[-1]["input"])) < 0.6 * agent.size
    assert {each["instructions"] for each in written} == {"You are an agent."}
    listed = run_command("sessions", "--data", str(tmp_path)).stdout.decode()
    assert listed.count(session[:8]) == 1
    assert run_command("verify", "--data", str(tmp_path)).returncode == 0


def test_what_was_erased_is_not_written_out_but_goes_on_at_the_provider(tmp_path: Path) -> None:
    upstream, agent = StoringResponses(), Agent()
    with serve_upstream(upstream) as url, run_proxy(tmp_path, url) as proxy:
        session = [agent.step(proxy) for _ in range(5)][-1]
        erased = run_command("erase", session, "--yes", "--data", str(tmp_path), "--admin-token", TOKEN)
        assert (erased.returncode, agent.mode) == (0, "")
        agent.step(proxy)
        assert b"previous_response_id" in upstream.raws[-1] and upstream.refusals == []
        assert "the log does not have all of response 'resp_5' (any more)" in agent.mode
