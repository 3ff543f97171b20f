"""Outlines of contents: the structure in a few lines, from which a reader knows which part to ask for.

Every content has a bounded outline: a preview where it is too large for its parser or of no known kind. Nothing raises.
"""

import ast
import csv
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from textwrap import dedent
from typing import Any, Literal

import msgspec
import yaml

from proxy.model import Value

_MOST_NESTED = 60
_SAMPLE = 200_000
_ESCAPE = re.compile(r"\\[^\n]")
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.{0,200})")
_FENCES = ("```", "~~~")
# A SystemError: CPython 3.11 where the stack is nearly full.
_PYTHON_REFUSED = (SyntaxError, ValueError, RecursionError, MemoryError, SystemError)


def outline_python(text: str) -> list[str]:
    """Return the imports, then classes and functions with their line numbers."""
    if _measure_nesting(text) > _MOST_NESTED:
        return []  # the parser may take long for such nesting
    try:
        # Invalid escapes would cause warnings on standard error; no escape matters here.
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
    """Return the headings outside of code blocks, with their line numbers."""
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
    """Return the columns of a table, and its number of rows."""
    return _outline_table(text, ";" if text.count(";", 0, 1000) > text.count(",", 0, 1000) else ",")


def outline_tsv(text: str) -> list[str]:
    """Return the columns of a table with tabs between its cells, and its number of rows."""
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
# The time of tomllib grows with the square of a key's parts.
_MOST_PARTS = 100

_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", type(None): "null"}

_decode = msgspec.json.Decoder().decode
# libyaml where PyYAML was built with it, as its wheels are. Its event parser does not recurse.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def outline_json(text: str) -> list[str]:
    """Return the keys of an object, or the length and element type of a list."""
    try:
        return list(_describe_value(_decode(text)))
    except _VALUES_REFUSED:
        return []


def outline_json_lines(text: str) -> list[str]:
    """Return the number of lines, and the keys of the first."""
    first, _, rest = text.partition("\n")
    described = outline_json(first) if len(first) <= 1_000_000 else []
    return [f"{rest.count(chr(10)) + bool(rest)} lines below the first", *described] if described else []


def outline_toml(text: str) -> list[str]:
    """Return the tables and their keys."""
    if any(line.count(".") > _MOST_PARTS for line in text.splitlines()):
        return []
    try:
        return list(_describe_value(tomllib.loads(text)))
    except _VALUES_REFUSED:
        return []


def outline_yaml(text: str) -> list[str]:
    """Return two levels of keys of the first document, with their line numbers."""
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
    """Yield depth, name and line of the keys of the two outermost mappings.

    Raise ValueError where collections are nested too deep.
    """
    # For each open collection: whether a key comes next; None for a list.
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
    """Return the type of a value and of its elements."""
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


_SCRIPT_KINDS = frozenset({"js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx"})
_MOST_SCRIPT = 400_000
_IMPORTED = re.compile(
    r"(?m)^[ \t]*(?:import\b[^;'\"()]{0,2000}?|export\b[^;'\"()]{0,2000}?\bfrom[ \t]{0,9})[\"']([^\"'\n]{1,200})[\"']"
    r"|\brequire\([\"']([^\"'\n]{1,200})[\"']\)"
)
_WORDS = r"(?:declare |abstract |async |default ){0,3}"
_EXPORTED = re.compile(
    rf"(?m)^[ \t]*export (?:{_WORDS}(?:class|function\*?|const|let|var|interface|type|enum|namespace) ([\w$]+)"
    r"|default ([\w$]+);|(?:type )?\{([^}]{1,2000})\})|^[ \t]*(?:module\.)?exports\.([\w$]+)"
    r"|^[ \t]*module\.exports = (?:\{([^}]{1,2000})\}|([\w$]+))"
)
_DEFINED = re.compile(
    rf"(?m)^([ \t]*)(?:export )?{_WORDS}(?:(class|function|interface|enum|namespace)\*? ([\w$]+)"
    r"|(?:const|let|var) ([\w$]+)(?: ?:[^=\n]{1,200})? = (?:async )?"
    r"(?:function\b|\([^)\n]{0,300}\)[^=\n]{0,100}=>|[\w$]+ =>))"
)


def outline_script(text: str, definitions: list[str]) -> list[str]:
    """Return what JavaScript or TypeScript imports and exports, then its definitions; if there are none, those found.

    These have the line on which they begin.
    """
    imported = dict.fromkeys(filter(None, (name for found in _IMPORTED.findall(text) for name in found)))
    exported = dict.fromkeys(name for found in _EXPORTED.findall(text) for part in found for name in _split_names(part))
    lines = [f"imports {', '.join(imported)}"] if imported else []
    lines += [f"exports {', '.join(exported)}"] if exported else []
    return [*lines, *(definitions or _list_script_definitions(text))]


def _split_names(text: str) -> list[str]:
    """Return the names in the braces of an export; of `a as b` the second, of `a: b` the first."""
    parts = (part.split(" as ")[-1].split(":")[0].strip() for part in text.split(","))
    return [part for part in parts if part]


def _list_script_definitions(text: str) -> Iterator[str]:
    line, at = 1, 0
    for found in _DEFINED.finditer(text):
        line, at = line + text.count("\n", at, found.start()), found.start()
        yield f"{found[1][:8]}{found[2] or 'function'} {found[3] or found[4]} · line {line}"


