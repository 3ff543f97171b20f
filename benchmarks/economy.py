"""What managing saves and what it loses, on recorded sessions: `python -m benchmarks.economy REPLAY CORPUS CEILING…`.

The rule: no proxy and no model; the builder is asked when the ski-rental account says so, and what would be sent is
scored by the replay's own measures. `--half` takes every other session (0 or 1), so that what was chosen on one half
can be judged on the other; `--policy` one of the replay's baselines in place of the builder.
"""

import argparse
import base64
import gzip
import hashlib
import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.context.budget import Budget, BudgetPolicy, make_budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage, PlanRequest
from proxy.context.message_features import MessageFeatures, extract_features
from proxy.context.references import PAGE, render_original
from proxy.model.epoch import ContextPlan, Kept, Reference, Replaced
from proxy.model.messages import Message, ToolCall
from proxy.upstream.tokenizer import CountingTokenizer, load_encoder
from proxy.wire import FORMATS

RawMessage = dict[str, Any]
WINDOW, READ, WRITE = 200_000, 0.1, 0.9


class Replay:
    """The modules of the replay folder."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.ctx = importlib.import_module("ctxlib")
        self.base = importlib.import_module("baselines")
        self.policies = importlib.import_module("policies")
        self.live = importlib.import_module("replay")
        self.folder = folder

    def load(self, corpus: str) -> list[RawMessage]:
        with gzip.open(self.folder / "data" / f"{corpus}.jsonl.gz", "rt") as lines:
            return [json.loads(line) for line in lines]


def tell(message: RawMessage) -> Message:
    content = message.get("content")
    text = "\n".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""
    calls = message.get("tool_calls") or []
    return Message(
        message["role"],
        text,
        tuple(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"] or "") for call in calls),
        (message["tool_call_id"],) if message.get("tool_call_id") else (),
    )


class Session:
    """One client as the proxy would see it: opens epochs, renders, resolves references."""

    def __init__(self, replay: Replay, builder: ContextBuilder, budget: Budget, head: int) -> None:
        self._c, self._builder, self._budget, self._tools = replay.ctx, builder, budget, head
        self._seen: list[CountedMessage] = []
        self._raw: list[RawMessage] = []
        self._system: list[RawMessage] = []
        self._plan: ContextPlan | None = None
        self._frozen: list[RawMessage] = []
        self._references: dict[str, Reference] = {}
        self._low = self._owed = 0.0
        self._literals: dict[str, set[str]] = {}
        self._futile = 0
        self.epochs: list[tuple[int, int, float]] = []

    def step(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        for message in messages[len(self._system) + len(self._raw) :]:
            self._feed(message)
        sent = self._render()
        size = self._measure(sent)
        if self._low:
            self._owed += READ * max(0.0, size - self._low)
        else:
            self._low = float(size)
        pressure = self._budget.compute_pressure(size)
        if pressure == "hard" or (pressure == "soft" and self._owed >= WRITE * self._low and self._futile < 2):
            sent = self._open(size)
        return sent

    def _feed(self, message: RawMessage) -> None:
        if message["role"] == "system" and not self._raw:
            self._system.append(message)
            return
        raw = json.dumps({k: v for k, v in message.items() if not k.startswith("_")}).encode()
        self._raw.append(message)
        self._seen.append(
            CountedMessage(tell(message), FORMATS["chat_completions"].parse_structure(raw), self._c.n(message))
        )

    def _open(self, size: int) -> list[RawMessage]:
        began = time.process_time()
        head = self._measure(self._system)
        view = PlanRequest(
            self._seen, head, self._budget, name_reference, frozenset(), self._plan, depth=self._futile // 2
        )
        plan = self._builder.build(view)
        spent = time.process_time() - began
        if plan.through or plan.edits:
            self._plan = plan
            self._references.update((each.id, each) for each in plan.references)
            self._frozen = list(self._spell(plan))
        sent = self._render()
        after = self._measure(sent)
        self.epochs.append((size, after, spent))
        self._low, self._owed = float(after), 0.0
        is_futile = size - after < 0.1 * self._budget.usable or after > self._budget.compute_low_mark(after) * 1.03
        self._futile = self._futile + 1 if is_futile else 0
        return sent

    def _render(self) -> list[RawMessage]:
        through = self._plan.through if self._plan else 0
        return [*self._system, *self._frozen, *self._raw[through:]]

    def _spell(self, plan: ContextPlan) -> Iterator[RawMessage]:
        for edit in plan.edits:
            if isinstance(edit, Kept):
                yield self._raw[edit.place]
            elif isinstance(edit, Replaced):
                yield {**{k: v for k, v in self._raw[edit.place].items() if k != "_k"}, "content": edit.text}
            else:
                yield {"role": "user", "content": edit.text}

    def _measure(self, messages: Sequence[RawMessage]) -> int:
        return self._tools + sum(int(self._c.n(message)) for message in messages)

    def literals(self, reference: str) -> set[str]:
        """What one expand of a reference brings back, as the replay's own resolver answers."""
        if reference not in self._literals:
            found = self._references.get(reference)
            told = [seen.message for seen in self._seen[found.start : found.stop]] if found else []
            text = render_original(told)[found.offset : found.offset + PAGE] if found else ""
            self._literals[reference] = self._c.idents(text)
        return self._literals[reference]


