"""The long task: a model that goes through sixty parts, one a step, each of about 2,000 tokens; in two turns or one.

Rule: pure. What is next follows from the newest step that a request shows, and not from all of them, so that a request
that was shortened is answered as the whole one is.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.clients.script import DONE, Json, Script, Turn, list_items, read_tools

PARTS = 60
ORDER = "order.txt"  # what the commands that really ran wrote, in their order

_LINES = 54
_READ_EACH, _WRITE_EACH, _WRITE_AT = 4, 10, 5
_READ = "all is read up to part-"
_STEP = re.compile(r"(Begin with )?part-(\d\d)")
# Where tools are offered all the same: Claude Code, codex.
_SUMMARY = re.compile(r"Respond with TEXT ONLY|CONTEXT CHECKPOINT COMPACTION")
_WORDS = (
    "billing", "ledger", "refund", "invoice", "gateway", "session", "webhook", "importer", "scheduler", "archive",
)  # fmt: skip
_ENDS = ("finished", "was retried", "timed out", "was cancelled", "returned no rows", "is waiting for a lock")


@dataclass(frozen=True, slots=True)
class LongTask:
    """How the model answers a client that works through all parts. `turn`: how many parts a prompt asks for; `script`
    plays the tools. Where no tool is offered it writes the copy of a part as text, if `is_prose`.
    """

    turn: int = PARTS // 2
    script: Script = field(default_factory=Script)
    is_prose: bool = False
    pause: str = ""  # what a command ends with, for clients that miss what one writes that ends at once

    @property
    def run(self) -> int:
        """How many runs of the client were answered before."""
        return self.script.run

    def answer(self, asked: Json) -> Turn:
        """The answer to a request in any of the three wire formats."""
        tools, newest = dict(read_tools(asked)), find_step(asked)
        if self.is_prose:
            return Turn(f"Here is the copy.\n\n{name_copy(newest.n)}\n```\n{write_summary(newest.n)}```\n")
        if not tools or newest.asks_summary:
            return Turn(f"{DONE} {_READ}{newest.n:02}.")
        if newest.n and newest.n % self.turn == 0 and not newest.is_asked:
            ending = (
                replace(self.script, command=self.script.ending).fit(["shell"], tools) if self.script.ending else []
            )
            return Turn(f"{DONE} turn {newest.n // self.turn}.", tuple(ending))
        return self._take(newest.n if newest.is_asked else newest.n + 1, tools)

    def _take(self, n: int, tools: Mapping[str, Json]) -> Turn:
        """The step of a part: read by the shell or by a tool for files; some steps write what they found to a file."""
        command = f"cat {name_part(n)}; echo {n:02} >> {ORDER}{self.pause}"
        script = replace(self.script, note=name_part(n), copy=name_copy(n), text=write_summary(n), command=command)
        parts = [["read"]] * (n % _READ_EACH == 0) + [["write"]] * (n % _WRITE_EACH == _WRITE_AT) + [["shell"]]
        calls = next(calls for part in parts if (calls := script.fit(part, tools)))
        return Turn(f"Now the measurements of step {n}.", tuple(calls))


@dataclass(frozen=True, slots=True)
class Step:
    """The newest step that a request shows. `is_asked`: a prompt begins with it, and nothing was done for that yet.
    `asks_summary`: the client wants to shorten its history itself.
    """

    n: int = 0
    is_asked: bool = False
    asks_summary: bool = False


def find_step(asked: Json) -> Step:
    """Find the newest step: in the newest item that names a part, which stands last there."""
    items = list_items(asked)
    asks = bool(items) and _asks_summary(items[-1])
    texts = [json.dumps(item) for item in items if item.get("role") != "system"]
    # A client that compacted shows files again behind its summary that it had read before.
    known = max((int(n) for text in texts for n in re.findall(rf"{_READ}(\d\d)", text)), default=0)
    begin, n = next((found[-1] for text in reversed(texts) if (found := _STEP.findall(text))), ("", "0"))
    return Step(max(known, int(n)), bool(begin) and int(n) > known, asks)


def _asks_summary(item: Json) -> bool:
    """Whether an item ends with the words by which a client wants its history in short."""
    content = item.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    return item.get("role") == "user" and bool(_SUMMARY.search(str(parts[-1].get("text"))))


def name_part(n: int) -> str:
    """The file of a part."""
    return f"part-{n:02}.txt"


def name_copy(n: int) -> str:
    """The file that the step of a part writes."""
    return f"part-{n:02}.copy.txt"


def write_summary(n: int) -> str:
    """What that file holds."""
    return f"Measured: {n:02}. é\n"


def prompt_for(first: int) -> str:
    """The prompt that begins with a part."""
    return f"Read the measurements, one file a step. Begin with part-{first:02}."


def write_part(n: int) -> str:
    """A part: about 2,000 tokens, as a log has them; no line stands in another part."""
    chance = random.Random(n)
    lines = [f"part-{n:02}: measurements"]
    for k in range(_LINES):
        service, other = chance.choice(_WORDS), chance.choice(_WORDS)
        stamp = f"2026-03-{1 + n % 28:02} {chance.randrange(24):02}:{chance.randrange(60):02}:{k:02}"
        job = f"{chance.getrandbits(40):010x}"
        lines.append(
            f"{stamp} {service}-{chance.randrange(9)} job {job} for {other} {chance.choice(_ENDS)}"
            f" after {chance.randrange(9000)} ms, {chance.randrange(500)} rows"
        )
    return "\n".join([*lines, f"end of part-{n:02}", ""])
