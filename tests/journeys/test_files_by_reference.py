"""Files that a request names and does not have: their sizes are learned from the upstream's counts."""

import json
from pathlib import Path

import pytest

from tests.journeys.running import run_proxy
from tests.support.answers import serve_answers
from tests.support.plain_wires import Item, PlainClient, PlainUpstream, answer, count, make_tool, say, write_prose

URL = "https://e.example/a.pdf"
PARTS: list[tuple[str, Item]] = [
    ("chat", {"type": "file", "file": {"file_id": "file-abc"}}),
    ("messages", {"type": "document", "source": {"type": "file", "file_id": "file_011"}}),
    ("messages", {"type": "document", "source": {"type": "url", "url": URL}}),
    ("responses", {"type": "input_file", "file_id": "file-abc"}),
    ("responses", {"type": "input_file", "file_url": URL}),
]
CALLS = 12


def drive(tmp_path: Path, wire: str, part: Item, tokens: int) -> tuple[PlainClient, PlainUpstream]:
    """Send a growing session with a file that its provider counts as so many tokens."""

    def respond(body: Item) -> tuple[int, Item]:
        named = "file-abc", "file_011", URL
        files = tokens * sum(json.dumps(body).count(f'"{each}"') for each in named)
        return 200, answer(wire, count(body) + files)

    upstream = PlainUpstream(wire, respond)
    with serve_answers(upstream.answer) as url, run_proxy(tmp_path, url) as proxy:
        tools = [make_tool(wire, "read", "Reads a file.")]
        client = PlainClient(proxy.origin, wire, tools, [say(wire, "Read this, then look at the code.", part)])
        client.work(range(CALLS), lambda number: write_prose(700, number))
    return client, upstream


@pytest.mark.parametrize(("wire", "part"), PARTS)
def test_a_short_session_with_a_file_by_reference_passes_unchanged(tmp_path: Path, wire: str, part: Item) -> None:
    client, upstream = drive(tmp_path, wire, part, 900)
    assert not [each for each in client.labels if "x-palimpsest-epoch" in each]
    assert upstream.list_items(-1)[-len(client.items) :] == client.items


def test_a_file_of_150_000_tokens_is_managed_from_the_call_behind_its_first_usage_on(tmp_path: Path) -> None:
    wire, part = PARTS[0]
    client, _ = drive(tmp_path, wire, part, 150_000)
    known = [each.get("x-palimpsest-tokens", "") for each in client.labels]
    sizes = [int(each.partition("client=")[2].partition(",")[0] or 0) for each in known]
    assert sizes[0] < 10_000 and min(sizes[1:]) > 145_000 and max(sizes) < 180_000
    assert client.list_told("above the ceiling") and "x-palimpsest-epoch" in client.labels[-1]