def name_reference(start: int, stop: int, offset: int) -> str:
    digest = hashlib.sha256(f"{start} {stop} {offset}".encode()).digest()
    return base64.b32encode(digest).decode()[:10].lower()


def run(
    replay: Replay, sessions: Sequence[RawMessage], ceiling: int, policy: str, common: frozenset[str]
) -> RawMessage:
    c = replay.ctx
    encoder = load_encoder("o200k_base")
    tokenizer = CountingTokenizer(lambda _: encoder)
    known: dict[int, MessageFeatures] = {}
    results, fulls, stricts, epochs = [], [], [], []

    def find(told: Message) -> MessageFeatures:
        return known.setdefault(id(told), extract_features(told)) if id(told) not in known else known[id(told)]

    for number, recorded in enumerate(sessions):
        known.clear()
        meter, full = c.Meter(recorded, common=common, budget=ceiling), c.Meter(recorded, common=common)
        strict = c.Strict(common)
        budget = make_budget(WINDOW, None, None, BudgetPolicy(ceiling_tokens=ceiling))
        builder = ContextBuilder(BuilderPolicy(), lambda text: tokenizer.count(text, "o200k_base")[0], find)
        session = Session(replay, builder, budget, len(meter.head))
        baseline = replay.policies.make(policy, ceiling, len(meter.head)) if policy else None
        messages: list[RawMessage] = []
        for step, each in enumerate(recorded["steps"]):
            messages += each["delta"]
            answer = each["response_message"]
            measure_full(c, full, messages)
            sent = baseline.step(messages) if baseline else session.step(messages)
            resolver = None if baseline else session
            meter.step(messages, sent, answer, step, resolver)
            strict.step(messages, sent, answer, resolver)
            messages.append(answer)
        results.append(meter.result())
        fulls.append(full.r)
        stricts.append(strict)
        epochs += session.epochs
        print(f"{number + 1}/{len(sessions)}", end="\r", file=sys.stderr)
    r, f = replay.base.agg(results), sum_full(fulls)
    return {**summarize(r, f, stricts), **tell_epochs(epochs, r["steps"])}


def measure_full(c: Any, full: Any, messages: Sequence[RawMessage]) -> None:
    """What sending everything costs: all that was sent before is cached."""
    r = full.r
    before = r.get("last", 0)
    total = len(full.head) + sum(c.n(message) for message in messages)
    cached = before // 128 * 128
    r["last"] = total
    r["sent_tok"] += total
    r["cached"] += cached if cached >= 1024 else 0


def sum_full(fulls: Sequence[Mapping[str, int]]) -> RawMessage:
    sent, cached = sum(each["sent_tok"] for each in fulls), sum(each["cached"] for each in fulls)
    fresh = sent - cached
    return {"sent_tok": sent, "cost_oai_0.1": fresh + 0.1 * cached, "cost_ant": 1.25 * fresh + 0.1 * cached}


def share(a: float, b: float) -> float | None:
    return round(100 * a / b, 1) if b else None


def summarize(r: RawMessage, full: RawMessage, strict: Sequence[Any]) -> RawMessage:
    """The figures of QUALITY's goals, per cent of sending everything."""
    out = {
        "tokens": share(r["sent_tok"], full["sent_tok"]),
        "cost": share(r["cost_oai_0.1"], full["cost_oai_0.1"]),
        "1.25w": share(r["cost_ant"], full["cost_ant"]),
        "cache": share(r["cached"], r["sent_tok"]),
        "refs": share(r["refs_in"], r["refs"]),
    }
    for name, short in (("8k-32k", "8-32"), ("ge32k", "32+")):
        wanted, inside, expandable = r["buckets"][name]
        out |= {f"in {short}": share(inside, wanted), f"reach {short}": share(inside + expandable, wanted)}
        out[f"att {short}"] = share(sum(x.att[name][1] for x in strict), sum(x.att[name][0] for x in strict))
    copied = [x.cop["8k-32k"] for x in strict]
    out["steps that copy"] = sum(each[0] for each in copied)
    out["copied"] = share(sum(each[1] for each in copied), sum(each[0] for each in copied))
    out |= {k: share(r[k], r["steps"]) for k in ("sys_ok", "user_ok", "user2_ok", "delta_ok")}
    return out | {"over": r["over"], "faults": r["viol_steps"], "assistant first": r.get("soft", 0)}


def tell_epochs(epochs: Sequence[tuple[int, int, float]], calls: int) -> RawMessage:
    if not epochs:
        return {"epochs": 0}
    spent = sorted(each[2] for each in epochs)
    return {
        "epochs": len(epochs),
        "calls an epoch": round(calls / len(epochs), 1),
        "size before": round(sum(each[0] for each in epochs) / len(epochs)),
        "after": round(sum(each[1] for each in epochs) / len(epochs)),
        "build ms, median": round(1000 * spent[len(spent) // 2], 1),
        "most": round(1000 * spent[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("replay", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("ceilings", type=int, nargs="+")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--n", type=int)
    parser.add_argument("--policy", default="", help="a baseline of the replay")
    args = parser.parse_args()
    replay = Replay(args.replay)
    everything = replay.load(args.corpus)
    common = replay.base.common_ids(everything)
    sessions = (everything if args.half is None else everything[args.half :: 2])[: args.n]
    for ceiling in args.ceilings:
        figures = run(replay, sessions, ceiling, args.policy, common)
        print(f"{args.corpus} {ceiling} {args.policy} {len(sessions)} sessions")
        print("  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
