"""The example file."""

import re
from pathlib import Path

import yaml

from proxy.config import load_settings
from proxy.config.example import render_example
from proxy.config.settings import Settings


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
    assert set(tree["server"]) == set(type(Settings().server).model_fields)
    assert set(tree["upstreams"][0]) == set(type(Settings().upstreams[0]).model_fields)
    assert load_settings(file) == Settings()
