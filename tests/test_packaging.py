"""What is needed to install, test and ship: requirements, locks, Makefile, CI script, container, licence."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import proxy
from tests.support.scripted import LIMIT

ROOT = Path(__file__).parents[1]
CORE, DEVELOPERS = "requirements.lock", "requirements-dev.lock"
OUTLINES, MCP, PROVIDERS = "requirements-outlines.lock", "requirements-mcp.lock", "requirements-providers.lock"
TELEMETRY = "requirements-telemetry.lock"
LOCKS = (CORE, OUTLINES, MCP, PROVIDERS, TELEMETRY, DEVELOPERS)
MEGABYTE = 1_000_000


def read(name: str) -> str:
    return (ROOT / name).read_text()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return found


def locked(name: str) -> dict[str, str]:
    """Names and versions in a lock."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", read(name)))


def list_requirements(*extras: str) -> list[Requirement]:
    """What the package asks for with some extras, and what building it asks for."""
    build = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    optional = project()["optional-dependencies"]
    written = [*project()["dependencies"], *build, *(each for extra in extras for each in optional[extra])]
    return [Requirement(each) for each in written]


def find_needed(requirements: Iterable[Requirement]) -> dict[str, list[Requirement]]:
    """Everything that is needed on this machine, as the installed packages say it; by name, with who asks for what."""
    needed: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(each, "") for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        needed.setdefault(name, []).append(requirement)
        for asked in {"", *requirement.extras} - {asked for known, asked in seen if known == name}:
            seen.add((name, asked))
            waiting += [(Requirement(each), asked) for each in distribution(name).requires or ()]
    return needed


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(lock: str) -> None:
    blocks = re.split(r"(?m)^(?=[\w.-]+==)", read(lock))[1:]
    assert len(blocks) > 20
    assert [block.split()[0] for block in blocks if block.count("--hash=sha256:") < 1] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place_to_download_from(lock: str) -> None:
    wanted = re.compile(r"://|file:/|find-links|index-url|trusted-host|(?<![\w.])/\w", re.IGNORECASE)
    assert [line for line in read(lock).splitlines() if wanted.search(line)] == []


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        (CORE, ()),
        (OUTLINES, ("outlines",)),
        (MCP, ("mcp",)),
        (PROVIDERS, ("providers",)),
        (TELEMETRY, ("telemetry",)),
        (DEVELOPERS, ("outlines", "mcp", "providers", "telemetry", "dev")),
    ],
)
def test_a_lock_is_what_pip_would_install_and_no_more(lock: str, extras: tuple[str, ...]) -> None:
    versions, needed = locked(lock), find_needed(list_requirements(*extras))
    assert set(versions) - set(needed) == set()
    unmet = [
        f"{name} {versions.get(name)}: {each}"
        for name, asked in needed.items()
        for each in asked
        if name not in versions or not each.specifier.contains(versions[name], prereleases=True)
    ]
    assert unmet == []


def test_tests_run_with_the_versions_that_are_shipped() -> None:
    tested = locked(DEVELOPERS)
    for lock in (CORE, OUTLINES, MCP, PROVIDERS, TELEMETRY):
        assert {name: tested.get(name) for name in locked(lock)} == locked(lock)
    assert {name: distribution(name).version for name in tested} == tested


def test_what_few_people_need_is_an_extra() -> None:
    assert set(project()["optional-dependencies"]) == {"outlines", "mcp", "providers", "telemetry", "dev"}
    heavy = {"litellm", "mcp", "opentelemetry-sdk", "tiktoken", "tree-sitter", "tree-sitter-language-pack"}
    assert heavy & set(locked(CORE)) == set()
    assert heavy & set(locked(OUTLINES)) == {"tree-sitter", "tree-sitter-language-pack"}
    assert heavy & set(locked(MCP)) == {"mcp"}
    assert heavy & set(locked(TELEMETRY)) == {"opentelemetry-sdk"}
    assert heavy & set(locked(PROVIDERS)) == {"litellm", "mcp", "tiktoken"}
    assert locked(PROVIDERS)["litellm"] not in ("1.82.7", "1.82.8"), "these were tampered with"
    library, *_ = (Requirement(each) for each in project()["optional-dependencies"]["providers"])
    assert library.name == "litellm"
    assert not any(library.specifier.contains(version) for version in ("1.82.7", "1.82.8"))


