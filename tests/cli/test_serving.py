"""`serve`: flags become settings."""

from pathlib import Path

import pytest

from proxy.cli.services import load_server_settings
from tests.cli.calling import call, call_without_log
from tests.support.fake_log import FakeLog


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
    assert "port" not in load_server_settings(None, None, None, None, None).server.model_fields_set
    there = load_server_settings(None, None, "192.0.2.1", None, None).server
    assert (there.host, there.port, "port" in there.model_fields_set) == ("192.0.2.1", 8484, True)
