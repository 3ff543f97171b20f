"""What opening an epoch costs: `python -m benchmarks.epoch`.

The rule: medians of the thread's own time in one process. A conversation of some 200K tokens of code in 660 messages;
for the first time, and again with the findings of its messages known, as in every later epoch of a session.
"""

import hashlib
import json
import statistics
from functools import lru_cache
from itertools import cycle
from pathlib import Path

from benchmarks.lineage import take_time
from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.builder import ContextBuilder
from proxy.context.conversation import BuilderPolicy, CountedMessage, PlanRequest
from proxy.context.message_features import FeatureExtractor, extract_features, parse_identifier
from proxy.model.messages import Message, ToolCall
from proxy.upstream.tokenizer import CountingTokenizer, load_encoder
from proxy.wire import FORMATS

ROOT = Path(__file__).parents[1]
ROUNDS = 9
STEPS = 330
CEILINGS = (32_000, 128_000)


def write_session() -> list[CountedMessage]:
    """Steps of a session: a command and a stretch of this repository's own code, each behind its number."""
    encoder = load_encoder("o200k_base")
    tokenizer = CountingTokenizer(lambda _: encoder)
    texts = [path.read_text() for path in sorted((ROOT / "proxy").rglob("*.py"))]
    chunks = cycle([text[at : at + 2200] for text in texts for at in range(0, len(text), 2200)])
    seen: list[CountedMessage] = []
    for i, chunk in zip(range(STEPS), chunks, strict=False):
        if i % 33 == 0:
            seen.append(_see(tokenizer, Message("user", f"Task {i}: {chunk[:900]}"), {"role": "user", "content": "x"}))
        arguments = json.dumps({"command": f"sed -n {i},{i + 60}p proxy/engine/file_{i % 40}.py"})
        call = {"id": f"c{i}", "type": "function", "function": {"name": "shell", "arguments": arguments}}
        said = Message("assistant", f"Step {i}. {chunk[400:1000]}", (ToolCall(f"c{i}", "shell", arguments),))
        seen.append(_see(tokenizer, said, {"role": "assistant", "content": "x", "tool_calls": [call]}))
        output = Message("tool", f"{i}\n{chunk}", (), (f"c{i}",))
        seen.append(_see(tokenizer, output, {"role": "tool", "tool_call_id": f"c{i}", "content": "x"}))
    return seen


def _see(tokenizer: CountingTokenizer, told: Message, message: dict[str, object]) -> CountedMessage:
    text = told.text + "".join(call.arguments for call in told.calls)
    structure = FORMATS["chat_completions"].parse_structure(json.dumps(message).encode())
    return CountedMessage(told, structure, tokenizer.count(text, "o200k_base")[0] + 4)


def name_reference(start: int, stop: int, offset: int) -> str:
    return hashlib.sha256(f"{start} {stop} {offset}".encode()).hexdigest()[:10]


def main() -> None:
    seen = write_session()
    encoder = load_encoder("o200k_base")
    tokenizer = CountingTokenizer(lambda _: encoder)
    print(f"{len(seen)} messages, {sum(each.tokens for each in seen):,} tokens; medians of {ROUNDS}, ms\n")

    def open_epoch(view: PlanRequest, find: FeatureExtractor) -> float:
        builder = ContextBuilder(BuilderPolicy(), lambda text: tokenizer.count(text, "o200k_base")[0], find)
        return take_time(lambda: builder.build(view))[0]

    for ceiling in CEILINGS:
        view = PlanRequest(
            make_budget(1_000_000, None, None, BudgetPolicy(ceiling_tokens=ceiling)),
            messages=seen,
            head=0,
            name=name_reference,
        )
        first = []
        for _ in range(ROUNDS):
            parse_identifier.cache_clear()
            first.append(open_epoch(view, extract_features))
        known = lru_cache(len(seen))(extract_features)
        again = [open_epoch(view, known) for _ in range(ROUNDS + 1)][1:]
        print(f"an epoch at {ceiling:7,}: first {statistics.median(first):6.1f}, again {statistics.median(again):6.1f}")


if __name__ == "__main__":
    main()
