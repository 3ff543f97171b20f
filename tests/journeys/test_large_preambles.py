"""Tools that alone are above the ceiling: managing goes on with a budget for the messages, and it is said once."""

from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.journeys.running import TOKEN, run_proxy
from tests.support.answers import serve_answers
from tests.support.plain_wires import WIRES, PlainClient, PlainUpstream, make_tool, say, write_prose

CALLS = 30


@pytest.mark.parametrize("wire", WIRES)
def test_tools_above_the_ceiling_leave_the_rhythm_of_epochs_and_are_told_once(tmp_path: Path, wire: str) -> None:
    upstream = PlainUpstream(wire)
    with (
        serve_answers(upstream.answer) as url,
        run_proxy(tmp_path, url, "--ceiling", "8000") as proxy,
    ):
        offered = [make_tool(wire, f"tool_{number}", write_prose(160, number)) for number in range(65)]
        client = PlainClient(proxy.origin, wire, offered, [say(wire, "Mend the parser.")])
        client.work(range(CALLS), lambda number: write_prose(260, 1000 + number))
        named = {"authorization": f"Bearer {TOKEN}"}
        findings = httpx.get(f"{proxy.origin}/-/api/doctor", headers=named, timeout=60).json()["findings"]
    sent = [upstream.list_items(place) for place in range(CALLS)]
    broken = [one for one, two in pairwise(sent) if two[: len(one)] != one]
    epochs = len({each["x-palimpsest-epoch"] for each in client.labels if "x-palimpsest-epoch" in each})
    assert 2 <= epochs <= CALLS // 3 and len(broken) <= epochs
    told = client.list_told("the system prompt and the tools alone have")
    assert told == [0] and "raise the ceiling or offer fewer tools" in client.labels[0]["x-palimpsest-notice"]
    assert not client.list_told("must stay")
    (found,) = [each for each in findings if each["name"] == "preamble"]
    assert found["state"] == "warning" and "offer fewer tools" in found["advice"]
