"""Long sessions at upstreams that refuse as the providers do, and bill as they do (BEHAVIOUR B7, B10 to B14, B37).

`python -m benchmarks.strict_sessions`: for each row one session of 300 calls, with outputs of 2,000 tokens in the mean,
up to three calls in a step (and on Responses some whose outputs come turns later), images, and what a person says. The
upstreams (`tests/support/strict_messages`, `strict_responses`) check signed thinking, ids and pairs, and refuse with
the provider's own errors. A token is a quarter of a character; each request is billed by the rules of its provider's
cache, 15 simulated seconds after the one before. The engine runs over a log in memory. `by arithmetic` is what the
marks of B12 give for the same tokens (`reckon`); `reports` are summaries that a model was asked for.

`--busy`: shorter outputs, and between calls everything happens that a client and a person may do (retries, branches,
restarts, reverts, calls that are observed or bypassed, other models, pins, compactions by the provider), on chat
completions, too. There, reasoning that is not sent has to be told. Exits with 1 if there is any fault: a call refused,
failed, or mended inside; a block that the upstream dropped, that came back, or that is gone and not told; a compaction
that is not exactly one item.
"""

import argparse
import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from benchmarks.cache_billing import SECONDS_BETWEEN
from benchmarks.chat_wires import Body
from benchmarks.messages_billing import EXACT, LOOK_BACK, MARKER, Bill, list_message_blocks
from proxy.context.budget import Budget, BudgetPolicy, make_budget
from proxy.context.provider_cache import CacheModel
from proxy.engine.policy import Provider
from proxy.model.card import Card, Offer
from proxy.model.epoch import STRATEGIES, Epoch
from proxy.upstream.model_catalog import load_model_map
from tests.support.bound_sessions import BoundSession
from tests.support.compacting import REPORT, is_own
from tests.support.managing import QuarterTokens
from tests.support.message_sessions import Marking, MessageSession
from tests.support.response_sessions import Echo, ResponseSession
from tests.support.strict_responses import LATER
from tests.support.strict_upstream import Check
from tests.support.wire_sessions import WireSession

CEILINGS = (16_000, 32_000, 64_000, 128_000)
FAULTS = ("refused", "failed", "healed", "dropped", "unsaid", "put back", "odd compactions")
ACTS = ("retry", "branch", "restart", "revert", "observe", "bypass", "switch", "pin", "compact")
MANUAL = {"type": "enabled", "budget_tokens": 2048}
_OUTPUT = 8_000  # characters of an output, in the mean
_WINDOW = 1_000_000
_ASKED = 4096  # tokens of output that a request of `messages` asks for
_GROUPS, _TURNS = 3, 2  # what stays word for word (B13, B14)
_TOMBSTONE = 60  # tokens of what stands for an output
_MOST_PROTECTED = 0.7  # of the budget: above, protection gives way (B12)
# Each ceiling of `--busy` with the mean length of an output, in characters.
_BUSY = {8_000: 1_500, 16_000: 2_500, 32_000: 4_000, 64_000: 6_000}
_CHECKS: tuple[Check, ...] = ("error", "drop")


class Row(NamedTuple):
    """A kind of session. `is_bound`: epochs wait for a person's message. Without `asks` nobody says anything more."""

    name: str
    wire: str
    model: str
    is_bound: bool = True
    asks: bool = True
    has_budget: bool = False  # of thinking


ROWS = (
    Row("messages, thinking bound", "messages", "claude-opus-5-5"),
    Row("messages, not bound", "messages", "claude-sonnet-4-6", is_bound=False),
    Row("responses", "responses", "gpt-5.6", is_bound=False),
)
LOOPS = (
    Row("bound, one loop", "messages", "claude-opus-5-5", asks=False),
    Row("budget of thinking", "messages", "claude-sonnet-4-5", is_bound=False, has_budget=True),
    Row("budget of thinking, one loop", "messages", "claude-sonnet-4-5", is_bound=False, asks=False, has_budget=True),
    Row("budget, unknown model", "messages", "unknown-1", is_bound=False, has_budget=True),
    Row("budget, unknown model, one loop", "messages", "unknown-1", is_bound=False, asks=False, has_budget=True),
)


class Step(NamedTuple):
    """What a call of the client adds to its history, and what then stays word for word, in tokens."""

    tokens: int
    protected: int
    fresh: int  # of `protected`, what stays in any case: the newest turn, and what no model has answered
    is_turn: bool  # whether a person spoke last


class Reckoned(NamedTuple):
    """What comes of a session by arithmetic."""

    epochs: int
    tokens: int
    read: int


