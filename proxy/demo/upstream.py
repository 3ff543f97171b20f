"""How the demonstration's upstream answers: by the script of the session. And a token meter.

It bills as a provider does: prompts are counted, and what it has seen at the beginning of an earlier prompt is read
from its cache.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from proxy.context.provider_cache import CacheModel
from proxy.demo.story import list_turns
from proxy.engine.call.response_stream import WholeResponse
from proxy.lab.session import Message, ScriptedStep
from proxy.lab.upstream import ScriptedCall
from proxy.model.exchange import Usage
from proxy.model.manifest import compute_digest
from proxy.model.messages import RECALL_TOOL
from proxy.trial.prompts import PromptCache, PromptPiece, count_prompt
from proxy.wire import OWN_FORMAT
from proxy.wire.translation.responses import write_response

MODEL = "gpt-5"
_CACHING = CacheModel(block=128, minimum=1024)
_PER_MESSAGE = 4
_OF_SUMMARIES = "written by the proxy palimpsest", "You write "
_NUMBERED = re.compile(r"^\[(m?\d+) user\]$", re.MULTILINE)


class Meter:
    """Counts prompts, and what a prefix cache reads of each, like OpenAI's: from 1,024 tokens on, in steps of 128."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count = count
        self._cache = PromptCache()
        self.usages: list[Usage] = []

    def add(self, body: dict[str, Any], answer: str) -> Usage:
        """Return the usage of a request with this answer, and remember its prompt."""
        parts = [{"tools": body.get("tools")}, *body["messages"]]
        texts = [json.dumps(part, ensure_ascii=False, sort_keys=True) for part in parts]
        prompt = [PromptPiece(compute_digest(text.encode()), self.count(text) + _PER_MESSAGE) for text in texts]
        cached = self._cache.take(prompt, _CACHING, 0.0)
        usage = Usage(input=count_prompt(prompt), output=self.count(answer) + _PER_MESSAGE, cached=cached)
        self.usages.append(usage)
        return usage


class DemoUpstream:
    """Answers the agent's requests with the steps of the session, one after the other, and requests for summaries.

    `recalls` counts the calls of the recall tool, `summaries` the summaries that it was asked for. `newest` is the
    usage of the agent's newest request, `newest_text` its body. `extended` counts the agent's requests that began
    with all messages of the one before.
    """

    def __init__(self, meter: Meter) -> None:
        self._steps = [step for turn in list_turns() for step in turn.steps]
        self._next = 0
        self.meter = meter
        self.recalls = self.summaries = self.extended = 0
        self._before: list[Any] = []
        self.newest, self.newest_text = Usage(), ""

    async def answer(self, call: ScriptedCall) -> WholeResponse | None:
        """Answer a call in the format of the script. There is no answer in another."""
        if call.form is not OWN_FORMAT:
            return None
        body = json.loads(call.body)
        asked = self.summaries
        message = self._find_answer(body)
        usage = self.meter.add(body, json.dumps(message))
        if self.summaries == asked:
            self.newest, self.newest_text = usage, call.body.decode()
            self._note_prefix(body["messages"], is_round=message.get("content") is None)
        number, answer = f"{len(self.meter.usages):06d}", [json.dumps(message).encode()]
        told = write_response(OWN_FORMAT, answer, number=number, model=MODEL, usage=usage)
        return WholeResponse(200, (), told)

    def _note_prefix(self, messages: list[Any], *, is_round: bool) -> None:
        """Note the messages of a request. One that the model recalls in comes again, with what it recalled."""
        self.extended += bool(self._before) and not is_round and messages[: len(self._before)] == self._before
        self._before = messages

    def _find_answer(self, body: dict[str, Any]) -> Message:
        messages = body["messages"]
        if any(words in str(messages[at].get("content")) for at, words in zip((-1, 0), _OF_SUMMARIES, strict=True)):
            self.summaries += 1
            return ScriptedStep(write_summary(messages)).write("")
        step = self._steps[min(self._next, len(self._steps) - 1)]
        has_recalled = any(call["function"]["name"] == RECALL_TOOL for call in messages[-2].get("tool_calls") or ())
        can_recall = any(tool["function"]["name"] == RECALL_TOOL for tool in body.get("tools") or ())
        if step.recalls and can_recall and not has_recalled:
            self.recalls += 1
            asked = {"action": "search", "query": step.recalls}
            return ScriptedStep("", RECALL_TOOL, asked).write(f"recall_{self.recalls}")
        self._next += 1
        return step.write(f"call_{self._next:04d}")


def write_summary(messages: Sequence[dict[str, Any]]) -> str:
    """Write a summary as a model would, from what the request shows of the session."""
    text = "\n".join(str(message.get("content") or "") for message in messages)
    carriers = sorted(set(re.findall(r"quayside/carriers/(\w+)\.py", text)) - {"base"})
    number = found.group(1) if (found := _NUMBERED.search(text)) else "1"
    numbered = f" [{number}]" if _NUMBERED.search(text) else ""
    lines = [
        "## Goal",
        "- The user wanted to know why promises were an hour or a day off in autumn, and to have it put right.",
        "## Constraints",
        f'- "Never change anything below migrations/, those files were released."{numbered}',
        f'- "Always use Decimal for money, never float."{numbered}',
        "## Discoveries",
        "- `add_working_days` in quayside/calendar.py added 24 hours for a day; the night of 25 October has 25.",
        "- Each carrier had a copy of that arithmetic, marked QS-218.",
        "## Completed",
        "- quayside/calendar.py counted local dates; its test over the weekend failed before and passed then.",
        *(f"- quayside/carriers/{name}.py was read or changed, with its tests." for name in carriers[:12]),
        "## Remaining",
        "- The carriers that were not yet changed were pending, and a last run of all tests.",
        "## Files",
        "- quayside/calendar.py: counts the days.",
        *(f"- quayside/carriers/{name}.py: a carrier." for name in carriers[:4]),
    ]
    return "\n".join(lines)
