"""A chat with a real engine behind the proxy: `python -m benchmarks.engine --server LLAMA_SERVER --model GGUF`.

An engine on one's own machine evaluates each prompt itself, but for the tokens with which the last one began. What the
user waits for is therefore the number of tokens that have changed place. The same person's side of a chat is played
against llama.cpp's server three times: with everything sent, with the newest messages that fit a number of tokens (a
sliding window), and through palimpsest with the same number as its ceiling. The answers are the model's own. Figures
are the engine's: `timings` of each response, and its counter of all prompt tokens, so that calls which the client did
not make are seen, too.
"""

import argparse
import http.client
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chats import make_chat
from benchmarks.picture import run_proxy
from benchmarks.processes import Nursery, find_free_port, wait_for_answer

RESULTS = Path(__file__).parent / "results"
WAYS = ("everything", "window", "palimpsest")
_MODEL = "local"
_SECONDS = 600.0
_SYSTEM = (
    "You help a person who builds a web application. Answer in a few sentences, and keep to what the person has told"
    " you about the project, its users and its dates."
)
_FROM = 4  # turns that are in no figure: the engine has evaluated nothing before the first

Message = dict[str, Any]


class Turn(NamedTuple):
    """What a turn cost: tokens of the prompt, those that the engine evaluated, how long that and the turn took."""

    prompt: int
    evaluated: int
    prompt_seconds: float
    seconds: float


class Run(NamedTuple):
    """The turns of a way, and all prompt tokens that the engine evaluated meanwhile, whoever asked."""

    way: str
    turns: Sequence[Turn]
    evaluated: int

    @property
    def unasked(self) -> int:
        """Tokens that the engine evaluated for calls which the client did not make."""
        return self.evaluated - sum(turn.evaluated for turn in self.turns)


def play(way: str, asked: argparse.Namespace) -> Run:
    """Play the chat in one way, with an engine of its own."""
    with start_engine(asked) as engine, _stand_between(way, engine, asked) as port:
        chat, turns = [{"role": "system", "content": _SYSTEM}], []
        said = [turn.text for turn in make_chat(asked.seed, asked.turns).turns if turn.role == "user"]
        for text in said[: asked.turns]:
            chat.append({"role": "user", "content": text})
            sent = slide(chat, engine, asked.ceiling - asked.answer) if way == "window" else chat
            answer, turn = call(port, sent, asked.answer)
            chat.append(answer)
            turns.append(turn)
            print(f"{way} {len(turns)}: {turn}", flush=True)
        time.sleep(asked.pause)
        return Run(way, turns, _read_evaluated(engine))


@contextmanager
def start_engine(asked: argparse.Namespace) -> Iterator[int]:
    """Run llama.cpp's server with one slot. Yields its port."""
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder, Nursery(Path(folder)) as nursery:
        options = ["--host", "127.0.0.1", "--port", str(port), "-c", str(asked.context), "-t", str(asked.threads)]
        argv = [asked.server, "-m", asked.model, "-np", "1", "--metrics", *options, *asked.options]
        child = nursery.start(argv, max(os.sched_getaffinity(0)))
        wait_for_answer(child, port, "/health", 120.0)
        yield port


@contextmanager
def _stand_between(way: str, engine: int, asked: argparse.Namespace) -> Iterator[int]:
    """Yield the port that the client calls: the engine's, or that of a proxy before it."""
    if way != "palimpsest":
        yield engine
        return
    with tempfile.TemporaryDirectory() as folder:
        if asked.summaries:  # without a model of their own, a local server is not asked for any
            os.environ["PALIMPSEST_COMPACTION__MODEL"] = _MODEL
        with run_proxy(engine, Path(folder), "--ceiling", str(asked.ceiling), has_summaries=True) as port:
            yield port


def call(port: int, chat: Sequence[Message], most: int) -> tuple[Message, Turn]:
    """Make a call. Return the answer, and what the turn cost."""
    body = {"model": _MODEL, "messages": chat, "max_tokens": most, "temperature": 0, "ignore_eos": True}
    begun = time.perf_counter()
    got = _ask(port, "/v1/chat/completions", body)
    seconds = time.perf_counter() - begun
    timings = got["timings"]
    message = {"role": "assistant", "content": got["choices"][0]["message"]["content"]}
    return message, Turn(got["usage"]["prompt_tokens"], timings["prompt_n"], timings["prompt_ms"] / 1000, seconds)


