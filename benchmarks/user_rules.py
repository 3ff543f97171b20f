"""How many rules of users are found, and how many of what is found is none: `python -m benchmarks.user_rules [REPLAY]`.

Messages in six languages, of which is known which are rules (`rule_sentences.txt`), judged by each pattern alone: what
only it finds would be lost without it. The same for changes of plan (`change_sentences.txt`), as a whole. REPLAY is the
folder of the replay kit: of its sessions the rules and changes in turns of the user are listed with the number of turns
that state them, to be judged by a person; nothing of them is kept.
"""

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from proxy.context.user_rules import RULE_WORDS, compile_rule_words, find_changes, find_rules, list_sentences

SENTENCES = Path(__file__).with_name("rule_sentences.txt")
CHANGES = Path(__file__).with_name("change_sentences.txt")
NEVER = "(?!)"


def read_messages(path: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield language, whether it is what is looked for, and text of each message."""
    language = ""
    for line in path.read_text("utf-8").splitlines():
        sign, _, text = line.partition(" ")
        if sign == "=":
            language = text
        elif sign in ("+", "-"):
            yield language, sign == "+", text.replace("\\n", "\n")


def split_alternatives(pattern: str) -> Iterator[str]:
    """Yield the alternatives that a pattern consists of."""
    depth, start, is_class, at = 0, 0, False, 0
    while at < len(pattern):
        sign = pattern[at]
        if is_class:
            is_class = sign != "]"
        elif sign == "|" and not depth:
            yield pattern[start:at]
            start = at + 1
        else:
            is_class = sign == "["
            depth += (sign == "(") - (sign == ")")
        at += 1 + (sign == "\\")
    yield pattern[start:]


def judge_patterns() -> None:
    """Print what is found in each language, and by each pattern, and what only it finds."""
    found, patterns = Counter[tuple[str, bool]](), {}
    for first, anywhere in RULE_WORDS.values():
        patterns |= {f"begins {each}": compile_rule_words([(each, NEVER)]) for each in split_alternatives(first)}
        patterns |= {each: compile_rule_words([(NEVER, each)]) for each in split_alternatives(anywhere)}
    by, only = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    sizes = Counter((language, is_rule) for language, is_rule, _ in read_messages(SENTENCES))
    for language, is_rule, text in read_messages(SENTENCES):
        said = [each.said for each in list_sentences(text) if not each.said.endswith("?")]
        names = {name for name, each in patterns.items() if name != "begins " and any(map(each.search, said))}
        is_found = bool(find_rules(text))
        if is_found and not names:
            names = {"a heading, a label, or a preference"}
        found[language, is_rule] += is_found
        by.update((name, is_rule) for name in names if is_found)
        only.update((name, is_rule) for name in names if is_found and len(names) == 1)
    for language in RULE_WORDS:
        told = (f"{found[language, is_rule]} of {sizes[language, is_rule]}" for is_rule in (True, False))
        print(f"{language}: rules {', others '.join(told)}")
    print("rules, others; only by it: rules, others; pattern")
    for name in (*patterns, "a heading, a label, or a preference"):
        if name != "begins ":
            print(by[name, True], by[name, False], only[name, True], only[name, False], name, sep="\t")


def judge_changes() -> None:
    """Print how many changes of plan are found in each language."""
    sizes, found = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for language, is_change, text in read_messages(CHANGES):
        sizes[language, is_change] += 1
        found[language, is_change] += bool(find_changes(text))
    for language in dict.fromkeys(language for language, _ in sizes):
        told = (f"{found[language, is_change]} of {sizes[language, is_change]}" for is_change in (True, False))
        print(f"{language}: changes of plan {', others '.join(told)}")


def list_turns(replay: Path) -> Iterator[str]:
    """Yield the words of each turn of the user in each corpus once."""
    turns: dict[str, None] = {}
    for path in sorted((replay / "data").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            steps = (step for line in lines for step in json.loads(line)["steps"])
            messages = (message for step in steps for message in step["delta"] if message["role"] == "user")
            for content in (message.get("content") or "" for message in messages):
                is_text = isinstance(content, str)
                turns["" if not content else content if is_text else "\n".join(each["text"] for each in content)] = None
    yield from turns


def judge_replay(replay: Path) -> None:
    """Print the rules and changes of plan in turns of recorded sessions, the most frequent first, and in how many."""
    turns = list(list_turns(replay))
    sentences = sum(1 for turn in turns for _ in list_sentences(turn))
    for name, find in (("rules", find_rules), ("changes of plan", find_changes)):
        found = Counter(said for turn in turns for said in find(turn))
        print(f"{len(turns)} turns, {sentences} sentences, {found.total()} {name}, {len(found)} different ones")
        for said, times in found.most_common():
            print(times, said[:200], sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("replay", nargs="?", type=Path)
    args = parser.parse_args()
    judge_patterns()
    judge_changes()
    if args.replay:
        judge_replay(args.replay)


if __name__ == "__main__":
    main()
