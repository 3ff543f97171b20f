"""What managing saves and what it loses, on recorded sessions: `python -m benchmarks.economy REPLAY CORPUS CEILING…`.

The rule: no proxy and no model; the builder is asked when `context/epoch_decision` says so at the prices `--read` and
`--write`, and what would be sent is scored by the replay's own measures. `--half` takes every other session (0 or 1),
so that what was chosen on one half can be judged on the other; `--calls` the first calls of each session, `--join` so
many consecutive sessions as one, `--policy` one of the replay's baselines in place of the builder.
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
from proxy.context.epoch_decision import (
    CacheCostAccount,
    RequestFacts,
    SentTokens,
    decide,
    record_epoch,
    record_request,
)
from proxy.context.message_features import MessageFeatures, extract_features
from proxy.context.pricing import Tariff, make_tariff
from proxy.context.provider_cache import CacheModel
from proxy.context.references import PAGE, render_original
from proxy.model.card import Prices, Rates
from proxy.model.epoch import ContextPlan, Kept, Reference, Replaced
from proxy.model.messages import Message, ToolCall
from proxy.upstream.tokenizer import CountingTokenizer, load_encoder
from proxy.wire import FORMATS

RawMessage = dict[str, Any]
WINDOW = 1_000_000


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

    def __init__(self, replay: Replay, builder: ContextBuilder, budget: Budget, head: int, tariff: Tariff) -> None:
        self._c, self._builder, self._budget, self._tools = replay.ctx, builder, budget, head
        self._tariff, self._account, self._protected = tariff, CacheCostAccount(), 0
        self._seen: list[CountedMessage] = []
        self._raw: list[RawMessage] = []
        self._system: list[RawMessage] = []
        self._plan: ContextPlan | None = None
        self._frozen: list[RawMessage] = []
        self._references: dict[str, Reference] = {}
        self._literals: dict[str, set[str]] = {}
        self.epochs: list[tuple[int, int, float]] = []

    def step(self, messages: Sequence[RawMessage]) -> list[RawMessage]:
        for message in messages[len(self._system) + len(self._raw) :]:
            self._feed(message)
        sent = self._render()
        size = self._measure(sent)
        facts = RequestFacts(size, self._budget, self._tariff, self._protected)
        if decide(self._account, facts).why is not None:
            sent = self._open(size)
            size = self._measure(sent)
        low = self._budget.compute_low_mark(self._protected)
        self._account = record_request(self._account, SentTokens(size), self._tariff, low)
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
            self._budget,
            messages=self._seen,
            head=head,
            name=name_reference,
            frozen=self._plan,
            depth=self._account.depth,
            has_tool=True,  # as installed
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
        self._protected = head + plan.protected
        self._account = record_epoch(self._account, size, after, self._protected, self._budget)
        return sent

    def _render(self) -> list[RawMessage]:
        through = self._plan.through if self._plan else 0
        return [*self._system, *self._frozen, *self._raw[through:]]

    def _spell(self, plan: ContextPlan) -> Iterator[RawMessage]:
        for edit in plan.edits:
            if isinstance(edit, Kept):
                yield self._raw[edit.place]
            elif isinstance(edit, Replaced):
                yield replace_message(self._raw[edit.place], edit)
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


def replace_message(message: RawMessage, edit: Replaced) -> RawMessage:
    """Return a message with its edit's text and arguments, and without its cached digest."""
    changed = {k: v for k, v in message.items() if k != "_k"}
    if edit.text:
        changed["content"] = edit.text
    if edit.arguments:
        given = dict(edit.arguments)
        changed["tool_calls"] = [
            {
                **call,
                "function": {**call["function"], "arguments": given.get(call["id"], call["function"]["arguments"])},
            }
            for call in message["tool_calls"]
        ]
    return changed


def name_reference(start: int, stop: int, offset: int) -> str:
    digest = hashlib.sha256(f"{start} {stop} {offset}".encode()).digest()
    return base64.b32encode(digest).decode()[:10].lower()


def cut_and_join(sessions: Sequence[RawMessage], calls: int | None, join: int) -> list[RawMessage]:
    """Return so many consecutive sessions as one each, the system prompt once, and of each the first calls."""
    made = []
    for start in range(0, len(sessions) - join + 1, join):
        steps = list(sessions[start]["steps"])
        for later in sessions[start + 1 : start + join]:
            first, *others = later["steps"]
            steps += [{**first, "delta": [each for each in first["delta"] if each["role"] != "system"]}, *others]
        made.append({**sessions[start], "steps": steps[:calls]})
    return made


