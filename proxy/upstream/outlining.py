"""Outlines of program text, made by `upstream/grammars` in a process of its own.

Rule: total and bounded, whatever the text is. The process is started when it is first needed; one that dies or takes
too long is done with, and the next text gets a new one. It blocks: call it in a thread.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("grammars.py")))
PATIENCE_SECONDS = 1.0
_MOST_CHARACTERS = 200_000

# The grammar of each kind; kinds are endings of paths.
GRAMMARS: Mapping[str, str] = {
    "js": "javascript", "mjs": "javascript", "cjs": "javascript", "jsx": "javascript",
    "ts": "typescript", "mts": "typescript", "cts": "typescript", "tsx": "tsx",
    "go": "go", "rs": "rust", "java": "java", "c": "c", "h": "c",
    "cpp": "cpp", "cc": "cpp", "cxx": "cpp", "hpp": "cpp", "hh": "cpp", "cs": "csharp",
    "rb": "ruby", "php": "php", "kt": "kotlin", "kts": "kotlin", "swift": "swift",
    "scala": "scala", "sh": "bash", "bash": "bash",
}  # fmt: skip


class Outliner:
    """Asks the process, one text at a time."""

    def __init__(self, program: Sequence[str] = PROGRAM, patience: float = PATIENCE_SECONDS) -> None:
        self._program = tuple(program)
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._asking = threading.Lock()

    def outline(self, text: str, kind: str) -> list[str]:
        """Classes, functions and methods with their lines. `kind` is the ending of a path; empty where none is known.

        Empty too where the text is too long, or too much for its parser.
        """
        if kind not in GRAMMARS or len(text) > _MOST_CHARACTERS:
            return []
        with self._asking:
            return self._ask(json.dumps([GRAMMARS[kind], text]))

    def close(self) -> None:
        """End the process."""
        with self._asking:
            self._end()

    def _ask(self, question: str) -> list[str]:
        process = self._find_process()
        if process is None or process.stdin is None or process.stdout is None:
            return []
        waiting = threading.Timer(self._patience, process.kill)
        waiting.start()
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            found: list[str] = json.loads(process.stdout.readline())
        except (OSError, ValueError):  # it died, perhaps of the text
            self._end()
            return []
        finally:
            waiting.cancel()
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
                    env={},  # nobody's keys
                    start_new_session=True,  # a Ctrl-C is not for it
                )
            except OSError:
                return None
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
