"""Outlines of source code, made by `outline_program.py` in a process of its own.

The optional dependencies `outlines` provide the grammars; without them every outline is empty. A request never fails
and never takes longer than a second: a process that dies or takes too long is killed, and the next text gets a new one.
A request blocks, so call it in a thread.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("outline_program.py")))
TIME_LIMIT = 1.0  # seconds
MOST_KNOWN = 1000
_LONGEST_TEXT = 200_000  # characters
_PACKAGES = ("tree_sitter", "tree_sitter_language_pack")

# The grammar of each kind. A kind is the extension of a file name.
GRAMMARS: Mapping[str, str] = {
    "js": "javascript", "mjs": "javascript", "cjs": "javascript", "jsx": "javascript",
    "ts": "typescript", "mts": "typescript", "cts": "typescript", "tsx": "tsx",
    "go": "go", "rs": "rust", "java": "java", "c": "c", "h": "c",
    "cpp": "cpp", "cc": "cpp", "cxx": "cpp", "hpp": "cpp", "hh": "cpp", "cs": "csharp",
    "rb": "ruby", "php": "php", "kt": "kotlin", "kts": "kotlin", "swift": "swift",
    "scala": "scala", "sh": "bash", "bash": "bash",
}  # fmt: skip


def has_grammars() -> bool:
    """Return whether the optional dependencies `outlines` are installed, without importing them."""
    return all(importlib.util.find_spec(package) is not None for package in _PACKAGES)


class Outliner:
    """Sends one text at a time to the process, which is started when it is first needed."""

    def __init__(self, program: Sequence[str] = PROGRAM, time_limit: float = TIME_LIMIT) -> None:
        self._program = tuple(program)
        self._time_limit = time_limit
        self._kinds = frozenset(GRAMMARS) if has_grammars() else frozenset()
        self._process: subprocess.Popen[str] | None = None
        self._asking = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], list[str]] = OrderedDict()

    def outline(self, text: str, kind: str) -> list[str]:
        """Return classes, functions and methods with their lines. `kind` is the extension of a file name.

        The list is empty if there are none, if no grammar fits, or if the parser fails or takes too long. Outlines are
        kept by the hash of their text, the last `MOST_KNOWN` of them.
        """
        if kind not in self._kinds or len(text) > _LONGEST_TEXT:
            return []
        key = kind, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        with self._asking:
            found = self._known.pop(key, None) or self._ask(json.dumps([GRAMMARS[kind], text]))
            if found:  # an empty one may be due to the time limit
                self._known[key] = found
                while len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
            return found

    def close(self) -> None:
        """End the process."""
        with self._asking:
            self._end()

    def _ask(self, request: str) -> list[str]:
        process = self._find_process()
        if process is None or process.stdin is None or process.stdout is None:
            return []
        timer = threading.Timer(self._time_limit, process.kill)
        timer.start()
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            found: list[str] = json.loads(process.stdout.readline())
        except (OSError, ValueError):  # the process has died, perhaps because of the text
            self._end()
            return []
        finally:
            timer.cancel()
        return found

    def _find_process(self) -> "subprocess.Popen[str] | None":
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._program,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    encoding="utf-8",
                    env={},  # no API keys
                    start_new_session=True,  # Ctrl-C must not reach it
                )
            except OSError:
                return None
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
