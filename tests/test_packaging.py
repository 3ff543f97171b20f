"""What is needed to install, test and ship: locks, Makefile, CI script, container, licence."""

import importlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import proxy

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
    assert {"run", "test", "journeys", "bench", "format", "lock", "clean", "help"} == targets


def test_make_test_runs_every_gate() -> None:
    recipe = read("Makefile").split("\ntest:")[1].split("\n\n")[0]
    for gate in ("ruff format --check", "ruff check", "mypy", "lint-imports", "pytest", "--cov-fail-under=95"):
        assert gate in recipe
    assert "proxy/model/*,proxy/wire/*,proxy/context/*' --format=total --fail-under=100" in recipe


def test_make_journeys_runs_the_agents_too_if_all_are_wished() -> None:
    recipe = read("Makefile").split("\njourneys:")[1].split("\n\n")[0]
    assert "python -m tests.clients $(if $(ALL),--all) $(ARGS)" in recipe


def test_ci_runs_make_test_and_the_journeys() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-2:] == ["make test", "exec make journeys"]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "proxy" / "py.typed").exists()


def instructions(name: str) -> list[str]:
    """The Dockerfile's instructions of one kind, continued lines joined."""
    joined = read("Dockerfile").replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in joined.splitlines() if line.split(" ")[0] == name]


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
    assert instructions("CMD") == ['["serve", "--host", "0.0.0.0", "--data", "/data"]']
    assert instructions("ENTRYPOINT") == ['["palimpsest"]']


def test_the_container_reports_its_health() -> None:
    [check] = instructions("HEALTHCHECK")
    assert "/-/live" in check
    code = re.search(r'"-c", "(.*)"\]', check)
    assert code
    compile(code[1], "health check", "exec")


def test_the_container_is_built_from_named_files_only() -> None:
    ignored = read(".dockerignore").splitlines()
    assert ignored[0] == "*"
    copied = {source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]}
    assert {f"!{source}" for source in copied} <= set(ignored)
