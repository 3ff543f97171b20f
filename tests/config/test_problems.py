"""Problems in words."""

import pytest

from proxy.config.problems import ConfigError, Problem, describe, spell

KNOWN = ["mode", "server", "server.port", "server.host", "upstreams", "upstreams.base_url"]


@pytest.mark.parametrize(
    ("path", "spelt"),
    [(("server", "port"), "server.port"), (("upstreams", 0, "base_url"), "upstreams[0].base_url"), ((), "")],
)
def test_a_key_is_spelt_as_in_prose(path: tuple[str | int, ...], spelt: str) -> None:
    assert spell(path) == spelt


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
    assert describe(error, KNOWN) == f"unknown key; {hint}"  # type: ignore[arg-type]


def test_one_problem_is_one_line() -> None:
    assert str(ConfigError([Problem("mode", "is odd", "conf.yaml")])) == "conf.yaml: mode: is odd"
