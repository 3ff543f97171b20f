"""Files of the memory of sessions, each of which is replaced as a whole: a reader sees the old one or the new one."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

_FOLDER = "agents"
_UNFIT = re.compile(r"[^\w.-]")


def write_memory(folder: Path, session: str, files: Mapping[str, bytes]) -> Path:
    """Write the files of a session below `agents/SESSION`, and return their directory. Raises OSError.

    What is said in a session is nobody else's business: only the owner may read the files. One with the same content is
    left as it is.
    """
    own = _find_own(folder, session)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        if not _has_content(own / name, content):
            _replace(own / name, content)
    return own


def remove_memory(folder: Path, session: str) -> None:
    """Delete the files of a session below `agents/SESSION`, if there are any, for good. Raises OSError."""
    own = _find_own(folder, session)
    if not own.is_dir():
        return
    for path in own.iterdir():
        path.unlink(missing_ok=True)
    own.rmdir()
    handle = os.open(own.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _find_own(folder: Path, session: str) -> Path:
    return folder / _FOLDER / (_UNFIT.sub("_", session).lstrip(".") or "_")


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return False


def _replace(path: Path, content: bytes) -> None:
    """Replace a file. What a crash leaves of the new one has another name."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
