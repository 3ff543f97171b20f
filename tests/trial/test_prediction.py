"""What `palimpsest try` predicts of a session is what the session costs through the running proxy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.config import load_settings
from proxy.trial.trial import run_trial
from tests.clients.counting import Meter
from tests.clients.upstream import run_upstream
from tests.journeys.running import run_command, run_proxy
from tests.trial.living import ChatTalk, MessagesTalk, Talk, Worker, price

STEPS, CEILING, WINDOW = 60, 24_000, 1_000_000
TOLERANCE = 0.03


def make_talk(wire: str) -> Talk:
    if wire == "chat":
        return ChatTalk("/v1/chat/completions")
    return MessagesTalk("/v1/messages")


@pytest.mark.no_cover
@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_the_prediction_is_within_three_percent_of_a_live_replay(wire: str, tmp_path: Path) -> None:
    """Ours: the transcript is that of a session without the proxy, with whole requests and their usage."""
    talk, lived = make_talk(wire), make_talk(wire)
    with run_upstream(Worker(), Meter(WINDOW)) as direct:
        talk.live(direct.origin, STEPS)
    transcript = tmp_path / "calls.jsonl"
    transcript.write_text("".join(json.dumps({"session": "s", **call}) + "\n" for call in talk.calls))
    settings = ("--ceiling", str(CEILING))
    with (
        run_upstream(replace(Worker(), run=1), Meter(WINDOW)) as upstream,
        run_proxy(tmp_path / "data", f"{upstream.origin}/v1", *settings, COMPACTION__AUTO="false") as proxy,
    ):
        lived.live(proxy.origin, STEPS, **{"x-palimpsest-session": "s"})
        real = price(upstream.recording)
        own = [{"name": "here", "base_url": f"{upstream.origin}/v1"}]
    flags = {"budget.ceiling_tokens": str(CEILING), "compaction.auto": False, "upstreams": own}
    trial = run_trial(load_settings(None, flags), [transcript], 10, tmp_path / "kept", lambda done, whole: None)

    [session] = trial.sessions

    assert session.reasons == () and session.errors == 0 and session.epochs
    assert session.before.tokens == pytest.approx(price(direct.recording), rel=0.001)
    assert real < 0.8 * session.before.tokens, "the session is long enough to be managed"
    assert session.after.tokens == pytest.approx(real, rel=TOLERANCE)
    whole = session.before.tokens
    for folder, saved in ((tmp_path / "kept" / "upstreams", session.saved.tokens), (tmp_path / "data", whole - real)):
        told = json.loads(run_command("savings", "--json", "--data", str(folder)).stdout)["estimate"]["tokens"]
        assert abs(told - saved) < 0.01 * whole, "a log tells what the same session costs less than sent whole"


@pytest.mark.no_cover
def test_what_is_counted_here_says_the_same_of_both_requests(tmp_path: Path) -> None:
    """Without any usage the sizes are our counts; what the replay itself made up must not change how it counts."""
    talk = make_talk("chat")
    with run_upstream(Worker(), Meter(WINDOW)) as direct:
        talk.live(direct.origin, STEPS)
    bare = [
        {"session": "s", **call, "response": {key: value for key, value in call["response"].items() if key != "usage"}}
        for call in talk.calls
    ]
    transcript = tmp_path / "calls.jsonl"
    transcript.write_text("".join(json.dumps(call) + "\n" for call in bare))
    flags = {"budget.ceiling_tokens": str(CEILING), "compaction.auto": False}
    trial = run_trial(load_settings(None, flags), [transcript], 10, tmp_path / "kept", lambda done, whole: None)
    [session] = trial.sessions
    assert session.epochs and session.reasons
    (folder,) = (tmp_path / "kept").iterdir()
    told = json.loads(run_command("savings", "--json", "--data", str(folder)).stdout)["estimate"]["tokens"]
    assert told == pytest.approx(session.saved.tokens, rel=0.002)
