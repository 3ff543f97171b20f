"""Measure the package by the rules that keep it small: `python -m scripts.measure_house`.

Tokens of code, the share that is left without the separable features, structs with nearly the same fields, attributes
that are set on other objects, words of features in the path of a call. `tests/test_house_rules.py` holds each figure.
"""

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# What a server that forwards, records and shortens calls could do without, by its place. What such a feature has left
# in other files is not found by names, so that the rest is at most the core.
FEATURES = (
    "proxy/cli/*",
    "proxy/context/compaction/*",
    "proxy/context/loops/*",
    "proxy/context/memory/*",
    "proxy/context/strategies/*",
    "proxy/context/tool_diet.py",
    "proxy/demo/*",
    "proxy/doctor/*",
    "proxy/engine/background/*",
    "proxy/engine/compaction/*",
    "proxy/engine/erasing/*",
    "proxy/engine/events/*",
    "proxy/engine/history/*",
    "proxy/engine/mapping/*",
    "proxy/engine/memory/*",
    "proxy/engine/recall/*",
    "proxy/engine/stages/summaries.py",
    "proxy/engine/stages/tool_diet.py",
    "proxy/engine/turns/*",
    "proxy/lab/*",
    "proxy/read/dialogue*",
    "proxy/read/findings*",
    "proxy/read/memory*",
    "proxy/retrieval/*",
    "proxy/sdk/*",
    "proxy/server/mcp/*",
    "proxy/store/erasing/*",
    "proxy/store/search/*",
    "proxy/telemetry/*",
    "proxy/transcripts/*",
    "proxy/trial/*",
    "proxy/upstream/litellm*",
    "proxy/wire/translation/*",
)
# The files that carry any call, whatever is switched on.
CALL_PATH = (
    "proxy/engine/call/calls.py",
    "proxy/engine/counting.py",
    "proxy/engine/call/relay.py",
    "proxy/engine/call/response_reader.py",
    "proxy/engine/call/round_recorder.py",
    "proxy/engine/unread.py",
    "proxy/engine/exchange.py",
    "proxy/engine/request_resolver.py",
    "proxy/engine/runtime.py",
)
FEATURE_WORDS = frozenset(
    {
        "held", "program", "recall", "recalls", "tool", "tools", "clearing", "loop",
        "nudge", "memory", "pin", "pins", "reasoning", "snapshot", "compaction", "strategy",
    }
)  # fmt: skip
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Words that once had several meanings; what each means is in ARCHITECTURE.md.
WORDS = ("hold", "level", "mark", "source", "view")
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
LEAST_FIELDS, MOST_EQUAL = 4, 0.8
"""Structs of at least so many fields share at most this part of them with another."""
ALIKE_BY_NATURE: Mapping[frozenset[str], str] = {
    frozenset(
        {
            "proxy/model/exchange.py: Usage",
            "proxy/model/card.py: Rates",
            "proxy/config/settings.py: PriceSettings",
        }
    ): "how many tokens of each kind there were, what one of each costs, and what settings say of that (per million,"
    " most of it optional); the kinds are the providers'",
    frozenset(
        {
            "proxy/engine/turns/recording.py: SessionRequest",
            "proxy/server/api/turns.py: SessionBegun",
            "proxy/model/events.py: SessionCreatedEvent",
        }
    ): "what is asked for (most of it optional, with a system prompt), what has come of it, and what is told of any"
    " session that begins; each is written down where programs read it, so none may grow with another",
    frozenset(
        {"proxy/model/epoch.py: Epoch", "proxy/read/context.py: WholeEpoch"}
    ): "what the log keeps, as bytes in the order of its records, and what is shown: nodes in hexadecimal digits, edits"
    " and messages as JSON, in the order of the API's document",
}
"""Structs that have the same fields and are not the same, and why."""


class Figures(NamedTuple):
    """What is measured. `tokens` and `core` are tokens of code: names, operators and literals, without docstrings.

    `alike` are pairs of structs with nearly the same fields, `excused` those of them that are listed as two things.
    """

    tokens: int
    core: int
    packages: dict[str, int]
    alike: list[str]
    excused: list[str]
    outside_sets: int
    feature_words: int


