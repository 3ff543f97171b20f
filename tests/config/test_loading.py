"""Settings from flags, environment and file: precedence, interpolation, and every error at once."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import load_settings
from proxy.config.errors import ConfigError, Problem, describe_error, format_path
from proxy.config.loading import Environment, interpolate, load_report_settings, nest, read_file


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> Path:
    file = Path("conf.yaml")
    file.write_text(text)
    return file


def complaints_about(file: Path | None = None, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, flags)
    return [str(problem) for problem in caught.value.problems]


def test_flags_come_before_the_environment_before_the_file_before_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("server: {host: file, port: 1, drain_seconds: 1, body_timeout: 1}\nmode: observe")
    monkeypatch.setenv("PALIMPSEST_SERVER__PORT", "2")
    monkeypatch.setenv("PALIMPSEST_SERVER__DRAIN_SECONDS", "2")
    settings = load_settings(file, {"server.drain_seconds": 3, "server.body_timeout": None})
    server = settings.server
    assert (server.host, server.port, server.drain_seconds, server.body_timeout) == ("file", 2, 3, 1)
    assert (settings.mode, server.header_timeout) == ("observe", 30)


def test_without_a_file_none_is_looked_for() -> None:
    Path("palimpsest.yaml").write_text("mode: bypass")
    assert load_settings().mode == "manage"


def test_the_environment_can_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_CONFIG", str(write("mode: bypass")))
    assert load_settings().mode == "bypass"


def test_a_command_that_reads_goes_by_its_servers_settings_where_it_has_none(tmp_path: Path) -> None:
    upstream = {"name": "b", "base_url": "http://b/v1", "window": 9000, "cache": "units", "api_key": "secret-key"}
    budget = {"ceiling_tokens": 9_000, "estimator": "no.such.function"}
    server = load_settings(
        None, {"upstreams": [upstream], "budget": budget, "server.admin_token": "secrets", "mode": "observe"}
    )
    (tmp_path / "settings.json").write_text(kept := server.dump_judging())
    assert "secret" not in kept
    found = load_report_settings(write("budget: {output_reserve: 500}"), tmp_path)
    assert (found.budget.ceiling_tokens, found.budget.output_reserve, found.budget.estimator) == (9_000, 500, "")
    assert (found.upstreams[0].window, found.providers()["b"].cache, found.mode) == (9_000, "units", "manage")


def test_patterns_of_a_command_are_not_mixed_with_those_of_the_server(tmp_path: Path) -> None:
    server = load_settings(None, {"pricing": {"*": {"input": 5}}, "models": {"*": {"window": 9000}}})
    (tmp_path / "settings.json").write_text(server.dump_judging())
    found = load_report_settings(write("pricing: {gpt-*: {input: 1}}"), tmp_path)
    assert (list(found.pricing), list(found.models)) == (["gpt-*"], ["*"])


@pytest.mark.parametrize("kept", ["", "[1]", "1", '{"budget": {"no_key": 1}}', "\xff"])
def test_settings_of_a_server_that_cannot_be_read_do_not_count(tmp_path: Path, kept: str) -> None:
    (tmp_path / "settings.json").write_bytes(kept.encode("latin-1"))
    assert load_report_settings(None, tmp_path) == load_settings(None, {"data": tmp_path})


def test_a_list_in_a_later_source_replaces_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("upstreams: [{name: a}, {name: b}]")
    monkeypatch.setenv("PALIMPSEST_UPSTREAMS", '[{"name": "c", "models": ["x*"]}]')
    assert [upstream.name for upstream in load_settings(file).upstreams] == ["c"]
    flags = {"upstreams": [{"name": "d", "base_url": "http://d"}]}
    assert [upstream.name for upstream in load_settings(file, flags).upstreams] == ["d"]


def test_all_errors_are_told_at_once_each_with_its_place_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("server:\n  prot: 1\nstor: {}\nupstreams: [{base_url: 'ftp://x'}]\nstore: {durability: maybe}")
    monkeypatch.setenv("PALIMPSEST_STORE__COMMIT_WAIT_MS", "-1")
    monkeypatch.setenv("PALIMPSEST_SESSION__HEADERS", "[]")
    assert sorted(complaints_about(file, **{"server.port": 70000})) == [
        "PALIMPSEST_SESSION__HEADERS: session: unknown key; did you mean sessions?",
        "PALIMPSEST_STORE__COMMIT_WAIT_MS: store.commit_wait_ms: must be greater than or equal to 0",
        "command line: server.port: must be less than or equal to 65535",
        "conf.yaml: server.prot: unknown key; did you mean server.port?",
        "conf.yaml: stor: unknown key; did you mean store?",
        "conf.yaml: store.durability: must be 'full' or 'normal'",
        "conf.yaml: upstreams[0].base_url: must be an address such as https://api.openai.com/v1",
    ]


def test_the_text_of_the_error_lists_every_problem() -> None:
    with pytest.raises(ConfigError, match=r"(?s)^2 settings are wrong\n  conf.yaml: a: .*\n  conf.yaml: b: "):
        load_settings(write("a: 1\nb: 2"))


def test_an_unset_variable_is_told_once_with_its_key() -> None:
    file = write("server: {port: '${PORT_THAT_IS_NOT_SET}'}")
    what = "the variable PORT_THAT_IS_NOT_SET is not set; set it, or write ${PORT_THAT_IS_NOT_SET:-default}"
    assert complaints_about(file) == [f"conf.yaml: server.port: {what}"]


def test_no_complaint_repeats_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_SERVER__ADMIN_TOKEN", "s3cret word")
    monkeypatch.setenv("PALIMPSEST_SERVER__PORT", "s3cret")
    monkeypatch.setenv("PALIMPSEST_UPSTREAMS", "s3cret")
    file = write("store: s3cret\nmode: s3cret\nsessions: {headers: [s3cret word]}")
    told = complaints_about(file, data=5)
    assert len(told) == 7
    assert not [line for line in told if "s3cret" in line]


def test_a_problem_with_a_whole_section_names_where_it_was_given() -> None:
    file = write("store: {spool_bytes: 2048, record_cap_bytes: 2048}")
    assert complaints_about(file)[0].startswith("conf.yaml: store: spool_bytes must be")


@pytest.mark.parametrize(
    ("tenants", "keys"),
    [("{a: [123]}", {"tenants.a[0]", "tenants.a"}), ("{a: [b, [c]]}", {"tenants.a[1]", "tenants.a"})],
)
def test_a_value_that_may_be_of_several_kinds_is_named_by_its_key_alone(tenants: str, keys: set[str]) -> None:
    file = write(f"tenants: {tenants}")
    told = complaints_about(file)
    assert {line.split(": ")[1] for line in told} == keys
    assert all(line.startswith("conf.yaml: tenants.a") and "function" not in line for line in told)


def test_a_key_that_looks_like_the_name_of_a_kind_is_kept() -> None:
    (told,) = complaints_about(write("pricing: {'gpt-[45]': {input: -1}}"))
    assert told.startswith("conf.yaml: pricing.gpt-[45].input: ")


def write_in(path: Path, content: str | bytes) -> Path:
    file = path / "conf.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_variables_become_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_STORE__DURABILITY", "full")
    monkeypatch.setenv("PALIMPSEST_MODE", "observe")
    monkeypatch.setenv("palimpsest_server__port", "1")
    monkeypatch.setenv("PALIMPSEST_SESSIONS__HEADERS", '["x-a", "x-b"]')
    assert Environment()() == {
        "store": {"durability": "full"},
        "mode": "observe",
        "server": {"port": "1"},
        "sessions": {"headers": ["x-a", "x-b"]},
    }


def test_variables_of_others_and_empty_ones_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSESTX", "1")
    monkeypatch.setenv("MODE", "bypass")
    monkeypatch.setenv("PALIMPSEST_MODE", "")
    monkeypatch.setenv("PALIMPSEST_CONFIG", "conf.yaml")
    assert Environment()() == {}


def test_a_variable_the_tree_does_not_know_goes_on_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_STOER__DURABILITY", "full")
    assert Environment()() == {"stoer": None}


def test_text_that_is_no_json_goes_on_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_UPSTREAMS", "openai")
    monkeypatch.setenv("PALIMPSEST_SESSIONS__HEADERS", "x-a")
    assert Environment()() == {"upstreams": "openai", "sessions": {"headers": "x-a"}}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_file(write_in(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("server: {port: 1}\nmode: a\nserver: {host: b}", "line 3, column 1: this key stands twice"),
        ("server:\n  port: 1\n  port: 2", "line 3, column 3: this key stands twice"),
        ("mode: @secret", "line 1, column 7: is not YAML"),
        ("mode: !secret x", "line 1, column 7: is not YAML"),
        ("a: \x01", "is not YAML"),
        ("- a", "must hold keys and values"),
        (b"\xff", "not UTF-8"),
        ("mode: a\nserver: {admin_token: 2024-13-45}", "line 2, column 23: is no such date or number; text that"),
        ("server: {port: !!int secret}", "line 1, column 16: is no such date or number"),
        ("server: {port: !!int ''}", "line 1, column 16: is no such date or number"),
        ("mode: !!bool secret", "line 1, column 7: is no such date or number"),
        ("mode: !!timestamp secret", "line 1, column 7: is no such date or number"),
        ("a: " + "[" * 3000 + "]" * 3000, "is nested too deep"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_shows_nothing_of_it(
    content: str | bytes, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(write_in(tmp_path, content))
    assert what in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "conf.yaml"))


def test_a_file_in_the_home_of_a_user_nobody_knows_says_so() -> None:
    with pytest.raises(ConfigError, match="~nosuchuser/x: begins with the name of a user who is not known"):
        read_file(Path("~nosuchuser/x"))


@pytest.mark.parametrize("content", ["upstreams: &a [*a]", "tenants: &a {x: *a}"])
def test_a_file_that_holds_itself_is_refused(content: str, tmp_path: Path) -> None:
    tree = read_file(write_in(tmp_path, content))
    with pytest.raises(ConfigError, match=r"^conf\.yaml: is nested too deep, or holds itself"):
        interpolate(tree, {}, "conf.yaml", [])


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; check the path"):
        read_file(tmp_path / "none.yaml")


def test_variables_are_filled_in_wherever_text_stands() -> None:
    problems: list[Problem] = []
    tree: dict[Any, Any] = {"a": "x${A}y${B:-b}", "l": ["${A}", 1], "d": {"k": "${E:-}"}, "n": None, 5: "${E}"}
    filled = interpolate(tree, {"A": "1", "E": ""}, "conf.yaml", problems)
    assert filled == {"a": "x1yb", "l": ["1", 1], "d": {"k": ""}, "5": ""}
    assert problems == []


def test_a_default_also_stands_in_for_an_empty_variable() -> None:
    assert interpolate({"a": "${E:-x}"}, {"E": ""}, "", []) == {"a": "x"}


def test_what_is_not_closed_stays_as_it_is() -> None:
    assert interpolate({"a": "${A}${A:-b", "b": "${A"}, {"A": "1"}, "", []) == {"a": "1${A:-b", "b": "${A"}


def test_a_missing_variable_is_a_problem_of_its_key() -> None:
    problems: list[Problem] = []
    interpolate({"l": [{"k": "${A}"}]}, {}, "conf.yaml", problems)
    assert [(problem.key, problem.source) for problem in problems] == [("l[0].k", "conf.yaml")]
    assert "the variable A is not set" in problems[0].what


def test_flags_that_were_not_given_leave_no_trace() -> None:
    assert nest({"a.b": 1, "a.c": None, "d": 2, "e.f": None}) == {"a": {"b": 1}, "d": 2}


KNOWN = ["mode", "server", "server.port", "server.host", "upstreams", "upstreams.base_url"]


@pytest.mark.parametrize(
    ("path", "spelt"),
    [(("server", "port"), "server.port"), (("upstreams", 0, "base_url"), "upstreams[0].base_url"), ((), "")],
)
def test_a_key_is_spelt_as_in_prose(path: tuple[str | int, ...], spelt: str) -> None:
    assert format_path(path) == spelt


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (("server", "prot"), "did you mean server.port?"),
        (("sever",), "did you mean server?"),
        (("upstreams", 0, "base_ulr"), "did you mean upstreams.base_url?"),
        (("port",), "did you mean server.port?"),
        (("zzz",), "`palimpsest config schema` lists all keys"),
    ],
)
def test_an_unknown_key_comes_with_a_hint(path: tuple[str | int, ...], hint: str) -> None:
    error = {"type": "extra_forbidden", "loc": path, "msg": "", "input": None}
    assert describe_error(error, KNOWN) == f"unknown key; {hint}"  # type: ignore[arg-type]


def test_one_problem_is_one_line() -> None:
    assert str(ConfigError([Problem("mode", "is odd", "conf.yaml")])) == "conf.yaml: mode: is odd"
