"""docs/sdk.md: each example runs as it stands, against a provider that answers in the place of those that it names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.provider import run_provider

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"(?s)```python\n(.*?)```", PAGE)
# Ends with the id of a session that it has begun, for the example that goes on with one.
BEGIN = """
import asyncio
from proxy import Session
async def main():
    async with await Session.create(model="m") as session:
        await session.send("first")
        print(session.id)
asyncio.run(main())
"""


def run(code: str, folder: Path, upstream: str) -> str:
    """What a program prints. The settings name the upstream, and the example's own address leads there."""
    code = code.replace("http://127.0.0.1:11434/v1", upstream)
    variables = {
        "PALIMPSEST_UPSTREAMS": f'[{{"base_url": "{upstream}"}}]',
        "PALIMPSEST_DATA": str(folder / "data"),
    }
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_runs(tmp_path: Path, number: int) -> None:
    (tmp_path / "notes.txt").write_text("A note.\n")
    with run_provider() as provider:
        code = EXAMPLES[number]
        if "SESSION" in code:
            session = run(BEGIN, tmp_path, provider.base_url).strip()
            code = f"SESSION = {session!r}\n{code}"
        printed = run(code, tmp_path, provider.base_url)
        assert [each for each in provider.seen if each.target == "/v1/chat/completions"]
    assert ("UpstreamRefused" in code) == (not printed)