# How readers of files number lines: `cat -n` (indented, as no rows of a table are), Claude Code (→), opencode (a bar).
_NUMBERED = re.compile(r"(?:[ \t]{0,12}(\d{1,7})(?:\u2192|\| ?)|[ \t]{1,12}(\d{1,7})\t)([^\n]*)\n?")
_LEAST_NUMBERED, _MOST_WRAPPED, _LATEST_START = 3, 12, 100_000
_PYTHON_LINE = re.compile(
    r"([ \t]{0,60})(?:(?:async )?(def|class)[ \t]+(\w{1,200})|from[ \t]+([\w.]{1,200})[ \t]+import\b"
    r"|import[ \t]+([\w.]{1,200}))"
)


def remove_line_numbers(text: str) -> str:
    """Return a numbered text without its numbers and what stands before and behind it, each line in its place.

    So an excerpt begins with empty lines. Other texts are returned unchanged.
    """
    found = list(map(_NUMBERED.match, text.splitlines(keepends=True)))
    numbered = [(int(match[1] or match[2]), match[3]) for match in found if match is not None]
    start = numbered[0][0] if numbered else 0
    is_whole = len(numbered) >= max(_LEAST_NUMBERED, len(found) - _MOST_WRAPPED) and start <= _LATEST_START
    if not is_whole or any(number != i for i, (number, _) in enumerate(numbered, start)):
        return text
    return "\n" * (start - 1) + dedent("\n".join(line for _, line in numbered)) + "\n"


def scan_python(text: str) -> list[str]:
    """Return the imports, then classes and functions with the lines on which they begin, of a part of a module."""
    imported, defined = dict[str, None](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if (found := _PYTHON_LINE.match(line)) is not None:
            indent, kind, name, *modules = found.groups()
            if kind:
                defined.append(f"{indent[:8]}{kind} {name} · line {number}")
            imported.update(dict.fromkeys(filter(None, modules)))
    return [*([f"imports {', '.join(imported)}"] if imported else []), *defined]


MOST_LINES = 40
LONGEST_LINE = 160
_PREVIEW_HEAD, _PREVIEW_TAIL = 8, 4

_Outliner = Callable[[str], list[str]]
# The most characters that are parsed; each parser takes about 0.1 s at most for them.
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


_SIGNATURES = {
    "PNG": "png",
    "GIF8": "gif",
    "%PDF-": "pdf",
    "PK\x03\x04": "zip",
    "ELF": "elf",
    "RIFF": "riff",
    "JFIF": "jpeg",
}
_NOT_TEXT = "not text: none of it is shown"
_SIGNATURE_SEARCHED, _BINARY_SEARCHED = 16, 8192
# Characters that no text has: controls, and what stands for bytes that are no UTF-8. Colours of a terminal are text.
_ODD = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
_ODD_SHARE, _LEAST_BASE64 = 0.05, 400
_BASE64 = re.compile(r"\s*(?:data:([\w/+.-]{1,60});base64,)?[A-Za-z0-9+/]{60,}+(?:\r?\n[A-Za-z0-9+/]++)*+={0,2}\s*")

OutlineParser = Callable[[str, str], list[str]]
"""A parser of a text and its kind (a file extension) to lines of structure; none where it finds no structure."""


class Outline(Value):
    """An outline: the kind of a content (`unknown` where it is not detected), its number of lines and its structure.

    `shows` says what the structure is: that, or the first and last lines, or nothing where the content is no text.
    """

    kind: str
    lines: int
    structure: tuple[str, ...]
    shows: Literal["structure", "preview", "nothing"] = "structure"


class OutlineJob(Value, tag="outline"):
    """A content to outline in the worker process, and its path."""

    text: str
    path: str

    @property
    def weight(self) -> int:
        """Bytes of memory, roughly."""
        return len(self.text)


def outline(text: str, path: str = "", parse: OutlineParser | None = None) -> Outline:
    """Return the outline of a content; `parse` outlines the kinds that have no parser in this module."""
    if binary := detect_binary(text):
        return Outline(binary, text.count("\n") + 1, (_NOT_TEXT,), "nothing")
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    bare = remove_line_numbers(text)
    kind = detect_kind(bare.lstrip("\n"), path)
    if kind in _PARSERS:
        most, parse_here = _PARSERS[kind]
        found = parse_here(bare) if len(bare) <= most else []
    else:
        found = parse(bare, kind) if parse is not None else []
    if kind in _SCRIPT_KINDS and len(bare) <= _MOST_SCRIPT:
        found = outline_script(bare, found)
    if kind == "python" and not found and bare is not text:
        found = scan_python(bare)
    if found:
        return Outline(kind, lines, tuple(_limit_lines(found)))
    return Outline(kind, lines, tuple(_limit_lines(preview(text))), "preview" if text else "structure")


def detect_kind(text: str, path: str) -> str:
    """Return the kind of a content: by the extension of its path, else by how it begins; else `unknown`."""
    ending = _ENDING.search(path[-200:])
    if ending:
        return _ENDINGS.get(ending[1].lower(), ending[1].lower())
    return next((kind for kind, guess in _GUESSES if guess.match(text)), "unknown")


def detect_binary(text: str) -> str:
    """Return the kind of a content that is no text, `binary` where it is not detected; empty for a text."""
    if len(text) >= _LEAST_BASE64 and (encoded := _BASE64.fullmatch(text)):
        return encoded[1] or "base64"
    sample = text[:_BINARY_SEARCHED]
    if "\0" not in sample and len(_ODD.findall(sample)) <= _ODD_SHARE * len(sample):
        return ""
    head = sample[:_SIGNATURE_SEARCHED]
    return next((kind for signature, kind in _SIGNATURES.items() if signature in head), "binary")


def preview(text: str) -> list[str]:
    """Return the first lines and the last ones, with an ellipsis between them; all lines of a short text."""
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