def reckon(steps: Sequence[Step], head: int, budget: Budget, cache: CacheModel, *, waits: bool) -> Reckoned:
    """Return what the marks of B12 and the price of B10 give, if each epoch leaves its low mark exactly.

    An epoch opens at the high mark, and above the soft mark once the excess reads have cost as much as writing anew
    what it leaves. If it `waits`, it opens below the high mark only where a person spoke last (B37). A call reads
    all that was sent before; one that opens an epoch reads the head.
    """
    size, base, owed, price_read, price_write = head, 0, 0.0, cache.read or 0.0, cache.write or 1.0
    epochs = tokens = read = 0
    for step in steps:
        before, size = size, size + step.tokens
        low = max(step.fresh, int(_MOST_PROTECTED * budget.usable))  # where protection gives way
        if step.protected <= low:
            low = max(step.fresh, budget.compute_low_mark(step.protected))
        is_paid = owed >= (price_write - price_read) * max(0, (base or low) - head)
        is_due = size >= budget.soft and is_paid and (step.is_turn or not waits)
        if low < size and (size >= budget.high or is_due):
            epochs, size, base, owed, before = epochs + 1, low, low, 0.0, head
        owed += price_read * max(0, before - (base or low))
        tokens, read = tokens + size, read + before
    return Reckoned(epochs, tokens, read)


def count(text: str) -> int:
    """Count tokens as the engine does here."""
    return QuarterTokens().count(text, "o200k_base")[0]


def list_item_blocks(body: Body) -> Iterator[Body]:
    """Yield the items of a request of Responses, with their roles, behind what goes before them.

    The first developer's message ends with a marker: the provider sets a breakpoint there (WIRES §4).
    """
    yield {"role": "system", "instructions": body.get("instructions"), "tools": body.get("tools")}
    for place, item in enumerate(body["input"]):
        kind = item.get("type", "")
        is_others = kind.endswith("_output") or kind == "configuration_update" or item.get("role") == "user"
        block = {**item, "role": "user" if is_others else item.get("role", "assistant")}
        yield block | {MARKER: {}} if not place and item.get("role") == "developer" else block


class Meter:
    """Bills the calls of a session, and notes what each adds to the client's history."""

    def __init__(self, row: Row, session: WireSession) -> None:
        facts = find_offer(row.model).caches
        rules = EXACT if row.wire == "responses" else LOOK_BACK
        self.cache = next(each for each in map(_make_cache, facts) if each.kind == rules.kind)
        blocks = list_item_blocks if row.wire == "responses" else list_message_blocks
        self.main = Bill(self.cache, count=count, list_blocks=blocks)
        self.own = Bill(self.cache, count=count, list_blocks=blocks, cache=self.main.cache)
        self.steps: list[Step] = []
        self.sizes: list[int] = []
        self._session, self._known, self._standing, self._is_led = session, 0, 0, False
        self._waiting: dict[str, int] = {}  # what stays for a call whose output is still to come, by its id
        self._groups: list[int] = []
        self._turns: list[int] = []
        body = json.loads(session.write())
        alone = Bill(self.cache, count=count, list_blocks=blocks)
        alone.add({**body, session.items_key: []})
        self.head = alone.tokens
        session.upstream.count_usage = self._count_usage
        session.upstream.asks_for_report = lambda sent: is_own(sent)

    def _count_usage(self, request: Body) -> tuple[int, int, int]:
        bill = self.own if is_own(json.dumps(request, ensure_ascii=False).encode()) else self.main
        before = bill.tokens
        counts = bill.add(request, SECONDS_BETWEEN * len(self.steps))
        if bill is self.main:
            self.sizes.append(bill.tokens - before)
        return counts

    def note_step(self) -> None:
        """Note what the client's next call adds."""
        history, is_led = self._session.history, self._is_led
        tokens, fresh, is_turn = 0, 0, False
        self._note_waiting(history[self._known :])
        for message in history[self._known :]:
            size = sum(count(json.dumps(part)) for part in _list_parts(message))
            self._is_led = message.get("role") == "system"
            if is_led or self._is_led or message.get("type") == "configuration_update":
                self._standing += _TOMBSTONE if _has_result(message) else size
            if message.get("role") == "user" and not _has_result(message):
                self._turns.append(size)
                is_turn = True
            elif _has_result(message):
                fresh += size
            tokens += size
        if not is_turn:
            self._groups.append(tokens)
        self._known = len(history)
        protected = self.head + sum(self._groups[-_GROUPS:]) + sum(self._turns[-_TURNS:]) + self._standing
        protected += sum(self._waiting.values())
        self.steps.append(Step(tokens, protected, self.head + sum(self._turns[-1:]) + fresh, is_turn))

    def _note_waiting(self, items: Sequence[Any]) -> None:
        """Note calls whose outputs come later: their answers stay, with tombstones of the other outputs."""
        for call in items:
            self._waiting.pop(call.get("call_id", "") if _has_result(call) else "", None)
            if call.get("name") == LATER:
                kept = sum(_TOMBSTONE if _has_result(item) else count(json.dumps(item)) for item in items)
                self._waiting[call["call_id"]] = kept


