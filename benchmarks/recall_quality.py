"""How well search finds what was dropped: `python -m benchmarks.recall_quality --kit REPLAY`; no proxy and no model.

Dropped facts: at a recorded step, an identifier of the next command that a tool output said first, and that was last
mentioned at least `--distance` tokens ago. The query is the thought of that step without the identifiers of the command
(or three bare keywords of it, its rarest words; or the command). Right is an output that has the identifier. What is
newer than the distance is in view, and left out. `all kinds`: messages and arguments may be found, too, and take
places. `plain` is presence BM25 over the same passages, without what else the ranking looks at.

Dialogues and chats are made from seeds (`dialogues`); evidence is found if a snippet of its turn is in the answer.
`--speed N`: an index in memory of N messages.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chats import make_chat
from benchmarks.dialogues import Dialogue, make_dialogue
from benchmarks.economy import Replay, cut_and_join
from benchmarks.memory_index import MemoryIndex
from proxy.retrieval.dates import find_stated_time
from proxy.retrieval.postings import IndexedText, TextRole, get_kind, get_turn
from proxy.retrieval.query import QueryWeights, make_question
from proxy.retrieval.ranking import Ranking, RankingWeights, search
from proxy.retrieval.snippets import Snippet, estimate_tokens, fill
from proxy.retrieval.terms import list_tokens, parse_token

RawMessage = dict[str, Any]
_BUDGET, _SHORT_BUDGET = 4_000, 1_500
_NOW_MS = 1_700_000_000_000
_PLAIN = (
    QueryWeights(
        whole=0.0, conjunction=0.0, piece=1.0, context_piece=0.0, context_word=0.0, time=0.0, speaker=0.0, dated=1.0
    ),
    RankingWeights(
        similar=0.0, further=0.0, card=0.0, rule=0.0, user=0.0, neighbour=0.0, far=0.0, pair=0.0, long_reply=0.0,
        long_question=0.0, step=1.0, task=1.0, coverage=0.0,
    ),
)  # fmt: skip
_FULL = (QueryWeights(), RankingWeights())


class Tally:
    """Counts of what was found, by what was asked."""

    def __init__(self) -> None:
        self._counts: dict[str, list[float]] = {}

    def add(self, name: str, hits: float, cases: float = 1) -> None:
        known = self._counts.setdefault(name, [0.0, 0.0])
        known[0] += hits
        known[1] += cases

    def share(self, name: str) -> float:
        hits, cases = self._counts[name]
        return hits / cases

    def __str__(self) -> str:
        return "  ".join(f"{name} {100 * hits / cases:.1f}" for name, (hits, cases) in self._counts.items() if cases)


class Recorded:
    """A recorded session, indexed step by step."""

    def __init__(self, ctx: Any, common: frozenset[str]) -> None:
        self._c, self._common = ctx, common
        self.index = MemoryIndex()
        self.messages: list[RawMessage] = []
        self._ends: list[int] = []
        self._last: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._holders: dict[str, list[int]] = {}
        self._led = ""

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def feed(self, message: RawMessage) -> None:
        turn, c = len(self.messages), self._c
        end = self.size + c.n(message)
        for word in c.idset(message):
            self._first.setdefault(word, message["role"])
            self._last[word] = end
            if message["role"] == "tool":
                self._holders.setdefault(word, []).append(turn)
        self.index.add(1, turn, list(self._list_sources(message)))
        if message["role"] == "assistant":
            self._led = f"{c.text_of(message)}\n{self.list_arguments(message)}"
        self.messages.append(message)
        self._ends.append(end)

    def _list_sources(self, message: RawMessage) -> Iterator[IndexedText]:
        text, arguments = self._c.text_of(message), self.list_arguments(message)
        if message["role"] == "tool":
            yield IndexedText(text=text, role="tool", kind="output", card=self._led)
            return
        roles: dict[str, TextRole] = {"user": "user", "assistant": "assistant"}
        role = roles.get(message["role"], "other")
        if text:
            yield IndexedText(text=text, role=role, kind="message")
        if arguments:
            yield IndexedText(text=arguments, role=role, kind="arguments")

    def list_arguments(self, message: RawMessage) -> str:
        return "\n".join(self._c.decode_args(each) for each in self._c.args_of(message))

    def list_dropped(self, wanted: set[str], distance: int) -> dict[str, set[int]]:
        """Return the identifiers that were mentioned last so many tokens ago, and the turns of outputs with them."""
        old = (word for word in wanted - self._common if self._first.get(word) == "tool")
        return {word: set(self._holders[word]) for word in old if self.size - self._last[word] >= distance}

    def count_before(self, distance: int) -> int:
        """Return how many messages are wholly further back than so many tokens."""
        return sum(end <= self.size - distance for end in self._ends)

    def describe_last_steps(self) -> str:
        steps = [each for each in self.messages if each["role"] == "assistant"][-3:]
        return "\n".join(f"{self._c.text_of(each)}\n{self.list_arguments(each)}" for each in steps)


def pick_keywords(text: str, index: MemoryIndex) -> str:
    """Return the three words of a text that are rarest in the session so far, and occur in it."""
    counts: dict[str, int] = {}
    for token in list_tokens(text):
        parsed = parse_token(token)
        if len(token) >= 4 and parsed.pieces and not parsed.is_identifier:
            counts[token.lower()] = len(index.find("text", parsed.pieces[0]))
    known = [word for word, count in counts.items() if count]
    return " ".join(sorted(known, key=lambda word: (counts[word], word))[:3])


class Facts:
    """Asks for what was dropped at one distance, in sessions that are given to it."""

    def __init__(self, replay: Replay, common: frozenset[str], distance: int) -> None:
        self._c, self._common, self._distance = replay.ctx, common, distance
        self.tallies = Tally(), Tally()

    def measure(self, session: RawMessage) -> None:
        recorded = Recorded(self._c, self._common)
        for step in session["steps"]:
            for message in step["delta"]:
                recorded.feed(message)
            answer = step["response_message"]
            wanted = {word for each in self._c.args_of(answer) for word in self._c.idents(self._c.decode_args(each))}
            if dropped := recorded.list_dropped(wanted, self._distance):
                thought = self._remove(self._c.text_of(answer), wanted)
                texts = thought, pick_keywords(thought, recorded.index), recorded.list_arguments(answer)
                for asking, text in zip(("thought", "keywords", "command"), texts, strict=True):
                    self._ask(recorded, asking, text, dropped)
            recorded.feed(answer)

    def _remove(self, text: str, words: set[str]) -> str:
        return str(self._c.CAND.sub(lambda found: " " if self._c.norm(found[0]) in words else found[0], text))

    def _ask(self, recorded: Recorded, asking: str, text: str, dropped: dict[str, set[int]]) -> None:
        until, context = recorded.count_before(self._distance), recorded.describe_last_steps()
        for kinds in ("outputs", "all kinds"):
            recorded.index.accept = _make_filter(until, kinds == "outputs")
            for tally, weights in zip(self.tallies, (_FULL, _PLAIN), strict=True):
                ranking, snippets = answer_query(recorded.index, text, context, weights, _BUDGET)
                turns = [get_turn(each.entry) for each in ranking.entries]
                told = self._c.idents("\n".join(each.text for each in snippets))
                for word, holders in dropped.items():
                    for most in (5, 10):
                        tally.add(f"{asking}, {kinds} at {most}", not holders.isdisjoint(turns[:most]))
                    tally.add(f"{asking}, {kinds} in lines", word in told)


def _make_filter(until: int, only_outputs: bool) -> Callable[[int], bool]:
    return lambda entry: get_turn(entry) < until and (not only_outputs or get_kind(entry) == "output")


def answer_query(
    index: MemoryIndex, text: str, context: str, weights: tuple[QueryWeights, RankingWeights], tokens: int
) -> tuple[Ranking, list[Snippet]]:
    question = make_question(text, context=context, now_ms=_NOW_MS, weights=weights[0])
    ranking = search(question, index, 100, lambda: False, weights[1])
    return ranking, fill(((each, index.texts[each.entry]) for each in ranking.entries), ranking.weights, tokens=tokens)


def index_dialogue(index: MemoryIndex, session: int, dialogue: Dialogue) -> None:
    stated: int | None = None
    for number, turn in enumerate(dialogue.turns):
        found = find_stated_time(turn.text)
        stated = found if found is not None else stated
        role: TextRole = "user" if turn.role == "user" else "assistant"
        source = IndexedText(
            text=turn.text, role=role, kind="message", sender=turn.sender, at_ms=_NOW_MS, stated_ms=stated
        )  # fmt: skip
        index.add(session, number, [source])


def take_whole(index: MemoryIndex, ranking: Ranking, tokens: int) -> list[Snippet]:
    """Return whole entries, the best first, until the next one does not fit; of the first one what fits."""
    taken: list[Snippet] = []
    for each in ranking.entries:
        text = index.texts[each.entry]
        cost = estimate_tokens(text)
        if cost > tokens:
            break
        tokens -= cost
        taken.append(Snippet(each.entry, text, cost))
    return taken


def measure_dialogues(dialogues: Sequence[Dialogue], tokens: int) -> list[Tally]:
    tallies = [Tally(), Tally()]
    for dialogue in dialogues:
        index = MemoryIndex()
        index_dialogue(index, 1, dialogue)
        for tally, weights in zip(tallies, (_FULL, _PLAIN), strict=True):
            for asked in dialogue.questions:
                ranking, snippets = answer_query(index, asked.text, "", weights, tokens)
                if weights is _PLAIN:
                    snippets = take_whole(index, ranking, tokens)
                turns = {get_turn(each.entry) for each in snippets}
                told = " ".join(each.text for each in snippets).lower()
                found = sum(each in turns for each in asked.evidence) / len(asked.evidence)
                tally.add("evidence", found)
                tally.add(f"of {asked.kind}", found)
                if asked.answer:
                    tally.add("words of the answer", sum(w.lower() in told for w in asked.answer) / len(asked.answer))
    return tallies


def measure_speed(messages: int) -> str:
    """Return what indexing and asking takes in one index of many sessions, half of whose messages are of each kind."""
    index, rng = MemoryIndex(), random.Random(7)
    asked: list[str] = []
    count = characters = session = 0
    began = time.perf_counter()
    while count < messages:
        session += 1
        dialogue = make_chat(session) if session % 3 == 0 else make_dialogue(session)
        index_dialogue(index, session, dialogue)
        count += len(dialogue.turns)
        characters += sum(len(turn.text) for turn in dialogue.turns)
        asked += [each.text for each in rng.sample(dialogue.questions, 2)]
    spent = time.perf_counter() - began
    times: list[tuple[float, float]] = []
    for text in rng.sample(asked, min(200, len(asked))):
        start = time.perf_counter()
        ranking = search(make_question(text, now_ms=_NOW_MS), index, 100, lambda: False)
        middle = time.perf_counter()
        fill(((each, index.texts[each.entry]) for each in ranking.entries), ranking.weights, tokens=_BUDGET)
        times.append((1000 * (middle - start), 1000 * (time.perf_counter() - middle)))
    parts = [
        f"{name} p50 {sorted(each)[len(each) // 2]:.1f} ms, p99 {sorted(each)[len(each) * 99 // 100]:.1f} ms"
        for name, each in (("ranking", [a for a, _ in times]), ("lines", [b for _, b in times]))
    ]
    return (
        f"{count} messages of {session} sessions, {characters / 1e6:.1f} MB: indexing {1000 * spent / count:.2f} ms a "
        f"message (with the postings in memory); {'; '.join(parts)}"
    )


def report_facts(folder: Path, args: argparse.Namespace) -> None:
    replay = Replay(folder)
    for corpus in args.corpus:
        everything = replay.load(corpus)
        common = replay.base.common_ids(everything)
        sessions = cut_and_join(everything, None, args.join) if corpus == "swe_long" else everything
        sessions = sessions if args.half is None else sessions[args.half :: 2]
        for distance in args.distance:
            facts = Facts(replay, common, distance)
            for session in sessions:
                facts.measure(session)
            for name, tally in zip(("", " plain"), facts.tallies, strict=True):
                print(f"{corpus}, {len(sessions)} sessions, {distance}{name}: {tally}", flush=True)


def report_dialogues(args: argparse.Namespace) -> None:
    kinds: tuple[tuple[str, int, Callable[[int], Dialogue], int], ...] = (
        ("dialogues", args.dialogues, make_dialogue, _SHORT_BUDGET),
        ("chats", args.chats, make_chat, _BUDGET),
    )
    for label, count, make, tokens in kinds:
        made = [make(seed) for seed in range(args.seed, args.seed + count)]
        for name, tally in zip(("", " plain"), measure_dialogues(made, tokens), strict=True):
            if made:
                print(f"{count} {label}, {tokens} tokens{name}: {tally}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=Path, help="the folder of the replay")
    parser.add_argument("--corpus", nargs="*", default=["swe_day", "swe_long"])
    parser.add_argument("--join", type=int, default=4, help="so many sessions of swe_long are one")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other session")
    parser.add_argument("--distance", type=int, nargs="*", default=[32_000])
    parser.add_argument("--dialogues", type=int, default=0)
    parser.add_argument("--chats", type=int, default=0)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--speed", type=int, default=0)
    args = parser.parse_args()
    if args.kit:
        report_facts(args.kit, args)
    report_dialogues(args)
    if args.speed:
        print(measure_speed(args.speed))


if __name__ == "__main__":
    main()
