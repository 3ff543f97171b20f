"""Texts that some pattern reads again from each of their characters: the call is answered, and nobody waits for it.

What is measured is processor time, of the server and its worker process together: other programs do not count.
"""

import contextlib
import json
import os
import random
from pathlib import Path

import httpx
import pytest

from tests.journeys.running import TOKEN, Running, run_command, run_proxy
from tests.journeys.test_managed import Dummy
from tests.support.answers import serve_answers
from tests.support.compacting import REPORT, is_own

STEPS, AT = 26, (2, 9)
# An ordinary text of this size takes 4 to 6 s, half of it for the start of both processes.
MOST_SECONDS = 20.0
BLANKS, LINES = " " * 20_000, "\n" * 20_000
CJK = random.Random(1)


class Reporter(Dummy):
    """A provider that gives a report when it is asked for one."""

    def say(self, body: bytes) -> str:
        return REPORT if is_own(body) else super().say(body)


def write_paragraphs(size: int) -> str:
    return "\n".join("".join(chr(0x4E00 + CJK.randrange(6000)) for _ in range(2000)) for _ in range(size // 2000))


TEXTS = {
    "markers": (f"page:\n<{BLANKS}x\n[{LINES}x, {BLANKS}x", "[FILE: " * 3_000),
    "commands": ("<<a\n" * 5_000, f"sed -i{BLANKS}x\ntouch{BLANKS}x\n" + "```diff\n" * 3_000),
    "actions": ("", f"THOUGHT: a{LINES}x" + "#\n" * 10_000),
    "fences": (f"```json{LINES}x", "`" * 20_000 + "x"),
    "paragraphs": (write_paragraphs(120_000), ""),
}
"""For each, what tools return and users paste, and what the model says and types."""


def measure_processor(proxy: Running) -> float:
    """Seconds of processor time of the server and of its children so far."""
    pid = proxy.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = 0
    for each in (pid, *children):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15] if each == pid else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def grow(proxy: Running, output: str, said: str) -> str:
    """The calls of an agent with and without tools, with these texts among them; the id of its session."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "agent"},
        {"role": "user", "content": "Mend it."},
    ]
    headers = {"authorization": "Bearer sk-agent-0123456789", "x-palimpsest-session": "agent"}
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    with httpx.Client(base_url=proxy.base_url, headers=headers, timeout=600) as client:
        for step in range(STEPS):
            is_odd = step in AT
            call = {
                "name": "read",
                "arguments": json.dumps({"path": f"/w/{step}.py", "command": said if is_odd else ""}),
            }
            shown = output if is_odd and output else f"{step} {random.Random(step).randbytes(1500).hex()}"
            messages += [
                {"role": "assistant", "content": f"```bash\ncat {step}\n```\n{said if is_odd else ''}"},
                {"role": "user", "content": f"Observation: {shown}"},
                {"role": "assistant", "content": said if is_odd and said else f"I read part {step} of it.",
                 "tool_calls": [{"id": f"call_{step:024x}", "type": "function", "function": call}]},
                {"role": "tool", "tool_call_id": f"call_{step:024x}", "content": shown},
            ]  # fmt: skip
            if step % 6 == 5:
                messages.append({"role": "user", "content": f"Go on with part {step}. {output if step == 11 else ''}"})
            answered = client.post("/chat/completions", json={"model": "gpt-4o", "messages": messages, "tools": tools})
            assert answered.status_code == 200
        return answered.headers["x-palimpsest-session"]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_takes_time_in_proportion_to_its_length(name: str, tmp_path: Path) -> None:
    provider = Reporter()
    output, said = TEXTS[name]
    with contextlib.ExitStack() as running:
        url = running.enter_context(serve_answers(provider.answer))
        proxy = running.enter_context(run_proxy(tmp_path, url, "--ceiling", "16000"))
        session = grow(proxy, output, said)
        where = ("--port", str(proxy.port), "--admin-token", TOKEN, "--data", str(tmp_path))
        run_command("compact", session, *where)  # it fails if a report is being made just now
        assert measure_processor(proxy) < MOST_SECONDS
        assert provider.asked
        assert proxy.stop() == 0
