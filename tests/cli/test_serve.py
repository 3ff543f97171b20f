"""`palimpsest serve`, `open`, `compact` and `mcp`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.app import serve_mcp
from proxy.cli.inspection.changes import format_compaction
from proxy.cli.services import Invocation
from proxy.config import Settings
from proxy.model.errors import UpstreamUnreachable
from tests.cli.commands import call, call_with, call_without_log
from tests.support.fake_log import FakeLog

NO_SERVICES: Any = None


def test_flags_become_settings() -> None:
    log = FakeLog()
    flags = (
        *("--upstream", "http://127.0.0.1:9000/v1", "--host", "0.0.0.0", "--port", "0", "--data", "/d"),
        *("--mode", "observe", "--admin-token", "t", "--idle-timeout", "5", "--drain", "0", "--durability", "full"),
        *("--ceiling", "64000"),
    )
    assert call(log, "serve", *flags) == 0
    [settings] = log.opened
    [upstream] = settings.upstream_policies()
    assert (upstream.name, upstream.base_url, upstream.idle_timeout) == ("127.0.0.1", "http://127.0.0.1:9000/v1", 5)
    server = settings.server_policy()
    assert (server.host, server.port, server.admin_token, server.drain_seconds) == ("0.0.0.0", 0, "t", 0)
    assert settings.budget.ceiling_tokens == 64_000
    assert (settings.mode, settings.data, settings.store.durability) == ("observe", Path("/d"), "full")


def test_flags_come_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("server: {port: 1, host: file}")
    log = FakeLog()
    call(log, "serve", "--config", str(file), "--port", "2")
    assert (log.opened[0].server.port, log.opened[0].server.host) == (2, "file")


def test_an_ipv6_upstream_has_a_name_too() -> None:
    log = FakeLog()
    assert call(log, "serve", "--upstream", "http://[::1]:9000/v1") == 0
    assert log.opened[0].upstreams[0].name == "::1"


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", "ftp://x"])
def test_a_wrong_upstream_exits_with_2_and_a_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = FakeLog()
    assert call(log, "serve", "--upstream", url) == 2
    assert "upstreams[0].base_url: must be an address" in capsys.readouterr().err
    assert log.opened == []


def test_the_servers_exit_code_is_the_commands() -> None:
    assert call_without_log("serve") == 3


def test_a_ceiling_may_be_automatic_but_not_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    log = FakeLog()
    assert call(log, "serve", "--ceiling", "auto") == 0
    assert log.opened[0].budget.ceiling_tokens is None
    assert call(log, "serve", "--ceiling", "lots") == 2
    assert "command line: budget.ceiling_tokens: must be" in capsys.readouterr().err


def test_the_link_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "open", "--print", "--admin-token", "t") == 0
    assert capsys.readouterr().out == "http://127.0.0.1:8484/-/?token=t\n"


def test_the_link_is_of_the_server_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeLog(), "open", "--print", "--host", "::1", "--port", "99") == 0
    assert capsys.readouterr().out == "http://::1:99/-/?token=kept\n"


def test_a_browser_is_given_the_link_and_the_token_is_not_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda link: not opened.append(link))  # type: ignore[func-returns-value]
    assert call(FakeLog(), "open") == 0
    assert opened == ["http://127.0.0.1:8484/-/?token=kept"]
    assert capsys.readouterr().out == "opened http://127.0.0.1:8484/-/\n"


def test_where_there_is_no_browser_the_link_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda link: False)
    assert call(FakeLog(), "open") == 1
    told = capsys.readouterr()
    assert told.out == "http://127.0.0.1:8484/-/?token=kept\n"
    assert "no browser" in told.err


def test_who_names_a_host_means_the_port_of_the_settings_there() -> None:
    called = Invocation(NO_SERVICES)
    assert "server.port" not in called.load_server_settings().model_fields_set
    there = replace(called, host="192.0.2.1").load_server_settings()
    assert (there.server.host, there.server.port) == ("192.0.2.1", 8484)
    assert "server.port" in there.model_fields_set


FOUND: dict[str, Any] = {
    "session": "abc1",
    "epoch": "e7",
    "summary": "abcdefghij",
    "level": 1,
    "kind": "leaf",
    "messages_covered": 120,
    "tokens_before": 182_000,
    "tokens_after": 24_000,
    "ms": 3210,
    "calls": ["x8"],
    "cost_tokens": 4100,
    "reason": "",
}


class Server:
    """A server that answers as it was told; `asked` are the settings, paths and bodies."""

    def __init__(self, status: int = 200, answer: object = FOUND) -> None:
        self.asked: list[tuple[Settings, str, Any]] = []
        self._answer = status, answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n"

    def ask(self, settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append((settings, path, json.loads(body)))
        return self._answer

    def call(self, *arguments: str) -> int:
        return call_with(["compact", *arguments], lambda settings: FakeLog(), ask_server=self.ask)


def test_what_came_of_it_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    assert server.call("abc") == 0
    assert capsys.readouterr().out.splitlines() == [
        "compacted 182,000 to 24,000 tokens, from the next call on (epoch e7)",
        "summary   abcdefghij of 120 messages: level 1, leaf",
        "calls     1, for 4,100 tokens of uncached input",
        "took      3.2 s",
    ]
    ((settings, path, body),) = server.asked
    assert path == "/sessions/abc1/compact"
    assert body == {"model": "", "prompt": "", "level": 1, "view": "", "branch": ""}
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8484)


def test_what_is_wished_and_where_the_server_is(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    options = ("--model", "small", "--prompt", "in short", "--level", "2", "--view", "gpt-5", "--branch", "ab")
    assert server.call("abc", *options, "--host", "::1", "--port", "99", "--admin-token", "t") == 0
    ((settings, _, body),) = server.asked
    assert body == {"model": "small", "prompt": "in short", "level": 2, "view": "gpt-5", "branch": "ab"}
    policy = settings.server_policy()
    assert (policy.host, policy.port, policy.admin_token) == ("::1", 99, "t")


def test_as_json_it_is_what_the_server_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert Server().call("abc", "--json") == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_why_nothing_came_of_it_is_told() -> None:
    kept = FOUND | {"epoch": None, "summary": None, "calls": [], "reason": "it got \N{MULTIPLICATION SIGN} shorter"}
    assert format_compaction(kept).splitlines() == [
        "kept      182,000 tokens: no epoch was opened",
        "note      it got \N{MULTIPLICATION SIGN} shorter",
        "took      3.2 s",
    ]


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (409, {"error": {"message": "palimpsest: there is nothing to compact"}}, "there is nothing to compact"),
        (404, {"error": "no"}, "the server at this address responded with status 404 and is not a palimpsest"),
        (502, b"<html>", "responded with status 502 and is not a palimpsest"),
        (200, [1], "responded with status 200 and is not a palimpsest"),
        (200, {"object": "list"}, "choose --host and --port"),
    ],
)
def test_a_server_that_would_not_is_one_line(
    status: int, answer: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Server(status, answer).call("abc") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("palimpsest: ")
    assert line.count("palimpsest: ") == 1
    assert told in line


def test_without_a_server_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(Server):
        def ask(self, settings: Settings, path: str, body: bytes) -> tuple[int, bytes]:
            raise UpstreamUnreachable("no server answers")

    assert Gone().call("abc") == 1
    assert capsys.readouterr().err == "palimpsest: no server answers\n"


@pytest.mark.parametrize("arguments", [(), ("abc", "--level", "4")])
def test_what_is_asked_wrongly_exits_with_2(arguments: tuple[str, ...]) -> None:
    server = Server()
    assert server.call(*arguments) == 2
    assert server.asked == []


def test_mcp_serves_the_log_of_the_options() -> None:
    served: list[Settings] = []
    assert call_with(["mcp", "--data", "/d"], lambda settings: FakeLog(), serve_mcp=served.append) == 0
    assert [settings.data for settings in served] == [Path("/d")]


def test_mcp_without_its_extra_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "proxy.server.mcp.sdk", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert call_with(["mcp"], lambda settings: FakeLog(), serve_mcp=serve_mcp) == 2
    assert "the MCP server needs the extra mcp: make install EXTRAS=mcp" in capsys.readouterr().err


def test_mcp_without_a_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_with(["mcp", "--data", str(tmp_path / "none")], lambda settings: FakeLog(), serve_mcp=serve_mcp) == 1
    assert "none" in capsys.readouterr().err