def find_offer(model: str) -> Offer:
    """Return what the map has of a model; an unknown one is taken to cost what `claude-sonnet-4-5` does."""
    return load_model_map().find("claude-sonnet-4-5" if model.startswith("unknown") else model)


def _make_cache(facts: Any) -> CacheModel:
    return CacheModel(
        facts.kind,
        facts.block,
        facts.minimum,
        facts.lifetime,
        lookback=facts.lookback,
        most_marks=facts.most_marks,
        is_refreshed=facts.is_refreshed,
        read=facts.read,
        write=facts.write,
    )


def _list_parts(message: Any) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) and "call_id" not in message else [message]


def _has_result(message: Any) -> bool:
    return message.get("type", "").endswith("_output") or any(
        part.get("type") == "tool_result" for part in _list_parts(message)
    )


def make_session(row: Row, ceiling: int, seed: int, *, has_reports: bool, strategy: str) -> WireSession:
    """Return a session of a row, whose client asks for a strategy."""
    offer = find_offer(row.model)
    card = Card(_WINDOW, prices=offer.prices, caches=offer.caches) if offer.prices else Card(_WINDOW)
    options: Any = {"seed": seed, "size": _OUTPUT, "often": 0, "card": card, "has_reports": has_reports}
    options |= {"model": row.model, "other": row.model}
    session: WireSession
    if row.wire == "responses":
        session = ResponseSession(
            ceiling, echo="codex", is_async=True, provider=Provider(cache="openai-breakpoints"), **options
        )
    else:
        body = {"thinking": MANUAL} if row.has_budget else {}
        session = MessageSession(ceiling, marking="long", body=body, **options)
    session.name = (*session.name, (b"x-palimpsest-strategy", strategy.encode()))
    session.upstream.end_chance *= row.asks
    session.upstream.reports = REPORT
    return session


async def measure(
    row: Row, ceiling: int, calls: int, seed: int, *, has_reports: bool, strategy: str
) -> tuple[str, bool]:
    """Carry a session, and return its line of the table, and whether it has no fault."""
    session = make_session(row, ceiling, seed, has_reports=has_reports, strategy=strategy)
    meter = Meter(row, session)
    for _ in range(calls):
        meter.note_step()
        await session.act()
        await session.talk.settle()
        session.talk.engine.clock.advance(SECONDS_BETWEEN)
    epochs: Sequence[Epoch] = await session.talk.log.list_epochs(session.talk.session)
    await session.talk.close()
    budget = make_budget(
        _WINDOW, None, _ASKED if row.wire == "messages" else None, BudgetPolicy(ceiling_tokens=ceiling)
    )
    expected = reckon(meter.steps, meter.head, budget, meter.cache, waits=row.is_bound)
    counts, main = session.counts, meter.main
    hits, by_arithmetic = main.read / main.tokens, expected.read / expected.tokens
    faults = sum(counts[name] for name in FAULTS if row.is_bound or name != "unsaid") + len(session.upstream.refusals)
    kept = counts["blocks sent"] / max(1, counts["messages"])
    over = sum(size > ceiling for size in meter.sizes)
    cells = [
        row.name,
        f"{ceiling:,}",
        "yes" if has_reports else "no",
        calls,
        faults,
        f"{counts['managed'] / calls:.0%}",
    ]
    cells += [len(epochs), expected.epochs, f"{len(epochs) / max(1, expected.epochs):.2f}"]
    cells += [f"{hits:.1%}", f"{by_arithmetic:.1%}", f"{100 * (hits - by_arithmetic):+.1f}"]
    cells += [f"{main.tokens / expected.tokens:.2f}"]
    cells += [f"{(main.tokens - main.read) / (expected.tokens - expected.read):.2f}", f"{kept:.0%}"]
    cells += [over, f"{len(session.upstream.asked)}, {meter.own.cost / main.cost:.1%}"]
    return f"| {' | '.join(map(str, cells))} |", not faults


