"""Sessions on models that bind their reasoning, at an upstream that checks it strictly (BEHAVIOUR B37).

The client makes tool loops and turns, retries and branches; a person restarts the proxy, reverts epochs, observes or
bypasses calls, pins messages and switches the model. Told are calls that were refused, calls that were managed, and the
share of the assistant's messages in view that still have their reasoning. Exits with 1 if a call was refused, if the
upstream dropped a block by itself, or if a block was not sent and that was not told. With `--wire messages` it is
Anthropic's wire, whose upstream checks all other rules of messages, too (`tests/support/strict_messages`). With `--wire
responses` no reasoning is bound: it goes with its step, which need not be told; the upstream checks ids, pairs and the
order of items (`tests/support/strict_responses`). There the second row of a ceiling has four times as much in between.
"""

import argparse
import asyncio
import logging
from collections import Counter
from typing import get_args

from tests.support.bound_sessions import BoundSession
from tests.support.message_sessions import Marking, MessageSession
from tests.support.response_sessions import Echo, ResponseSession
from tests.support.strict_upstream import Check

# Each ceiling with the mean length of an output, in characters.
_CEILINGS = {8_000: 1_500, 16_000: 2_500, 32_000: 4_000, 64_000: 6_000}
_CHECKS: tuple[Check, ...] = ("error", "drop")
_FAULTS = ("refused", "failed", "healed", "dropped", "unsaid", "put back")
_ACTS = ("retry", "branch", "restart", "revert", "observe", "bypass", "switch", "pin")


def make_session(wire: str, ceiling: int, check: Check, seed: int, often: int) -> BoundSession:
    """Return one session; each differs in how its client sends reasoning, or cache markers."""
    if wire == "responses":
        echo = get_args(Echo)[seed % len(get_args(Echo))]
        is_stream, often = bool(seed // 2 % 2), often if check == "error" else 4 * often
        return ResponseSession(ceiling, echo=echo, is_stream=is_stream, seed=seed, size=_CEILINGS[ceiling], often=often)
    if wire == "messages":
        marking = get_args(Marking)[seed % len(get_args(Marking))]
        size, is_stream = _CEILINGS[ceiling], bool(seed % 2)
        return MessageSession(
            ceiling, check=check, marking=marking, is_stream=is_stream, seed=seed, size=size, often=often
        )
    member = "thinking_blocks" if seed % 2 else "reasoning_details"
    return BoundSession(ceiling, check=check, member=member, seed=seed, size=_CEILINGS[ceiling], often=often)


async def measure(wire: str, ceiling: int, check: Check, sessions: int, *, calls: int, often: int) -> Counter[str]:
    """Carry sessions at a ceiling, and return what came of all of them."""
    counts: Counter[str] = Counter()
    for seed in range(sessions):
        session = make_session(wire, ceiling, check, seed, often)
        await session.run(calls)
        await session.talk.close()
        counts.update(session.counts)
    return counts


async def run(wire: str, sessions: int, calls: int, often: int) -> bool:
    """Print a table. Return whether there was no fault."""
    is_sound = True
    print("| ceiling | check | calls | managed | reasoning kept | " + " | ".join((*_FAULTS, *_ACTS)) + " |")
    print("|--:" * (5 + len(_FAULTS) + len(_ACTS)) + "|")
    for ceiling in _CEILINGS:
        for check in _CHECKS:
            counts = await measure(wire, ceiling, check, sessions, calls=calls, often=often)
            is_sound = is_sound and not any(counts[name] for name in _FAULTS)
            managed, kept = counts["managed"] / counts["calls"], counts["blocks sent"] / counts["messages"]
            told = " | ".join(str(counts[name]) for name in (*_FAULTS, *_ACTS))
            print(f"| {ceiling} | {check} | {counts['calls']} | {managed:.0%} | {kept:.0%} | {told} |", flush=True)
    return is_sound


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=6, help="sessions for each ceiling and check")
    parser.add_argument("--calls", type=int, default=300, help="steps of each session")
    parser.add_argument("--often", type=int, default=1, help="how many times as often things happen between calls")
    parser.add_argument(
        "--wire", choices=("chat", "messages", "responses"), default="chat", help="the format of the requests"
    )
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    return 0 if asyncio.run(run(asked.wire, asked.sessions, asked.calls, asked.often)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
