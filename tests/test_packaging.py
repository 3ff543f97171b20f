"""What is needed to install, test and ship: locks, Makefile, CI script, container, licence."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import proxy
from tests.support.scripted import LIMIT

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")


def read(name: str) -> str:
    return (ROOT / name).read_text()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return found


def locked(name: str) -> dict[str, str]:
    """Names and versions in a lock."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", read(name)))


def plain(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(lock: str) -> None:
    blocks = re.split(r"(?m)^(?=[\w.-]+==)", read(lock))[1:]
    assert len(blocks) > 20
    assert [block.split()[0] for block in blocks if block.count("--hash=sha256:") < 1] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place_to_download_from(lock: str) -> None:
    wanted = re.compile(r"://|file:/|find-links|index-url|trusted-host|(?<![\w.])/\w", re.IGNORECASE)
    assert [line for line in read(lock).splitlines() if wanted.search(line)] == []


def test_every_dependency_is_locked() -> None:
    needed = {plain(requirement) for requirement in project()["dependencies"]}
    assert needed - set(locked("requirements.lock")) == set()
    for_developers = {plain(requirement) for requirement in project()["optional-dependencies"]["dev"]}
    assert for_developers - set(locked("requirements-dev.lock")) == set()


def test_tests_run_with_the_versions_that_are_shipped() -> None:
    shipped, tested = locked("requirements.lock"), locked("requirements-dev.lock")
    assert {name: tested.get(name) for name in shipped} == shipped


def test_the_build_needs_nothing_that_is_not_locked() -> None:
    build = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert {plain(requirement) for requirement in build} <= set(locked("requirements.lock"))


def test_the_console_script_exists() -> None:
    module, _, name = project()["scripts"]["palimpsest"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_one_version() -> None:
    assert project()["version"] == proxy.__version__


def test_the_licence_is_what_the_project_says() -> None:
    assert project()["license"] == "Apache-2.0"
    assert read("LICENSE").split()[:4] == ["Apache", "License", "Version", "2.0,"]


def test_make_knows_its_targets_and_says_what_they_do() -> None:
    targets = set(re.findall(r"(?m)^(\w+):.*## \w", read("Makefile")))
    assert {"run", "check", "test", "journeys", "golden", "bench", "format", "lock", "map", "clean", "help"} == targets


def recipe_of(target: str) -> str:
    return read("Makefile").split(f"\n{target}:")[1].split("\n\n")[0]


def test_make_check_runs_the_quick_gates_and_the_core() -> None:
    recipe = recipe_of("check")
    assert "static" in recipe.splitlines()[0]
    for tests in ("tests/model", "tests/wire", "tests/context", "tests/test_house_rules.py"):
        assert tests in recipe


def test_make_test_runs_every_gate() -> None:
    recipe = recipe_of("test")
    assert "static" in recipe.splitlines()[0]
    for gate in ("ruff format --check", "ruff check", "mypy", "lint-imports"):
        assert gate in recipe_of("static")
    for gate in ("$(PYTEST)", "--cov-fail-under=95"):
        assert gate in recipe
    assert "proxy/model/*,proxy/wire/*,proxy/context/*' --format=total --fail-under=100" in recipe


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_a_failing_test_is_named_when_it_fails(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): assert False, 'the reason'\n\n\ndef test_two(): pass\n")
    place = (
        "--rootdir",
        str(tmp_path),
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    )
    command = [sys.executable, "-m", "pytest", *place, *options, str(tmp_path)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False).stdout
    named, at_the_end = told.index("test_it.py::test_one: AssertionError: the reason"), told.index("= FAILURES =")
    assert named < at_the_end
    assert told.splitlines()[-1].startswith("1 failed, 1 passed in ")


def test_make_journeys_runs_the_agents_too_if_all_are_wished() -> None:
    recipe = read("Makefile").split("\njourneys:")[1].split("\n\n")[0]
    assert "python -m tests.clients $(if $(ALL),--all) $(ARGS)" in recipe


def test_ci_runs_make_test_the_golden_corpus_and_the_journeys() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-3:] == ["make test", "make golden", "exec make journeys"]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "proxy" / "py.typed").exists()


def instructions(name: str) -> list[str]:
    """The Dockerfile's instructions of one kind, continued lines joined."""
    joined = read("Dockerfile").replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in joined.splitlines() if line.split(" ")[0] == name]


class Container:
    """What docker does with the image, in this environment: a directory stands for /data, loopback for 0.0.0.0."""

    def __init__(self, data: Path) -> None:
        [own] = [line for line in instructions("ENV") if "PATH" in line]
        image = dict(pair.split("=", 1) for pair in own.split())
        assert image["PALIMPSEST_SERVER__HOST"] == "0.0.0.0"
        image |= {"PALIMPSEST_SERVER__HOST": "127.0.0.1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.environment = {**os.environ, **{name: value.replace("/data", str(data)) for name, value in image.items()}}
        [entry_point], [command] = instructions("ENTRYPOINT"), instructions("CMD")
        self._entry_point, self._command = json.loads(entry_point), json.loads(command)
        [check] = instructions("HEALTHCHECK")
        self._check = json.loads(check.partition(" CMD ")[2])

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """`docker run palimpsest ARGUMENTS`."""
        command = [*self._entry_point, *(arguments or self._command)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """`docker exec`."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT, check=False)

    def is_healthy(self) -> bool:
        return self.execute(*self._check).returncode == 0


def test_the_containers_base_is_pinned() -> None:
    assert {base.split()[0] for base in instructions("FROM")} == {"python:3.11.14-slim-bookworm"}


def test_the_container_installs_from_the_lock_with_hashes() -> None:
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert "--require-hashes --requirement /source/requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]


def test_the_container_is_not_root_and_writes_only_to_its_volume() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("VOLUME") == ["/data"]
    [environment] = [line for line in instructions("ENV") if "PATH" in line]
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "TMPDIR=/data" in environment


@pytest.mark.parametrize("arguments", [("--port", "0"), ("serve", "--port", "0"), ()])
def test_the_container_serves_its_directory_and_is_healthy_wherever_it_listens(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    container = Container(tmp_path)
    if not arguments:  # as it comes, but for the port, which may be taken here
        container.environment["PALIMPSEST_SERVER__PORT"] = "0"
    server = container.start(*arguments)
    assert server.stderr is not None
    try:
        lines = (re.search(r"base URL  http://127.*:(\d+)/v1", line) for line in server.stderr)
        port = next(found[1] for found in lines if found)
        assert any(container.is_healthy() for _ in range(60))
        listed = container.execute("palimpsest", "sessions")
        assert (listed.returncode, listed.stdout[:29]) == (0, "The log holds no sessions yet")
        assert container.execute("palimpsest", "open", "--print").stdout.startswith(
            f"http://127.0.0.1:{port}/-/?token="
        )
        server.terminate()
        assert server.wait(LIMIT) == 0
        container.environment["PALIMPSEST_SERVER__PORT"] = port
        assert not container.is_healthy()
    finally:
        server.kill()
        server.communicate()
    assert (tmp_path / "log.db").exists()


@pytest.mark.parametrize("arguments", [("--version",), ("config", "schema"), ("sessions", "--help")])
def test_the_container_runs_any_other_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command = Container(tmp_path).start(*arguments)
    told, complaint = command.communicate(timeout=LIMIT)
    assert (command.returncode, bool(told), complaint) == (0, True, "")


def test_the_container_is_built_from_named_files_only() -> None:
    ignored = read(".dockerignore").splitlines()
    assert ignored[0] == "*"
    copied = {source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]}
    assert {f"!{source}" for source in copied} <= set(ignored)
