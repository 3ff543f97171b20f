"""docs/operators.md: each example runs as it stands, against a provider that answers in the place of those it names."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.upstream import ScriptedCall
from proxy.server.api.maps import MapOrder
from proxy.server.endpoints import read_document
from tests.clients.script import Call, Turn
from tests.support.answers import Tokens, reply, serve_answers

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
EXAMPLES = re.findall(r"(?s)```python\n(.*?)```", PAGE)
VALUE = {"mood": "good", "name": "Ada"}


@pytest.fixture
def upstream() -> Iterator[str]:
    """A provider whose answers fit the schemas of the page, and that calls a tool where there is one."""

    async def answer(call: ScriptedCall) -> WholeResponse:
        asked = json.loads(call.body)
        is_called = asked.get("tools") and asked["messages"][-1]["role"] != "tool"
        calls = (Call("read_file", {"path": "notes.txt"}),) if is_called else ()
        return reply(call, Turn(json.dumps(VALUE), calls), Tokens(10, answer=5))

    with serve_answers(answer) as url:
        yield url


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
