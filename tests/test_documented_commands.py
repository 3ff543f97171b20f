"""What README.md and docs/ name exists: commands in sentences with their options, settings, targets, modules.

`tests/journeys/test_documented_commands` runs the blocks of commands.
"""

import base64
import json
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from benchmarks.picture import draw
from proxy.cli.main import build
from proxy.config import load_settings
from proxy.config.reference import list_keys
from tests.support.pages import BLOCKS, NOT_RUN, PAGES, ROOT, SHELL, Block, strip

LANGUAGES = {"sh", "text", "text output", "yaml", "json", "python"}


def test_every_block_is_of_a_known_kind() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    indented = [(page, line) for page, text in PAGES.items() for line in re.findall(r"(?m)^ {4}\S.*", strip(text))]
    assert indented == [], "a block without a fence would not be run"


def test_the_list_of_what_is_not_run_has_no_other_entries() -> None:
    assert NOT_RUN.keys() <= {block.first_line for block in SHELL}
    assert all(len(reason) > 20 for reason in NOT_RUN.values())


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "yaml"], ids=lambda block: block.first_line
)
def test_settings_in_a_page_are_settings(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(block.text.replace("/run/secrets", str(tmp_path)))
    (tmp_path / "webhook").write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    load_settings(file)


def list_inline() -> list[tuple[str, str]]:
    """The palimpsest commands in sentences and tables."""
    return [
        (page, " ".join(command.split()))
        for page, text in PAGES.items()
        for command in re.findall(r"`(palimpsest [a-z][^`]*)`", strip(text))
    ]


@cache
def make_group() -> Any:
    return get_command(build())


@pytest.mark.parametrize(("page", "command"), list_inline())
def test_a_command_in_a_sentence_exists_with_its_options(page: str, command: str) -> None:
    words = shlex.split(command.partition(" -- ")[0])[1:]
    group = make_group()
    while isinstance(group, typer.core.TyperGroup):
        assert words[0] in group.commands, f"{page}: {command}"
        _, found, words = group.resolve_command(group.make_context(None, [], resilient_parsing=True), words)
        assert found is not None
        group = found
    known = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--"}, f"{page}: {command}"


@pytest.mark.parametrize("page", PAGES)
def test_a_target_or_module_in_a_sentence_exists(page: str) -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"`make ([a-z]+)", PAGES[page])) <= targets
    modules = re.findall(r"`python\s+-m\s+([\w.]+)", PAGES[page])
    assert [name for name in modules if find_spec(name) is None] == []


@cache
def list_settings() -> frozenset[str]:
    return frozenset(".".join(key.path) for key in list_keys())


@pytest.mark.parametrize("page", PAGES)
def test_a_setting_that_a_page_names_exists(page: str) -> None:
    sections = "|".join({key.partition(".")[0] for key in list_settings() if "." in key})
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)[`:]", strip(PAGES[page])))
    assert {name for name in named if not name.endswith((".md", ".py", ".lock", ".toml", ".db"))} <= list_settings()


def test_the_picture_is_drawn_from_its_figures() -> None:
    figures = json.loads((ROOT / "docs" / "session-tokens.json").read_text())
    assert (ROOT / "docs" / "session-tokens.svg").read_text() == draw(figures)