_COLUMNS = (
    "session | ceiling | reports | calls | faults | managed | epochs | by arithmetic | times | cache hits | "
    "by arithmetic | points | tokens, times | not read, times | reasoning kept | above the ceiling | "
    "asked for reports, their cost"
)


async def run(
    rows: Sequence[Row], ceilings: Sequence[int], calls: int, seed: int, reports: Sequence[bool], *, strategy: str
) -> bool:
    """Print a table. Return whether there was no fault."""
    print(f"| {_COLUMNS} |\n{'|---' * (_COLUMNS.count('|') + 1)}|")
    is_sound = True
    for row in rows:
        for has_reports in reports:
            for ceiling in ceilings:
                line, is_good = await measure(row, ceiling, calls, seed, has_reports=has_reports, strategy=strategy)
                is_sound = is_sound and is_good
                print(line, flush=True)
    return is_sound


def make_busy_session(wire: str, ceiling: int, check: Check, seed: int, often: int) -> BoundSession:
    """Return one session; each differs in how its client sends reasoning, or cache markers."""
    if wire == "responses":
        echo = get_args(Echo)[seed % len(get_args(Echo))]
        is_stream, often = bool(seed // 2 % 2), often if check == "error" else 4 * often
        options: Any = {"is_async": bool(seed % 2), "size": _BUSY[ceiling], "often": often}
        return ResponseSession(ceiling, echo=echo, is_stream=is_stream, seed=seed, **options)
    if wire == "messages":
        marking = get_args(Marking)[seed % len(get_args(Marking))]
        size, is_stream = _BUSY[ceiling], bool(seed % 2)
        return MessageSession(
            ceiling, check=check, marking=marking, is_stream=is_stream, seed=seed, size=size, often=often
        )
    member = "thinking_blocks" if seed % 2 else "reasoning_details"
    return BoundSession(ceiling, check=check, member=member, seed=seed, size=_BUSY[ceiling], often=often)


async def run_busy(wire: str, sessions: int, calls: int, often: int) -> bool:
    """Print a table of sessions in which everything happens. Return whether there was no fault."""
    is_sound = True
    print("| wire | ceiling | check | calls | managed | reasoning kept | " + " | ".join((*FAULTS, *ACTS)) + " |")
    print("|--:" * (6 + len(FAULTS) + len(ACTS)) + "|")
    for ceiling in _BUSY:
        for check in _CHECKS:
            counts: Counter[str] = Counter()
            for seed in range(sessions):
                session = make_busy_session(wire, ceiling, check, seed, often)
                await session.run(calls)
                await session.talk.close()
                counts.update(session.counts)
            is_sound = is_sound and not any(counts[name] for name in FAULTS)
            managed, kept = counts["managed"] / counts["calls"], counts["blocks sent"] / counts["messages"]
            told = " | ".join(str(counts[name]) for name in (*FAULTS, *ACTS))
            row = f"| {wire} | {ceiling} | {check} | {counts['calls']} | {managed:.0%} | {kept:.0%} | {told} |"
            print(row, flush=True)
    return is_sound


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(prog="benchmarks.strict_sessions")
    parser.add_argument("--ceiling", type=int, action="append", help="repeatedly; else 16K, 32K, 64K and 128K")
    parser.add_argument("--row", action="append", help="a part of a session's name, repeatedly; all without it")
    parser.add_argument("--loops", action="store_true", help="sessions of one tool loop, and with a budget of thinking")
    parser.add_argument("--reports", choices=("no", "yes", "both"), default="both", help="whether models are asked")
    parser.add_argument("--calls", type=int, default=300, help="calls of each session")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategy", choices=STRATEGIES, default="epochs", help="what clients ask for, but for --busy")
    parser.add_argument("--busy", choices=("chat", "messages", "responses"), help="everything happens, on this wire")
    parser.add_argument("--sessions", type=int, default=6, help="sessions for each row of --busy")
    parser.add_argument("--often", type=int, default=1, help="how many times as often things happen between calls")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    if asked.busy:
        return 0 if asyncio.run(run_busy(asked.busy, asked.sessions, asked.calls, asked.often)) else 1
    rows = LOOPS if asked.loops else ROWS
    rows = tuple(row for row in rows if not asked.row or any(part in row.name for part in asked.row))
    reports = {"no": (False,), "yes": (True,), "both": (False, True)}[asked.reports]
    ceilings = asked.ceiling or CEILINGS
    is_sound = asyncio.run(run(rows, ceilings, asked.calls, asked.seed, reports, strategy=asked.strategy))
    return 0 if is_sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
