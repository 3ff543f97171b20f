"""docs/operators.md: each example runs as it stands, against a provider that answers in the place of those it names."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from proxy.server.api.maps import MapOrder
from proxy.server.endpoints import read_document
from tests.journeys.provider import run_application

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
EXAMPLES = re.findall(r"(?s)```python\n(.*?)```", PAGE)
VALUE = {"mood": "good", "name": "Ada"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.fixture
def upstream() -> Iterator[str]:
    """A provider whose answers fit the schemas of the page, and that calls a tool where there is one."""

    async def answer(request: Request) -> JSONResponse:
        asked: dict[str, Any] = await request.json()
        message: dict[str, Any] = {"role": "assistant", "content": json.dumps(VALUE)}
        if asked.get("tools") and asked["messages"][-1]["role"] != "tool":
            called = {"name": "read_file", "arguments": '{"path": "notes.txt"}'}
            message["tool_calls"] = [{"id": "c1", "type": "function", "function": called}]
        finish = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return JSONResponse({"id": "x", "choices": [choice], "usage": USAGE})

    with run_application(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, r"(?s)'mood': 'good'.*\n30 "),
        (1, r"\['Ada', 'Ada'\] 0"),
        (2, r"(?s)notes\.txt \{.*README\.md \{.*\n4 |README\.md \{.*notes\.txt \{.*\n4 "),
        (3, r"(?s)9 True 1.*\n10 0 \d+"),
    ],
)
def test_each_example_runs(tmp_path: Path, upstream: str, number: int, printed: str) -> None:
    (tmp_path / "notes.txt").write_text("From Ada.\nFrom Ada, too.\n")
    settings = {"PALIMPSEST_UPSTREAMS": f'[{{"base_url": "{upstream}"}}]', "PALIMPSEST_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-W", "error", "-c", EXAMPLES[number]]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(printed, done.stdout), done.stdout


def test_all_examples_are_run_and_the_one_for_http_is_an_order() -> None:
    assert len(EXAMPLES) == 4
    (order,) = re.findall(r"(?s)-d '(\{.*?\})'\n", PAGE)
    assert read_document(order.encode(), MapOrder).inputs == ["one", "two"]
