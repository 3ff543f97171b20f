"""`palimpsest revert`, `pin` and `unpin`, which ask the running server."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proxy.cli.inspection.changes import format_reversion
from proxy.cli.terminal import UNKNOWN, Screen
from proxy.config import Settings
from proxy.model.errors import UpstreamUnreachable
from tests.cli.commands import call_with
from tests.support.fake_log import FakeLog

EPOCHS = [
    {"n": 1, "why": "soft"},
    {"n": 2, "why": "hard"},
    {"n": 3, "why": "revert"},
]
QUOTE = {
    "is_done": False,
    "epoch": None,
    "depth": 0,
    "tokens_now": 24_000,
    "tokens_then": 182_400,
    "price": {"once": 158_400.4, "each": 15_840.0, "unit": "tokens of uncached input"},
    "is_lasting": True,
}
NODE, OTHER = "ab12" * 8, "cd34" * 8
PIN = {"node": NODE, "exchange": 3, "place": 0, "role": "user", "text": "Never\ntouch \u202emain.", "tokens": 1200}
UNSEEN = {"node": OTHER, "exchange": None, "place": None, "role": None, "text": None, "tokens": None}


class Server:
    """A server that notes what it is asked, and responds from a table by method and the end of the path."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def ask(
        self, settings: Settings, path: str, body: bytes, *, method: str, query: Mapping[str, str]
    ) -> tuple[int, bytes]:
        self.asked.append((method, path, query))
        status, document = self.answers[f"{method.lower()}_{path.rpartition('/')[2]}"]
        return status, json.dumps(document).encode()

    def call(self, *arguments: str) -> int:
        return call_with(arguments, lambda settings: FakeLog(), ask_server=self.ask)


