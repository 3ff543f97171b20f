"""A trial from end to end, offline: what it says of transcripts that lack something, and what it leaves behind."""

import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from proxy.config import load_settings
from proxy.model.errors import NotFound
from proxy.trial.trial import run_trial
from tests.trial.living import MODEL, write_output

STEPS, CEILING = 30, 12_000


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No connection can be made, and whatever is temporary is in a directory of this test."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a trial needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def write_codex(path: Path, *, usage: bool) -> Path:
    """A rollout of a long session, without its tools; with a usage of 2,000 tokens more than it shows."""

    def line(kind: str, **payload: Any) -> str:
        return json.dumps({"timestamp": "2026-11-26T11:09:07.000Z", "type": kind, "payload": payload}) + "\n"

    def item(**members: Any) -> str:
        return line("response_item", **members)

    text = line("session_meta", id="c1", base_instructions={"text": "You repair."}) + line("turn_context", model=MODEL)
    text += item(type="message", role="user", content=[{"type": "input_text", "text": "Repair the importer."}])
    shown = 20
    for n in range(STEPS):
        text += item(type="function_call", call_id=f"k{n}", name="bash", arguments=json.dumps({"command": f"cat {n}"}))
        output = write_output(n)
        text += item(type="function_call_output", call_id=f"k{n}", output=output)
        if usage:
            counts = {"input_tokens": 2000 + shown, "cached_input_tokens": shown, "output_tokens": 20}
            text += line("event_msg", type="token_count", info={"last_token_usage": counts})
        shown += len(output) // 4
    path.write_text(text)
    return path


def try_out(path: Path, keep: Path | None = None, **flags: Any) -> Any:
    told: list[tuple[int, int]] = []
    settings = load_settings(None, {"budget.ceiling_tokens": str(CEILING), **flags})
    trial = run_trial(settings, [path], 5, keep, lambda done, whole: told.append((done, whole)))
    assert told[-1] == (STEPS, STEPS)
    [session] = trial.sessions
    assert session.errors == 0 and session.calls == STEPS
    return trial


def test_what_a_transcript_lacks_is_sized_by_the_usage_of_its_first_call(tmp_path: Path) -> None:
    trial = try_out(write_codex(tmp_path / "rollout-1.jsonl", usage=True))
    [session] = trial.sessions
    assert session.upstream == "openai" and session.epochs and session.cut.told + session.cut.outputs > 0
    assert session.client_tokens[0] == 2020 and max(session.sent_tokens) < max(session.client_tokens)
    assert min(session.sent_tokens) > 1500, "what is before the messages is sent with every call"
    reason = "its transcript is without its tools: their size is taken from the usage of the first call"
    assert session.reasons == (reason,)
    assert session.saved.tokens > 0 and session.before.money is None, "nobody states prices of this model"
    assert len(trial.notes) == 2 and list((tmp_path / "temporary").iterdir()) == []


def test_without_a_usage_the_requests_are_counted(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    own = [{"name": "here", "base_url": "http://127.0.0.1:9/v1"}]
    flags = {
        "upstreams": own,
        "compaction.auto": False,
        "recall.inject": False,
        "pricing": {"*": {"input": 1, "output": 5}},
    }
    trial = try_out(write_codex(tmp_path / "rollout-1.jsonl", usage=False), keep, **flags)
    [session] = trial.sessions
    assert session.reasons == (
        "its transcript is without its tools",
        "its transcript has no usage of any call: counted, with what the provider's cache should hold",
    )
    assert session.upstream == "here" and session.before.money > session.after.money > 0 and trial.notes == ()
    assert (keep / "upstreams" / "log.db").is_file()


def test_no_transcript_is_an_error_that_says_where_was_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {})
    with pytest.raises(NotFound, match=r"\.claude/projects"):
        run_trial(settings, [], 5, None, lambda done, whole: None)
    with pytest.raises(NotFound, match="nothing here"):
        run_trial(settings, [tmp_path / "nothing here"], 5, None, lambda done, whole: None)