def read_package(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file of the package, by its path in the repository."""
    files = sorted((root / "proxy").rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}


@lru_cache(maxsize=1)
def list_nodes(text: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a source text, its module first.

    Whoever asks all about one text before the next parses it once: the trees of the whole package would take 300 MB.
    """
    return tuple(ast.walk(ast.parse(text)))


def count_tokens(text: str) -> int:
    """Return the tokens of code in a source text: comments, docstrings and layout do not count."""
    found = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in _SKIPPED]
    strings = _list_docstrings(list_nodes(text))
    return sum(each.start not in strings for each in found)


def _list_docstrings(nodes: Iterable[ast.AST]) -> set[tuple[int, int]]:
    """Return the places of strings that are statements of their own, as docstrings are."""
    return {
        (node.lineno, node.col_offset)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def is_feature(path: str) -> bool:
    """Return whether a file belongs to a separable feature."""
    return any(fnmatch(path, pattern) for pattern in FEATURES)


def list_structs(sources: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the names of the fields of each class that states some, by file and class."""
    structs = {}
    for path, text in sources.items():
        for node in list_nodes(text):
            if isinstance(node, ast.ClassDef):
                fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
                structs[f"{path}: {node.name}"] = frozenset(each.id for each in fields if isinstance(each, ast.Name))
    return structs


def list_alike(structs: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the pairs of structs of which one has nearly all the fields of the other, and no many more."""
    large = [(name, fields) for name, fields in structs.items() if len(fields) >= LEAST_FIELDS]
    return [
        f"{one} = {other}"
        for (one, ours), (other, theirs) in combinations(large, 2)
        if len(ours & theirs) >= MOST_EQUAL * max(len(ours), len(theirs))
    ]


def is_by_nature(pair: str) -> bool:
    """Return whether a pair of structs is listed as two things."""
    return any(names.issuperset(pair.split(" = ")) for names in ALIKE_BY_NATURE)


def list_outside_sets(text: str) -> Iterator[int]:
    """Yield the lines in which an attribute of another object is set."""
    for node in list_nodes(text):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in targets:
                if isinstance(target, ast.Attribute) and not _is_own(target.value):
                    yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield node.lineno


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def list_names_with(word: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of classes, functions and annotated variables that have this word, in the singular or plural."""
    for node in nodes:
        name = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "name", None)
        told = name.id if isinstance(name, ast.Name) else name
        if (
            isinstance(told, str)
            and word in told.lower()
            and {word, f"{word}s"} & {part.lower() for part in _NAME_PART.findall(told)}
        ):
            yield told


def count_feature_words(text: str) -> int:
    """Return how many names of a source text have a word of a feature in them."""
    names = (
        getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
        for node in list_nodes(text)
    )
    return sum(
        bool(FEATURE_WORDS & {part.lower() for part in _NAME_PART.findall(name)})
        for name in names
        if isinstance(name, str)
    )


def measure(sources: Mapping[str, str]) -> Figures:
    """Measure a package, given the text of each of its files."""
    tokens, words, outside_sets = dict[str, int](), 0, 0
    packages = Counter[str]()
    structs = dict[str, frozenset[str]]()
    for path, text in sources.items():
        tokens[path] = count_tokens(text)
        packages["/".join(path.split("/")[:2]).removesuffix(".py") if path.count("/") > 1 else "proxy"] += tokens[path]
        structs |= list_structs({path: text})
        outside_sets += sum(1 for _ in list_outside_sets(text))
        words += count_feature_words(text) if path in CALL_PATH else 0
    pairs = list_alike(structs)
    return Figures(
        sum(tokens.values()),
        sum(count for path, count in tokens.items() if not is_feature(path)),
        dict(packages),
        [pair for pair in pairs if not is_by_nature(pair)],
        [pair for pair in pairs if is_by_nature(pair)],
        outside_sets,
        words,
    )


if __name__ == "__main__":
    print(json.dumps(measure(read_package())._asdict(), indent=1))
