"""Every command that reads, on the log that is kept of each earlier version, which it brings up to date."""

import io
import json
from pathlib import Path

import pytest

from proxy.store.sqlite.connection import is_older
from tests.cli.commands import call_on_disk
from tests.store.sqlite.old_forms import FORMS, write_old_log

ASKED = "Find the fault in the sums of the report."
# What commands say of the kept session, and the first version that recorded what they say there.
OF_A_SESSION = (
    (("show",), ASKED, "m001_record"),
    (("show", "1", "--all"), ASKED, "m001_record"),
    (("show", "1", "--raw", "sent"), ASKED, "m001_record"),
    (("diff", "1"), "", "m001_record"),
    (("export",), ASKED, "m001_record"),
    (("handoff",), ASKED, "m001_record"),
    (("context",), "of 5,819 tokens in use", "m003_managed"),
    (("epochs",), "reached the high mark", "m003_managed"),
    (("summaries",), "0 to 2", "m004_summaries"),
    (("cache",), "that were", "m003_managed"),
    (("memory",), "1 turn, 10 traces", "m002_lineage"),
    (("memory",), "1 report, 1 fact", "m008_memory"),
    (("export", "--openai"), "tool_calls", "m002_lineage"),
)


@pytest.mark.parametrize("form", FORMS)
def test_a_log_of_an_earlier_version_is_read_by_every_command(
    form: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*arguments: str) -> str:
        assert call_on_disk(tmp_path, *arguments) == 0, arguments
        return " ".join(capfdbinary.readouterr().out.decode().split())

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    path = write_old_log(tmp_path / "log.db", form)
    sessions = json.loads(ask("sessions", "--json"))
    assert not is_older(path)
    kept = max(sessions, key=lambda each: each["calls"])
    assert kept["title"].startswith(ASKED)
    assert (len(sessions), kept["calls"]) == (5, 1) if form == "m001_record" else (len(sessions), 5)
    for (name, *others), said, since in OF_A_SESSION:
        if form >= since or name != "memory":
            told = ask(name, kept["id"], *others)
            assert form < since or said in told, (name, told)
    assert "gpt-test" in ask("savings")
    assert "token" in ask("statusline")
    ask("index")
    assert ("find_3_1" in ask("search", "sums")) is (form >= "m002_lineage")
    ask("backup", str(tmp_path / "copy.db"))
    assert "no faults" in ask("verify")


@pytest.mark.parametrize("first", ["sessions", "savings", "search", "index", "verify"])
def test_whichever_command_comes_first_brings_the_log_up_to_date(first: str, tmp_path: Path) -> None:
    path = write_old_log(tmp_path / "log.db", "m001_record")
    assert call_on_disk(tmp_path, first, *["sums"] * (first == "search")) == 0
    assert not is_older(path)
