"""Sessions with turns of a user, and their memory, over fakes (`support/compacting`)."""

from collections.abc import Sequence
from typing import Any

from proxy.engine.memory.compaction import MemoryCompaction
from tests.support.compacting import REPORT, Workshop, say
from tests.support.managing import Message
from tests.support.manual_compaction import make_manual_compaction

FACTS = """
## Facts
- [decision 0.8] The parser stays recursive descent. #parser [m3]
- [fact 0.6] The port of the test server is 8484. #ports
"""


def make_memory(shop: Workshop) -> MemoryCompaction:
    """Return what makes memory of the sessions of an engine."""
    return MemoryCompaction(memory=shop.remembered, manual=make_manual_compaction(shop))


def make_turn(n: int, text: str, steps: int = 2, size: int = 1500) -> list[Message]:
    """One turn: what the user says, some calls of tools with their results, and an answer."""
    messages: list[Message] = [{"role": "user", "content": text}]
    for i in range(steps):
        id = f"call_{n}_{i}_{text[:4]}"
        call = {"id": id, "type": "function", "function": {"name": "bash", "arguments": f'{{"command":"run {n} {i}"}}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": id, "content": f"output {n} {i} of the test run\n" * (size // 28)}
        )
    messages.append({"role": "assistant", "content": f"Turn {n} is done."})
    return messages


async def talk(shop: Workshop, texts: Sequence[str], *, system: Message | None = None, **options: Any) -> list[Message]:
    """Have a session of one turn for each text, with a call of a client at the end of each; the messages."""
    history: list[Message] = [] if system is None else [system]
    for n, text in enumerate(texts, 1):
        turn = make_turn(n, text, **options)
        await shop.ask([*history, *turn[:-1]])
        history += turn
    return history


def report_with_facts(body: bytes) -> bytes:
    """A model that states facts beside its report."""
    return say(f"{REPORT}- And so on ({len(body)}).\n{FACTS}", sent=len(body) // 4)
