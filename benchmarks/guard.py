"""What guarding a rewritten request costs: `python -m benchmarks.guard`.

The rule: medians of the thread's own time in one process. The client's history is known but for its last two messages,
as in every request of a session; the rewritten one has as many messages, a few of them ours.
"""

import json
import statistics
from collections.abc import Callable

from benchmarks.lineage import BYTES, MESSAGES, Message, make_history, take_time
from proxy.model.messages import MessageStructure
from proxy.wire import FORMATS
from proxy.wire.validity import Rules, Splice, extend_history, find_faults, judge_history

ROUNDS = 200
RULES = Rules()


def main() -> None:
    messages = make_history(MESSAGES, BYTES)
    chat = [
        json.dumps({"role": ("user", "assistant")[i % 2], "content": f"{i} words"}).encode() for i in range(MESSAGES)
    ]
    print(f"{MESSAGES} messages, {BYTES // 1000} KB; medians of {ROUNDS}, ms\n")
    for name, raws in (("calls and results", list(map(spell, messages))), ("words alone", chat)):
        show(name, raws)


def show(name: str, raws: list[bytes]) -> None:
    structures = [FORMATS["chat_completions"].parse_structure(raw) for raw in raws]
    history = judge_history(structures)
    # An even place holds an assistant's call or a user's words, the one behind it what answers.
    ours = [Splice(i, i + 2, (MessageStructure("user"),)) for i in range(2, 42, 4)]
    figures: dict[str, Callable[[], object]] = {
        "reading the two new messages": lambda: [FORMATS["chat_completions"].parse_structure(raw) for raw in raws[-2:]],
        "judging what they add": lambda: extend_history(history, len(structures) - 2, structures[-2:]),
        "the guard, 10 runs replaced": lambda: find_faults(history, ours, RULES),
        "the guard, 1 run replaced": lambda: find_faults(history, ours[:1], RULES),
        "once: reading everything": lambda: [FORMATS["chat_completions"].parse_structure(raw) for raw in raws],
        "once: judging everything": lambda: judge_history(structures),
    }
    print(name)
    for what, work in figures.items():
        print(f"  {what:32}{statistics.median(take_time(work)[0] for _ in range(ROUNDS)):9.3f}")
    assert find_faults(history, ours, RULES) == ()


def spell(message: Message) -> bytes:
    return json.dumps(message).encode()


if __name__ == "__main__":
    main()
