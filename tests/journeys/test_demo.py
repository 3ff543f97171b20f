"""`palimpsest demo` as a newcomer runs it: by itself, with its page, with a log that stays."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.journeys.running import run_command

SECONDS = 120.0


def start(temporary: Path, *options: str, **settings: str) -> "subprocess.Popen[str]":
    """Start the demo. Its temporary directories are below `temporary`."""
    return subprocess.Popen(
        [sys.executable, "-m", "proxy", "demo", *options],
        env={**os.environ, "TMPDIR": str(temporary), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_row(told: str, label: str) -> tuple[float, float]:
    """The two figures of a row."""
    found = re.search(rf"^{re.escape(label)}.*?\$?([\d,.]+) +\$?([\d,.]+) +[+\u2212]\d+ %$", told, re.MULTILINE)
    assert found, told
    return float(found[1].replace(",", "")), float(found[2].replace(",", ""))


def test_it_ends_by_itself_and_shows_all_that_the_proxy_does(tmp_path: Path) -> None:
    data = tmp_path / "log"
    demo = start(tmp_path, "--no-serve", "--data", str(data), PALIMPSEST_MODE="bypass")
    told, trouble = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, trouble
    before, after = read_row(told, "tokens of input")
    assert after < 0.6 * before
    before, after = read_row(told, "money (gpt-5, US dollars)")
    assert after < 0.8 * before
    for text in (
        "an epoch opened, ",
        " epochs opened; ",
        "tombstone",
        "4 of the user's 4 rules were in the last request",
        "the model wrote ",
        "the model recalled 2 times",
        "cache misses: an epoch opened",
        "1 cache miss: the client changed its tools",
    ):
        assert text in told, text
    savings = json.loads(run_command("savings", "--json", "--data", str(data)).stdout)
    # the table has both bills in whole cents; a saving is told on the low side
    assert -0.02 * before < savings["estimate"]["money"] - (before - after) < 0.01 * before
    [session] = json.loads(run_command("sessions", "--json", "--data", str(data)).stdout)
    assert {session["calls"], savings["models"][0]["calls"], savings["days"][0]["calls"]} == {150}
    shown = run_command("show", session["id"], "--data", str(data)).stdout.decode()
    assert shown.startswith("150 calls, ")
    assert run_command("verify", "--data", str(data)).returncode == 0


def test_it_serves_its_page_until_it_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path, "--steps", "5")
    assert demo.stdout is not None
    told: list[str] = []
    for line in demo.stdout:
        told.append(line)
        if line.startswith("Ctrl-C"):
            break
    [command] = [line.strip() for line in told if "palimpsest sessions --data " in line]
    listed = subprocess.run(command.split(), capture_output=True, check=True)  # as it stands there, on PATH or not
    assert b"Customers of the" in listed.stdout
    assert "no epoch: the session stayed short" in "".join(told)
    demo.send_signal(signal.SIGINT)
    _, trouble = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, trouble
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_a_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"mine")
    demo = start(tmp_path, "--data", str(tmp_path))
    _, trouble = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 1
    assert trouble.startswith(f"palimpsest: {tmp_path} has a log already")
    assert (tmp_path / "log.db").read_bytes() == b"mine"
