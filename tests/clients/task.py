"""The long task: a model that goes through sixty parts, one a step, each of about 2,000 tokens; in two turns or one.

Rule: pure. What is next follows from the newest step that a request shows, and not from all of them, so that a request
that was shortened is answered as the whole one is.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proxy.model.messages import RECALL_TOOL
from tests.clients.recalls import drop_results, ends_with_result
from tests.clients.script import DONE, Call, Json, Script, Turn, list_items, read_tools

PARTS = 60
ORDER = "order.txt"  # what the commands that really ran wrote, in their order

_LINES = 54
_READ_EACH, _WRITE_EACH, _WRITE_AT = 4, 10, 5
_RECALLED_BEFORE = 15  # how many parts before a step the part was read that is recalled then
_READ = "all is read up to part-"
_STEP = re.compile(r"(Begin with )?part-(\d\d)")
# Where tools are offered all the same: Claude Code, codex.
_SUMMARY = re.compile(r"Respond with TEXT ONLY|CONTEXT CHECKPOINT COMPACTION")
_REFERENCE = re.compile(r"ref:([a-z2-7]{10})")
_JOB = re.compile(r".* job (\w+) .*")
_WORDS = (
    "billing", "ledger", "refund", "invoice", "gateway", "session", "webhook", "importer", "scheduler", "archive",
)  # fmt: skip
_ENDS = ("finished", "was retried", "timed out", "was cancelled", "returned no rows", "is waiting for a lock")


@dataclass(frozen=True, slots=True)
class LongTask:
    """How the model answers a client that works through all parts. `turn`: how many parts a prompt asks for; `script`
    plays the tools. Where no tool is offered it writes the copy of a part as text, if `is_prose`.

    Where it can recall, it searches before the steps `recalls`, and expands a reference in one answer with the steps
    `beside`. `thought` is what it says before that.
    """

    turn: int = PARTS // 2
    script: Script = field(default_factory=Script)
    is_prose: bool = False
    recalls: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    thought: str = "I look that up."
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
        n = newest.n if newest.is_asked else newest.n + 1
        turn = self._take(n, tools)
        if not can_recall(asked) or n not in (*self.recalls, *self.beside):
            return turn
        if n in self.recalls:
            return Turn(self.thought, (_search(n - _RECALLED_BEFORE),))
        return replace(turn, calls=(_expand(asked), *turn.calls))

    def answer_rescued(self, asked: Json) -> Turn:
        """The answer to a request that was sent in place of one that was refused: it recalls, whatever is next."""
        return Turn(self.thought, (_expand(asked),)) if can_recall(asked) else self.answer(asked)

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
    items = drop_results(list_items(asked))
    asks = bool(items) and _asks_summary(items[-1])
    texts = [json.dumps(item) for item in items if item.get("role") != "system"]
    # A client that compacted shows files again behind its summary that it had read before.
    known = max((int(n) for text in texts for n in re.findall(rf"{_READ}(\d\d)", text)), default=0)
    begin, n = next((found[-1] for text in reversed(texts) if (found := _STEP.findall(text))), ("", "0"))
    return Step(max(known, int(n)), bool(begin) and int(n) > known, asks)


def can_recall(asked: Json) -> bool:
    """Whether the tool to recall with is offered, and was not used just before."""
    return RECALL_TOOL in dict(read_tools(asked)) and not ends_with_result(asked)


def _search(n: int) -> Call:
    return Call(RECALL_TOOL, {"action": "search", "query": find_job(n)[0]})


def _expand(asked: Json) -> Call:
    """Expand the first reference that a request names, or search where it names none."""
    found = _REFERENCE.search(json.dumps(drop_results(list_items(asked))))
    return Call(RECALL_TOOL, {"action": "expand", "ref": found[1]}) if found else _search(1)


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


def find_job(n: int) -> tuple[str, str]:
    """The id of a part's first job, and its line; no other part has either."""
    found = _JOB.search(write_part(n))
    assert found is not None
    return found[1], found[0]


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