def run(
    replay: Replay, sessions: Sequence[RawMessage], ceiling: int, policy: str, common: frozenset[str], *, rates: Rates
) -> RawMessage:
    c = replay.ctx
    encoder = load_encoder("o200k_base")
    tokenizer = CountingTokenizer(lambda _: encoder)
    known: dict[int, MessageFeatures] = {}
    results, fulls, stricts, stories, epochs = [], [], [], [], []
    tariff = make_tariff(Prices(rates), CacheModel(block=128, minimum=1024))

    def find(told: Message) -> MessageFeatures:
        return known.setdefault(id(told), extract_features(told)) if id(told) not in known else known[id(told)]

    for number, recorded in enumerate(sessions):
        known.clear()
        meter, full = c.Meter(recorded, common=common, budget=ceiling), c.Meter(recorded, common=common)
        strict, story = c.Strict(common), c.Story()
        budget = make_budget(WINDOW, None, None, BudgetPolicy(ceiling_tokens=ceiling))
        builder = ContextBuilder(BuilderPolicy(), lambda text: tokenizer.count(text, "o200k_base")[0], find)
        session = Session(replay, builder, budget, len(meter.head), tariff)
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
            story.step(messages, sent, answer)
            messages.append(answer)
        results.append(meter.result())
        fulls.append(full.r)
        stricts.append(strict)
        stories.append(story.figures())
        epochs += session.epochs
        print(f"{number + 1}/{len(sessions)}", end="\r", file=sys.stderr)
    r, f = replay.base.agg(results), sum_full(fulls)
    shares = [price(own, rates) / price(whole, rates) for own, whole in zip(results, fulls, strict=True)]
    losses = {"at a loss": sum(each > 1 for each in shares), "worst": share(max(shares), 1), "largest": r["peak"]}
    told = c.story_summary(stories)
    return {**summarize(r, f, stricts, rates), **losses, **told, **tell_epochs(epochs, r["steps"])}


def price(figures: Mapping[str, int], rates: Rates) -> float:
    return rates.written * (figures["sent_tok"] - figures["cached"]) + rates.cached * figures["cached"]


def measure_full(c: Any, full: Any, messages: Sequence[RawMessage]) -> None:
    """What sending everything costs: all that was sent before is cached."""
    r = full.r
    before = r.get("last", 0)
    total = len(full.head) + sum(c.n(message) for message in messages)
    cached = before // 128 * 128
    r["last"] = total
    r["sent_tok"] += total
    r["cached"] += cached if cached >= 1024 else 0


def sum_full(fulls: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    return {name: sum(each[name] for each in fulls) for name in ("sent_tok", "cached")}


def share(a: float, b: float) -> float | None:
    return round(100 * a / b, 1) if b else None


def summarize(r: RawMessage, full: Mapping[str, int], strict: Sequence[Any], rates: Rates) -> RawMessage:
    """The figures of QUALITY's goals, per cent of sending everything."""
    out = {
        "tokens": share(r["sent_tok"], full["sent_tok"]),
        "cost": share(price(r, rates), price(full, rates)),
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
    parser.add_argument("--calls", type=int)
    parser.add_argument("--join", type=int, default=1)
    parser.add_argument("--read", type=float, default=0.1, help="price of cached input, in multiples of input's")
    parser.add_argument("--write", type=float, default=1.0, help="price of written input, likewise")
    parser.add_argument("--policy", default="", help="a baseline of the replay")
    args = parser.parse_args()
    replay = Replay(args.replay)
    everything = replay.load(args.corpus)
    common = replay.base.common_ids(everything)
    rates = Rates(1.0, 5.0, args.read, args.write)
    chosen = (everything if args.half is None else everything[args.half :: 2])[: args.n]
    sessions = cut_and_join(chosen, args.calls, args.join)
    for ceiling in args.ceilings:
        figures = run(replay, sessions, ceiling, args.policy, common, rates=rates)
        print(f"{args.corpus} {ceiling} {args.policy} {len(sessions)} sessions, {args.read} · {args.write}")
        print("  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
