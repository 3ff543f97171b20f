"""The gallery and the stand-in for the summariser, on synthetic sessions through a proxy of their own."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gallery import classify, write
from benchmarks.playback import OwnRequest, TokenCounter, read_sessions
from benchmarks.summaries import Figures, StandIn, judge, make_session, render, run
from proxy.model.messages import LEDGER_HEAD

RawMessage = dict[str, Any]
STEPS = 90


@pytest.mark.no_cover
def test_the_gallery_shows_what_a_model_gets(tmp_path: Path) -> None:
    file = tmp_path / "sessions.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.write("\n".join(json.dumps(make_session(STEPS, number)) for number in range(2)))
    (recorded,) = read_sessions(file, [1])
    first, last = write(recorded, [5, STEPS - 1, STEPS], tmp_path, "--ceiling", "16000")
    assert (first.name, last.name) == ("synthetic-1-5.md", f"synthetic-1-{STEPS - 1}.md")
    assert "OURS" not in first.read_text()
    text = last.read_text()
    assert "**OURS: ledger**" in text and LEDGER_HEAD in text
    assert "*Not sent from here on: " in text
    assert f"| the client's request | {len(recorded['steps']) * 2 + 2} |" in text
    assert "more characters of the preamble" in text


def test_each_message_is_known_by_what_the_client_has() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    client: list[RawMessage] = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a long output"},
        {"role": "user", "content": "Do it."},
    ]
    ledger = {"role": "user", "content": f"[{LEDGER_HEAD}: earlier work]"}
    arrived = [client[0], ledger, client[1], {**client[2], "content": "[tool: short]"}, client[3]]
    shown = [(each.kind, each.place) for each in classify(client, arrived)]
    own = "client's own"
    assert shown == [(own, 0), ("ledger", None), (own, 1), ("shortened", 2), (own, 3)]
    report = {"role": "user", "content": "[Report by palimpsest on messages 1 to 2]"}
    note = {"role": "user", "content": "something else"}
    assert [each.kind for each in classify(client, [report, note])] == ["summary", "other text of ours"]


@pytest.mark.no_cover
def test_summaries_are_made_of_originals_within_the_share_of_the_session() -> None:
    figures = run([make_session(100)], 16_000)
    assert figures.covered > 20, "how many reports cover them depends on how quickly the stand-in answers"
    assert figures.standing >= 0.95 * figures.covered
    assert 0 < figures.auxiliary <= 0.05 * figures.own
    assert f"{figures.standing} of {figures.covered}" in render(16_000, figures)


def test_a_message_that_did_not_stand_in_the_prompt_is_not_counted() -> None:
    client: list[RawMessage] = [{"role": "user", "content": text} for text in ("first words", "second words", "third")]
    answer = StandIn(TokenCounter())([{"role": "user", "content": "The report has at most 300 tokens"}])
    document = {"id": "a", "kind": "leaf", "level": 1, "start": 0, "stop": 3, "covered": 9, "tokens": 5, "text": answer}
    merged = {**document, "id": "b", "kind": "condensed", "parents": ["a"]}
    figures = Figures()
    judge([document], client, [OwnRequest([client[0], client[2]], answer, 1)], figures)
    assert (figures.leaves, figures.covered, figures.standing) == (1, 3, 2)
    judge([{**document, "level": 3}], client, [], figures)
    assert figures.without_model == 1
    prompt = [{"role": "user", "content": f"[report 1]\n{answer}"}]
    judge([{**merged, "text": answer}, {**document, "text": answer}], client, [OwnRequest(prompt, answer, 1)], figures)
    assert (figures.merged, figures.parents, figures.parents_standing) == (1, 1, 1)