def slide(chat: Sequence[Message], engine: int, most: int) -> list[Message]:
    """Return the system prompt and the newest messages that have at most so many tokens, from one of the user's on."""
    kept, left = list[Message](), most - _count(engine, chat[0])
    for message in reversed(chat[1:]):
        left -= _count(engine, message)
        if left < 0 and kept:
            break
        kept.insert(0, message)
    while kept[0]["role"] != "user":
        kept.pop(0)
    return [chat[0], *kept]


_counts: dict[str, int] = {}
_AROUND = 5  # tokens that a template puts around each message


def _count(engine: int, message: Message) -> int:
    text = message["content"]
    if text not in _counts:
        _counts[text] = len(_ask(engine, "/tokenize", {"content": text})["tokens"]) + _AROUND
    return _counts[text]


def _ask(port: int, path: str, body: Any) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)) as connection:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {content.decode(errors='replace')}")
    return json.loads(content)


def _read_evaluated(engine: int) -> int:
    """Return the engine's own count of all prompt tokens that it has evaluated."""
    with closing(http.client.HTTPConnection("127.0.0.1", engine, timeout=_SECONDS)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return round(float(next(line.split()[-1] for line in lines if line.startswith("llamacpp:prompt_tokens_total"))))


def report(runs: Sequence[Run], asked: argparse.Namespace) -> str:
    """Return the figures as Markdown."""
    names = (
        "sent as",
        "prompt at the end",
        "evaluated a turn, median",
        "mean",
        "most",
        "seconds of it a turn, median",
        "mean",
        "most",
        "a turn in all, median",
        "all turns, s",
        "evaluated unasked",
    )
    rows = ["| " + " | ".join(names) + " |", "|---" + "|--:" * (len(names) - 1) + "|"]
    for run in runs:
        turns = run.turns[_FROM:]
        tokens, waits = [turn.evaluated for turn in turns], [turn.prompt_seconds for turn in turns]
        figures = [
            f"{turns[-1].prompt:,}",
            *[f"{figure:,.0f}" for figure in (statistics.median(tokens), statistics.mean(tokens), max(tokens))],
            *[f"{figure:.1f}" for figure in (statistics.median(waits), statistics.mean(waits), max(waits))],
            f"{statistics.median([turn.seconds for turn in turns]):.1f}",
            f"{sum(turn.seconds for turn in run.turns):.0f}",
            f"{run.unasked:,}",
        ]
        rows.append(f"| {run.way} | " + " | ".join(figures) + " |")
    what = (
        f"llama.cpp's server, {Path(asked.model).name}, one slot, {asked.threads} thread(s), context {asked.context:,};"
        f" {asked.turns} turns, answers of {asked.answer} tokens; window and ceiling {asked.ceiling:,} tokens; options:"
        f" {' '.join(asked.options) or 'none'}. {platform.machine()}, load {os.getloadavg()[1]:.1f} at the end."
        f" The first {_FROM} turns are in no median, mean or most."
    )
    return f"{what}\n\n" + "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="llama.cpp's llama-server")
    parser.add_argument("--model", required=True, help="a model in its format, GGUF")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--answer", type=int, default=100, help="tokens of each answer")
    parser.add_argument("--ceiling", type=int, default=4000, help="tokens of the window, and palimpsest's ceiling")
    parser.add_argument("--context", type=int, default=16384, help="tokens that the engine can hold")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait at the end, for work in idle moments")
    parser.add_argument("--summaries", action="store_true", help="have the engine's model write summaries when idle")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this one; may be repeated")
    parser.add_argument("--out", default="", help="also write results/OUT.md")
    parser.add_argument("options", nargs="*", help="of llama-server, behind --")
    asked = parser.parse_args()
    text = report([play(way, asked) for way in asked.way or WAYS], asked)
    print(text)
    if asked.out:
        (RESULTS / f"{asked.out}.md").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
