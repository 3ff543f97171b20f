"""README.md and docs/, and the blocks of commands, outputs and settings in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}

# Blocks that are not run, by their first line, and why.
NOT_RUN = {
    "make install": "installs packages from an index, and then starts a real client with a real provider",
    'make run EXTRAS=providers ARGS="--config providers.yaml"': "installs packages from an index, and serves then",
    "make check": "would run this suite inside itself; some targets install real clients",
    ".venv/bin/python -m pytest tests/context/test_ledger.py": "would run this suite inside itself",
    "docker build -t palimpsest .": "needs Docker, and an image from a registry",
    ".venv/bin/palimpsest run -- codex": "starts a real client with a real provider",
    "head -c 32 /dev/urandom | base64 | tr -dc 'A-Za-z0-9' > deploy/metrics-token && chmod 644 deploy/metrics-token": (
        "starts containers, whose images come from a registry"
    ),
    "git clone … /usr/local/lib/palimpsest && make -C /usr/local/lib/palimpsest install": "installs a service as root",
    "OLLAMA_CONTEXT_LENGTH=16384 ollama serve": "starts an engine, which is no package",
    "palimpsest serve --upstream http://127.0.0.1:8080/v1": "serves until it is stopped, before an engine",
    ".venv/bin/python -m benchmarks.engine --server LLAMA_SERVER --model MODEL.gguf --ceiling 4000": (
        "needs an engine and a model, which are no packages of ours"
    ),
    "palimpsest try": "needs sessions that clients keep; tests/trial runs it on some",
    "palimpsest memory SESSION": "needs a session with facts; tests/journeys/test_memory.py runs these commands",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its text, and the output that a reader is told to expect."""

    page: str
    language: str
    text: str
    output: str = ""

    @property
    def first_line(self) -> str:
        return self.text.strip().splitlines()[0].partition("  #")[0].rstrip()


def list_blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for language, text in re.findall(r"(?ms)^```([^\n]*)\n(.*?)^```$", PAGES[page]):
        if language == "text output":
            found[-1] = Block(page, found[-1].language, found[-1].text, text)
        else:
            found.append(Block(page, language, text))
    return found


BLOCKS = [block for page in PAGES for block in list_blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]


def list_runnable(page: str) -> list[Block]:
    return [block for block in SHELL if block.page == page and block.first_line not in NOT_RUN]


def strip(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```$", "", text)