def test_a_revert_undoes_the_newest_epoch_that_is_no_revert(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(get_epochs=(200, EPOCHS), post_revert=(200, QUOTE | {"is_done": True, "epoch": "e9"}))
    assert server.call("revert", "abc1") == 0
    assert server.asked[-1] == ("POST", "/sessions/abc1/epochs/2/revert", {})
    assert capsys.readouterr().out.splitlines() == [
        "Epoch 2 is reverted: the next call sends 182,400 tokens in place of 24,000.",
        "That costs 158,400 tokens of uncached input more with the next call, and 15,840",
        "tokens of uncached input more with each later one.",
        "It lasts until a request reaches the end of its budget; then an epoch opens",
        "again.",
    ]


def test_a_dry_run_states_the_price_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(get_epochs=(200, EPOCHS), post_revert=(200, QUOTE))
    assert server.call("revert", "abc1", "1", "--dry-run") == 0
    assert server.asked[-1] == ("POST", "/sessions/abc1/epochs/1/revert", {"dry_run": "true"})
    told = capsys.readouterr().out
    assert "Reverting epoch 1 would send 182,400 tokens in place of 24,000.\n" in told
    assert "Nothing was changed. Without --dry-run it is done.\n" in told


def test_a_price_in_money_comes_first() -> None:
    told = format_reversion(QUOTE | {"is_lasting": False}, 1, (0.2, -0.02), Screen(400))
    assert "That costs $0.20 (158,400 tokens of uncached input) more with the next call, and \u2212$0.02 (" in told
    assert "So much does not fit the budget: an epoch opens again with the next call.\n" in told


def test_an_epoch_that_is_not_there_is_not_reverted(capsys: pytest.CaptureFixture[str]) -> None:
    assert Server(get_epochs=(200, EPOCHS)).call("revert", "abc1", "9") == 1
    assert "no epoch 9; `palimpsest epochs SESSION` lists its 3\n" in capsys.readouterr().err


def test_where_all_epochs_are_reverts_the_newest_is_meant() -> None:
    server = Server(get_epochs=(200, EPOCHS[2:]), post_revert=(200, QUOTE))
    assert server.call("revert", "abc1") == 0
    assert server.asked[-1][1] == "/sessions/abc1/epochs/3/revert"


def test_the_documents_are_those_of_the_server(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    server = Server(
        get_epochs=(200, EPOCHS),
        post_revert=(200, QUOTE),
        get_pins=(200, {"items": [PIN], "next": None}),
        post_pins=(200, PIN),
        delete_pins=(200, {"items": [], "next": None}),
    )
    for arguments, document in (
        (("revert", "abc1", "1"), QUOTE),
        (("pin", "abc1"), [PIN]),
        (("pin", "abc1", "3"), PIN),
        (("unpin", "abc1", "ab"), []),
    ):
        assert server.call(*arguments, "--json") == 0
        assert json.loads(capsysbinary.readouterr().out) == document


def test_without_an_epoch_there_is_nothing_to_undo(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(get_epochs=(200, {"items": [], "next": None}))
    assert server.call("revert", "abc1") == 1
    assert "this session has no epoch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (("3",), {"exchange": "3"}),
        (("3", "0"), {"exchange": "3", "place": "0"}),
        (("--newest",), {"newest": "true"}),
        (("--newest", "--branch", "ff"), {"newest": "true", "branch": "ff"}),
    ],
)
def test_a_message_is_pinned(
    arguments: tuple[str, ...], query: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(post_pins=(200, PIN))
    assert server.call("pin", "abc1", *arguments) == 0
    assert server.asked == [("POST", "/sessions/abc1/pins", query)]
    assert capsys.readouterr().out.startswith("Pinned. 1 message is sent word for word: 1,200 tokens.\n")


def test_pins_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert Server(get_pins=(200, {"items": [PIN, UNSEEN], "next": None})).call("pin", "abc1") == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 messages are sent word for word: 1,200 tokens.",
        "",
        "PIN         CALL  MESSAGE  ROLE  TOKENS  TEXT",
        "ab12ab12ab     3        0  user   1,200  Never touch \ufffdmain.",
        f"cd34cd34cd     {UNKNOWN}        {UNKNOWN}  {UNKNOWN}          {UNKNOWN}  {UNKNOWN}",
    ]
    assert Server(get_pins=(200, [])).call("pin", "abc1") == 0
    assert capsys.readouterr().out.startswith("No message is pinned.")


def test_a_pin_is_removed_by_the_beginning_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(get_pins=(200, [PIN, UNSEEN]), delete_pins=(200, [UNSEEN]))
    assert server.call("unpin", "abc1", "AB12ab") == 0
    assert server.asked[-1] == ("DELETE", "/sessions/abc1/pins", {"node": NODE})
    assert capsys.readouterr().out.startswith("Unpinned. 1 message is sent word for word")
    assert server.call("unpin", "abc1", "--newest") == 0
    assert server.asked[-1] == ("DELETE", "/sessions/abc1/pins", {"newest": "true"})


@pytest.mark.parametrize(("name", "reason"), [("ff", "no pin begins with 'ff'"), ("", "say which")])
def test_a_pin_that_is_not_there_is_not_removed(name: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(get_pins=(200, [PIN]))
    assert server.call("unpin", "abc1", *filter(None, (name,))) in (1, 2)
    told = capsys.readouterr().err
    assert reason in told
    assert "delete" not in {method.lower() for method, *_ in server.asked}


@pytest.mark.parametrize("arguments", [("3", "--newest"), ("--branch", "ff")])
def test_a_message_that_is_named_twice_or_by_half_is_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert Server().call("pin", "abc1", *arguments) == 2
    assert "Usage:" in capsys.readouterr().err


def test_what_the_server_refuses_is_told_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"error": {"type": "conflict", "message": "palimpsest: this epoch is reverted already"}}
    assert Server(get_epochs=(200, EPOCHS), post_revert=(409, error)).call("revert", "abc1", "1") == 1
    assert capsys.readouterr().err == "palimpsest: this epoch is reverted already\n"
    assert Server(get_epochs=(200, "another program")).call("revert", "abc1", "1") == 1
    assert "is not a palimpsest of this version" in capsys.readouterr().err


def test_without_a_server_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*_: Any, **__: Any) -> tuple[int, bytes]:
        raise UpstreamUnreachable("the server at http://127.0.0.1:8484 does not answer; start it by `palimpsest serve`")

    assert call_with(["revert", "abc1", "1"], lambda settings: FakeLog(), ask_server=ask) == 1
    assert "start it by `palimpsest serve`" in capsys.readouterr().err


PREVIEW = {
    "session": "abc1",
    "depth": 21,
    "tokens_before": 182_400,
    "tokens_after": 24_000,
    "cost": {"tokens": 20_000.0, "money": 0.05},
    "saving": {"tokens": 15_840.0, "money": None},
    "explanation": "It opens when the session is compacted.",
    "edits": [{"edit": "kept", "place": 0}, {"edit": "written", "start": 1, "stop": 20, "text": "x"}],
    "diff": [{"start": 1, "stop": 20, "client": [{"tokens": 160_000}], "sent": []}],
}


def test_a_dry_run_of_a_compaction_says_what_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(post_compact=(200, PREVIEW))
    assert server.call("compact", "abc1", "--dry-run") == 0
    assert server.asked[-1] == ("POST", "/sessions/abc1/compact", {"dry_run": "true"})
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("Compacting would send 24,000 tokens in place of 182,400. ")
    assert "Of the client's first 21 messages 1 would not go out as they are (160,000 tokens)." in told
    assert "1 kept as they are, 1 of ours (ledger, summary or memory)." in told
    assert "That costs $0.05 (20,000 tokens of uncached input) once, and saves 15,840 tokens" in told
    assert "Nothing was changed." in told
