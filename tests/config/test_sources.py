"""The sources one by one."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import ConfigError
from proxy.config.problems import Problem
from proxy.config.sources import Environment, interpolate, nest, read_file


def write(path: Path, content: str | bytes) -> Path:
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
    assert read_file(write(tmp_path, "# nothing\n")) == {}


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
        read_file(write(tmp_path, content))
    assert what in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "conf.yaml"))


def test_a_file_in_the_home_of_a_user_nobody_knows_says_so() -> None:
    with pytest.raises(ConfigError, match="~nosuchuser/x: begins with the name of a user who is not known"):
        read_file(Path("~nosuchuser/x"))


@pytest.mark.parametrize("content", ["upstreams: &a [*a]", "tenants: &a {x: *a}"])
def test_a_file_that_holds_itself_is_refused(content: str, tmp_path: Path) -> None:
    tree = read_file(write(tmp_path, content))
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


def test_a_missing_variable_is_a_problem_of_its_key() -> None:
    problems: list[Problem] = []
    interpolate({"l": [{"k": "${A}"}]}, {}, "conf.yaml", problems)
    assert [(problem.key, problem.source) for problem in problems] == [("l[0].k", "conf.yaml")]
    assert "the variable A is not set" in problems[0].what


def test_flags_that_were_not_given_leave_no_trace() -> None:
    assert nest({"a.b": 1, "a.c": None, "d": 2, "e.f": None}) == {"a": {"b": 1}, "d": 2}
