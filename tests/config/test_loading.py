"""All sources together: which one counts, and what is said when they are wrong."""

from pathlib import Path

import pytest

from proxy.config import ConfigError, load_settings


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