def test_a_core_install_is_small() -> None:
    paths = [Path(str(file.locate())) for name in locked(CORE) for file in distribution(name).files or ()]
    paths += [path for path in (ROOT / "proxy").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in paths if path.exists()) < 150 * MEGABYTE


def test_the_package_imports_nothing_that_a_core_install_lacks() -> None:
    providers = packages_distributions()
    there = {"proxy", *sys.stdlib_module_names}
    there |= {
        module for module, names in providers.items() if {canonicalize_name(n) for n in names} & set(locked(CORE))
    }
    outlines = {
        module for module, names in providers.items() if {"tree-sitter", "tree-sitter-language-pack"} & {*names}
    }
    extra = {"outline_program.py": outlines, "sdk.py": {"mcp", "mcp_types"}, "tracing.py": {"opentelemetry"}}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)]
        froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        modules = {alias.name.partition(".")[0] for node in imports for alias in node.names}
        modules |= {(node.module or "").partition(".")[0] for node in froms}
        assert modules - there == extra.get(path.name, set()), path


def test_a_wheel_has_the_map_of_models_and_asks_for_what_the_project_does(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "palimpsest_command.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "proxy", tmp_path / "proxy", ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    command = [sys.executable, "-c", build]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    with zipfile.ZipFile(tmp_path / told.splitlines()[-1]) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("proxy/")}
        assert "palimpsest_command.py" in wheel.namelist()
        [metadata] = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        asked = re.findall(r"(?m)^Requires-Dist: (.*)$", wheel.read(metadata).decode())
    files = [path for path in (tmp_path / "proxy").rglob("*") if path.is_file()]
    assert packed == {path.relative_to(tmp_path).as_posix() for path in files}
    assert "proxy/upstream/model_map.json" in packed
    plain = {str(Requirement(each)) for each in asked if "extra ==" not in each}
    assert plain == {str(Requirement(each)) for each in project()["dependencies"]}


def test_the_console_script_exists() -> None:
    module, _, name = project()["scripts"]["palimpsest"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_command_says_which_package_has_its_name(tmp_path: Path, is_ours: bool) -> None:
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy" / "__init__.py").write_text('"""proxy.py"""\n')
    (tmp_path / "proxy" / "__main__.py").write_text("def entry_point() -> None: ...\n")
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: proxy.py\nVersion: 1.0\n")
    (folder / "top_level.txt").write_text("proxy\n")
    (folder / "RECORD").write_text("proxy/__init__.py,,\n")
    places = [str(ROOT)] if is_ours else [str(tmp_path), str(ROOT)]
    code = f"import sys; sys.path[:0] = {places}; sys.argv = ['palimpsest', '--version']\n"
    command = [sys.executable, "-P", "-c", f"{code}from palimpsest_command import main; main()"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    if is_ours:
        assert (ended.returncode, ended.stderr) == (0, "") and proxy.__version__ in ended.stdout
        return
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert "of proxy.py, is not palimpsest's: " in ended.stderr and str(tmp_path / "proxy") in ended.stderr


def test_make_installs_by_a_python_that_has_pip_although_the_environment_comes_first(tmp_path: Path) -> None:
    venv.create(tmp_path / "made", with_pip=False, symlinks=True)
    environment = {**os.environ, "PATH": f"{tmp_path / 'made' / 'bin'}:{os.environ['PATH']}"}
    command = ["make", "--dry-run", f"VENV={tmp_path / 'made'}", "install", "EXTRAS=mcp"]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=True)
    [chosen, *_] = re.findall(r"(?m)^(\S+) -m pip .* --requirement requirements-mcp.lock", told.stdout)
    asked = subprocess.run(
        [chosen, "-m", "pip", "--version"], env=environment, capture_output=True, timeout=LIMIT, check=False
    )
    assert asked.returncode == 0, chosen


def test_one_version() -> None:
    assert project()["version"] == proxy.__version__


def test_the_licence_is_what_the_project_says() -> None:
    assert project()["license"] == "Apache-2.0"
    assert read("LICENSE").split()[:4] == ["Apache", "License", "Version", "2.0,"]


def test_make_knows_its_targets_and_says_what_they_do() -> None:
    targets = set(re.findall(r"(?m)^(\w+):.*## \w", read("Makefile")))
    assert {
        "run",
        "install",
        "check",
        "test",
        "coverage",
        "journeys",
        "golden",
        "bench",
        "format",
        "lock",
        "map",
        "clean",
        "help",
    } == targets


def recipe_of(target: str) -> str:
    return read("Makefile").split(f"\n{target}:")[1].split("\n\n")[0]


@pytest.mark.parametrize(
    ("options", "locks"),
    [
        ((), [CORE]),
        (("EXTRAS=outlines",), [OUTLINES]),
        (("EXTRAS=mcp",), [MCP]),
        (("EXTRAS=providers",), [PROVIDERS]),
        (("EXTRAS=telemetry",), [TELEMETRY]),
        (("EXTRAS=outlines providers",), [OUTLINES, PROVIDERS]),
    ],
)
def test_make_run_installs_the_core_unless_more_is_wished_and_says_so(
    tmp_path: Path, options: tuple[str, ...], locks: list[str]
) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path}", "run", *options]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    assert re.findall(r"install --no-deps --require-hashes --requirement (\S+)", told) == locks
    said = [line for line in told.splitlines() if line.startswith("echo ")]
    assert [line.split()[1] for line in said] == ['"Making', *['"Installing'] * 2 * len(locks)]
    assert [re.findall(r"packages from (\S+): ", line) for line in said[1::2]] == [[lock] for lock in locks]


def test_make_check_runs_the_quick_gates_and_the_core() -> None:
    recipe = recipe_of("check")
    assert "static" in recipe.splitlines()[0]
    for tests in ("tests/model", "tests/wire", "tests/context", "tests/test_house_rules.py"):
        assert tests in recipe


def test_make_test_runs_every_gate_and_all_tests() -> None:
    recipe = recipe_of("test")
    assert "static" in recipe.splitlines()[0]
    for gate in ("ruff format --check", "ruff check", "mypy", "lint-imports"):
        assert gate in recipe_of("static")
    assert recipe.splitlines()[1:] == [
        "\t$(PYTEST) --durations-file=build/durations.txt --ignore=tests/journeys --ignore=tests/clients"
        " --ignore=tests/browser"
    ]
    assert "$(PYTEST) tests/journeys tests/clients tests/browser\n" in recipe_of("journeys")


def test_make_coverage_holds_the_branches_of_the_core() -> None:
    recipe = recipe_of("coverage")
    assert "--cov-fail-under=95" in recipe
    assert "proxy/model/*,proxy/wire/*,proxy/context/*,proxy/retrieval/*' --format=total --fail-under=100" in recipe


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
    assert "python -m tests.clients $(if $(ALL),--all) $(if $(LONG),--long) $(ARGS)" in recipe


def test_ci_runs_the_tests_their_coverage_the_golden_corpus_and_the_journeys() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-4:] == ["make test", "make coverage", "make golden", "exec make journeys"]


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
    assert instructions("ARG") == ['EXTRAS=""']
    assert '--no-deps --require-hashes --requirement "/source/$lock.lock"' in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]


@pytest.mark.parametrize(
    ("extras", "locks"),
    [("", [CORE]), ("providers", [CORE, PROVIDERS]), ("outlines providers", [CORE, OUTLINES, PROVIDERS])],
)
def test_the_container_takes_the_extras_that_are_wished(tmp_path: Path, extras: str, locks: list[str]) -> None:
    [install] = [line for line in instructions("RUN") if "--require-hashes" in line]
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\nfor last; do :; done\nbasename "$last"\ntest "$FAIL" != "$(basename "$last")"\n')
    pip.chmod(0o755)

    def run(fail: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "EXTRAS": extras, "FAIL": fail}
        command = ["sh", "-c", install.replace("/venv/bin/pip", str(pip))]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert (run("").returncode, run("").stdout.split()) == (0, locks)
    assert run(locks[0]).returncode != 0


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
