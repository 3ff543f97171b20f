"""Outlines of program text and of plain text: Python, Markdown, tables.

Rule: an outline is empty where the text is not of its kind; none raises.
"""

import ast
import csv
import re
from collections.abc import Iterator
from itertools import islice

_MOST_NESTED = 60
_SAMPLE = 200_000
_ESCAPE = re.compile(r"\\[^\n]")
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.{0,200})")
_FENCES = ("```", "~~~")
_REFUSED = (SyntaxError, ValueError, RecursionError, MemoryError)


def outline_python(text: str) -> list[str]:
    """Imports, then classes and functions with the lines where they stand."""
    if _measure_nesting(text) > _MOST_NESTED:
        return []  # a parser may need long for that
    try:
        # Escapes would be warned of, on standard error; none of them matters here.
        tree = ast.parse(_ESCAPE.sub("__", text))
    except _REFUSED:
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
