"""The structure of a content in a few lines: what a reader must know to ask for the right part of it.

Total and bounded: what is too large for its parser, or of no known kind, gets a preview; nothing raises.
"""

import ast
import csv
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import yaml

_MOST_NESTED = 60
_SAMPLE = 200_000
_ESCAPE = re.compile(r"\\[^\n]")
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.{0,200})")
_FENCES = ("```", "~~~")
_PYTHON_REFUSED = (SyntaxError, ValueError, RecursionError, MemoryError)


def outline_python(text: str) -> list[str]:
    """Imports, then classes and functions with the lines where they stand."""
    if _measure_nesting(text) > _MOST_NESTED:
        return []  # a parser may need long for that
    try:
        # Escapes would be warned of, on standard error; none of them matters here.
        tree = ast.parse(_ESCAPE.sub("__", text))
    except _PYTHON_REFUSED:
        return []
    imported = list(dict.fromkeys(name for node in tree.body for name in _list_imports(node)))
    return [*([f"imports {', '.join(imported)}"] if imported else []), *_list_definitions(tree.body, 0)]


def _measure_nesting(text: str) -> int:
    deepest = depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", text):
        depth += 1 if bracket[0] in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _list_imports(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [f"{'.' * node.level}{node.module or ''}"] if isinstance(node, ast.ImportFrom) else []


def _list_definitions(body: list[ast.stmt], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{indent}class {node.name} · lines {node.lineno}-{node.end_lineno}"
            yield from _list_definitions(node.body, depth + 1)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = ", ".join(each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            yield f"{indent}def {node.name} takes {names or 'nothing'} · lines {node.lineno}-{node.end_lineno}"


def outline_markdown(text: str) -> list[str]:
    """The headings outside of code, with their lines."""
    found: list[str] = []
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = next((each for each in _FENCES if line.lstrip().startswith(each)), "")
        if opened and fence in ("", opened):
            fence = "" if fence else opened
        elif not fence and (heading := _HEADING.match(line)):
            found.append(f"{'  ' * (len(heading[1]) - 1)}{heading[2].rstrip()} · line {number}")
    return found


def outline_csv(text: str) -> list[str]:
    """The columns of a table, and how many rows it has."""
    return _outline_table(text, ";" if text.count(";", 0, 1000) > text.count(",", 0, 1000) else ",")


def outline_tsv(text: str) -> list[str]:
    """The columns of a table whose cells tabs part."""
    return _outline_table(text, "\t")


def _outline_table(text: str, delimiter: str) -> list[str]:
    sample = text[:_SAMPLE].splitlines()
    try:
        rows = list(islice(csv.reader(sample, delimiter=delimiter), 3))
    except csv.Error:
        return []
    if not rows or len(rows[0]) < 2:
        return []
    head = [f"{len(rows[0])} columns, {text.count(chr(10)) + (not text.endswith(chr(10))) - 1} lines below the first"]
    return [*head, f"columns: {', '.join(rows[0])}", *(f"row: {', '.join(row)}" for row in rows[1:])]


_VALUES_REFUSED = (ValueError, RecursionError)
_MOST_KEYS = 40
_MOST_INNER = 12
_LONGEST_KEY = 60
_MOST_DEPTH = 32
# tomllib takes time by the square of a key's parts.
_MOST_PARTS = 100

_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", type(None): "null"}

_decode = msgspec.json.Decoder().decode
# libyaml where PyYAML was built with it, as its wheels are. Its events do not recurse.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def outline_json(text: str) -> list[str]:
    """The keys of an object, or what a list is of."""
    try:
        return list(_describe_value(_decode(text)))
    except _VALUES_REFUSED:
        return []


def outline_json_lines(text: str) -> list[str]:
    """How many lines there are, and the keys of the first."""
    first, _, rest = text.partition("\n")
    described = outline_json(first) if len(first) <= 1_000_000 else []
    return [f"{rest.count(chr(10)) + bool(rest)} lines below the first", *described] if described else []


def outline_toml(text: str) -> list[str]:
    """The tables and their keys."""
    if any(line.count(".") > _MOST_PARTS for line in text.splitlines()):
        return []
    try:
        return list(_describe_value(tomllib.loads(text)))
    except _VALUES_REFUSED:
        return []


def outline_yaml(text: str) -> list[str]:
    """The keys of the first document, two levels of them, with their lines."""
    found: list[str] = []
    try:
        for depth, key, line in _list_yaml_keys(text):
            found.append(f"{'  ' * depth}{key[:_LONGEST_KEY]} · line {line}")
            if len(found) > _MOST_KEYS * 2:
                break
    except (yaml.YAMLError, *_VALUES_REFUSED):
        return []
    return found


def _list_yaml_keys(text: str) -> Iterator[tuple[int, str, int]]:
    """Depth, name and line of the keys of mappings in mappings; raises ValueError where they are too deep."""
    # For each open collection, whether a key of it comes next; None for a list.
    states: list[bool | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        if len(states) > _MOST_DEPTH:
            raise ValueError("too deep")
        if isinstance(event, yaml.DocumentEndEvent):
            return
        if isinstance(event, yaml.CollectionEndEvent):
            states.pop()
        elif isinstance(event, yaml.NodeEvent):
            is_key = bool(states) and states[-1] is True
            if is_key and isinstance(event, yaml.ScalarEvent) and len(states) <= 2 and None not in states:
                yield len(states) - 1, event.value, event.start_mark.line + 1  # type: ignore[union-attr]  # never None
            if states and states[-1] is not None:
                states[-1] = not states[-1]
            if isinstance(event, yaml.CollectionStartEvent):
                states.append(True if isinstance(event, yaml.MappingStartEvent) else None)


def _describe_value(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key in list(value)[:_MOST_KEYS]:
            yield f"{key[:_LONGEST_KEY]}: {_describe_items(value[key])}"
        if len(value) > _MOST_KEYS:
            yield f"and {len(value) - _MOST_KEYS} more keys"
    elif isinstance(value, list):
        yield _describe_items(value)


def _describe_items(value: Any) -> str:
    """What a value is, and what it holds."""
    if isinstance(value, list):
        return f"array of {len(value)}{f', the first: {_describe_type(value[0])}' if value else ''}"
    return _describe_type(value)


def _describe_type(value: Any) -> str:
    if isinstance(value, dict):
        return f"object of {', '.join(_list_keys(value)) or 'nothing'}"
    return _NAMES.get(type(value), type(value).__name__)


def _list_keys(value: dict[str, Any]) -> list[str]:
    keys = [key[:_LONGEST_KEY] for key in list(value)[:_MOST_INNER]]
    return [*keys, "…"] if len(value) > _MOST_INNER else keys


MOST_LINES = 40
LONGEST_LINE = 160
_PREVIEW_HEAD, _PREVIEW_TAIL = 8, 4

_Outliner = Callable[[str], list[str]]
# The most characters that are parsed: each of these takes some 0.1 s at most.
_PARSERS: Mapping[str, tuple[int, _Outliner]] = {
    "python": (200_000, outline_python),
    "json": (4_000_000, outline_json),
    "json lines": (20_000_000, outline_json_lines),
    "yaml": (100_000, outline_yaml),
    "toml": (100_000, outline_toml),
    "markdown": (400_000, outline_markdown),
    "csv": (20_000_000, outline_csv),
    "tsv": (20_000_000, outline_tsv),
}
_ENDINGS = {
    "py": "python", "pyi": "python", "json": "json", "ipynb": "json", "jsonl": "json lines", "ndjson": "json lines",
    "yaml": "yaml", "yml": "yaml", "toml": "toml", "md": "markdown", "markdown": "markdown", "csv": "csv", "tsv": "tsv",
}  # fmt: skip
_ENDING = re.compile(r"\.(\w{1,10})\Z")
_GUESSES = [
    ("json", re.compile(r"\s*[{\[]\s*[\"{\[\d\]}]")),
    ("python", re.compile(r"(?:#!.{0,80}python|(?:from [\w.]+ )?import \w|def \w+\(|class \w+[(:]|\"\"\")")),
    ("yaml", re.compile(r"---\s*\n")),
    ("markdown", re.compile(r"#{1,3} \S")),
]


OutlineParser = Callable[[str, str], list[str]]
"""The structure of a text of some kind (the ending of a path), in lines; empty where there is none to be had."""


class Outline(msgspec.Struct, frozen=True, gc=False):
    """What a content is (`unknown` where nobody can tell), how many lines it has, and its structure."""

    kind: str
    lines: int
    structure: tuple[str, ...]


def outline(text: str, path: str = "", parse: OutlineParser | None = None) -> Outline:
    """The outline of a content. `parse` makes those of the kinds that have no parser here, of a text and its kind."""
    kind = detect_kind(text, path)
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    if kind in _PARSERS:
        most, parse_here = _PARSERS[kind]
        found = parse_here(text) if len(text) <= most else []
    else:
        found = parse(text, kind) if parse is not None else []
    return Outline(kind, lines, tuple(_limit_lines(found) if found else _limit_lines(preview(text))))


def detect_kind(text: str, path: str) -> str:
    """The type of a content."""
    ending = _ENDING.search(path[-200:])
    if ending:
        return _ENDINGS.get(ending[1].lower(), ending[1].lower())
    return next((kind for kind, guess in _GUESSES if guess.match(text)), "unknown")


def preview(text: str) -> list[str]:
    """The first lines and the last ones."""
    most = (_PREVIEW_HEAD + _PREVIEW_TAIL) * 1000
    if len(text) <= 2 * most and text.count("\n") <= _PREVIEW_HEAD + _PREVIEW_TAIL:
        return text.splitlines()
    head, tail = text[:most].splitlines()[:_PREVIEW_HEAD], text[-most:].splitlines()[-_PREVIEW_TAIL:]
    return [*head, "…", *(line[-LONGEST_LINE:] for line in tail)]


def _limit_lines(lines: Iterable[str]) -> list[str]:
    kept = [
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…" for line in islice(lines, MOST_LINES + 1)
    ]
    return kept if len(kept) <= MOST_LINES else [*kept[: MOST_LINES - 1], "…"]
