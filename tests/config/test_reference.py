"""The list of all keys and the example file, held against the settings themselves."""

import re
from dataclasses import fields
from pathlib import Path

import yaml

from proxy.config import load_settings
from proxy.config.reference import list_keys, name_keys, render_example
from proxy.config.settings import Settings


def test_every_key_and_section_says_what_it_is_for() -> None:
    assert not [key.path for key in list_keys() if len(key.description) < 15 or not key.description.endswith(".")]


def test_a_section_stands_before_its_keys() -> None:
    names = name_keys()
    assert names.index("server") < names.index("server.port") < names.index("upstreams")
    assert names.index("upstreams") < names.index("upstreams.base_url") < names.index("sessions")


def test_quantities_say_their_unit() -> None:
    units = {"_bytes": "bytes", "_timeout": "seconds", "_seconds": "seconds", "_ms": "milliseconds"}
    for key in list_keys():
        for ending, unit in units.items():
            if key.path[-1].endswith(ending):
                assert unit in key.description, key.path


def test_the_keys_below_names_of_the_users_own_are_known_too() -> None:
    assert {"pricing", "pricing.MODEL.input", "pricing.MODEL.retention_seconds"} <= set(name_keys())
    assert "pricing.MODEL.input" not in {".".join(key.path) for key in list_keys()}


def test_what_is_not_set_is_automatic() -> None:
    defaults = {".".join(key.path): key.default for key in list_keys()}
    assert defaults["budget.ceiling_tokens"] == defaults["upstreams.window"] == "auto"


def test_the_example_at_the_top_of_the_repository_is_the_one_config_init_writes() -> None:
    assert (Path(__file__).parents[2] / "config.example.yaml").read_text() == render_example()


def test_as_it_stands_the_example_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(render_example())
    assert load_settings(file) == Settings()


def test_with_every_key_uncommented_the_example_says_the_defaults(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^( *)#(?! )", r"\1", render_example().replace("#  ", "  "))
    file = tmp_path / "conf.yaml"
    file.write_text(text)
    tree = yaml.safe_load(text)
    assert set(tree["server"]) == {each.name for each in fields(Settings().server)}
    assert set(tree["upstreams"][0]) == {each.name for each in fields(Settings().upstreams[0])}
    assert load_settings(file) == Settings()
