"""The program that makes outlines of source code with tree-sitter's grammars. `outlines.py` runs it.

It has a process of its own, since nested text makes some grammars overflow the stack (3,000 brackets are enough) and
others take gigabytes. It imports nothing of this package, so that it can be run as a file. Each line of standard input
is a JSON array: a grammar's name and a text. Each line of standard output is the outline, a JSON array of lines.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, NamedTuple

import tree_sitter_language_pack
from tree_sitter import Node, Parser

TIME_LIMIT = 0.25  # seconds, for parsing
DEEPEST_NODE = 40
MOST_DEFINITIONS = 200
_MEMORY_LIMIT = 1024**3  # bytes
_CHUNK = 4096
_LONGEST_NAME = 100

# The types of nodes that define something in these grammars, and the word for each in an outline.
_DEFINITIONS: Mapping[str, str] = {
    "class_declaration": "class", "abstract_class_declaration": "class", "class_definition": "class",
    "class_specifier": "class", "class": "class", "object_declaration": "object", "object_definition": "object",
    "module": "module", "namespace_declaration": "namespace", "namespace_definition": "namespace",
    "internal_module": "namespace",
    "struct_specifier": "struct", "struct_item": "struct", "struct_declaration": "struct",
    "record_declaration": "record", "union_specifier": "union", "union_item": "union",
    "enum_declaration": "enum", "enum_specifier": "enum", "enum_item": "enum", "enum_definition": "enum",
    "interface_declaration": "interface", "trait_item": "trait", "trait_definition": "trait",
    "trait_declaration": "trait", "protocol_declaration": "protocol", "impl_item": "impl", "mod_item": "mod",
    "type_spec": "type", "type_alias_declaration": "type", "type_item": "type",
    "function_declaration": "function", "function_definition": "function", "function_item": "function",
    "generator_function_declaration": "function", "protocol_function_declaration": "function",
    "function_signature_item": "function", "method_definition": "method", "method_declaration": "method",
    "method_signature": "method",
    "method": "method", "singleton_method": "method", "constructor_declaration": "constructor",
    "init_declaration": "constructor",
    "macro_definition": "macro",
}  # fmt: skip
# Functions that are assigned to a name: `const f = () => …`.
_NAMING = frozenset({"variable_declarator", "public_field_definition", "field_definition"})
_FUNCTIONS = frozenset({"arrow_function", "function_expression", "generator_function"})
_NAMES = ("name", "declarator", "property", "type")
_WHOLE_NAMES = frozenset({"qualified_identifier", "user_type"})
_IDENTIFIERS = frozenset({"simple_identifier", "type_identifier"})
# Without a body, a node of these types only mentions what is defined elsewhere.
_WITH_BODY = frozenset({"class_specifier", "struct_specifier", "union_specifier", "enum_specifier"})
_DEPTH_OF_A_LINE = 2


class Definition(NamedTuple):
    """A definition in source code: its kind, name, nesting depth, first and last line."""

    what: str
    name: str
    depth: int
    first: int
    last: int


def outline(text: str, grammar: str, now: Callable[[], float] = time.monotonic) -> list[str]:
    """Return classes, functions and methods with their lines; an empty list if parsing takes too long."""
    content = text.encode(errors="replace")
    root = _parse(content, grammar, now)
    found = islice(_list_definitions(root, content), MOST_DEFINITIONS) if root is not None else ()
    return [f"{'  ' * each.depth}{each.what} {each.name} · lines {each.first}-{each.last}" for each in found]


def serve(source: Iterable[str], sink: IO[str]) -> None:
    """Write an outline for each line of `source`."""
    for line in source:
        grammar, text = json.loads(line)
        sink.write(json.dumps(outline(text, grammar)) + "\n")
        sink.flush()


def _parse(content: bytes, grammar: str, now: Callable[[], float]) -> Node | None:
    deadline = now() + TIME_LIMIT
    parser: Parser = tree_sitter_language_pack.get_parser(grammar)  # type: ignore[arg-type]
    try:
        tree = parser.parse(
            lambda start, _: content[start : start + _CHUNK], progress_callback=lambda *_: now() > deadline
        )
    except ValueError:  # the progress callback has stopped it
        return None
    return tree.root_node


def _list_definitions(root: Node, content: bytes) -> Iterator[Definition]:
    """Yield definitions in the order of the text. Below a node of one line, search only two levels."""
    waiting = [(root, 0, 0, _DEPTH_OF_A_LINE)]
    while waiting:
        node, node_depth, depth, depth_left = waiting.pop()
        first, last = node.start_point[0] + 1, node.end_point[0] + 1
        what = _classify(node)
        if what and (name := _read_name(node, content)):
            yield Definition(what, name, depth, first, last)
            depth += 1
        depth_left = _DEPTH_OF_A_LINE if last > first else depth_left - 1
        if depth_left and node_depth < DEEPEST_NODE:
            waiting += [(child, node_depth + 1, depth, depth_left) for child in reversed(node.named_children)]


def _classify(node: Node) -> str:
    """Return the kind of definition that a node is, or an empty string."""
    if node.type in _NAMING:
        value = node.child_by_field_name("value")
        return "function" if value is not None and value.type in _FUNCTIONS else ""
    if node.type in _WITH_BODY and node.child_by_field_name("body") is None:
        return ""
    return _DEFINITIONS.get(node.type, "")


def _read_name(node: Node, content: bytes) -> str:
    """Return the name that a node defines. That of a C function is nested in its declarators."""
    named: Node | None = node
    while named is not None and named.type not in _WHOLE_NAMES:
        node, named = named, _find_inner(named)
    found = node if named is None else named
    if found.type in _DEFINITIONS:
        return ""
    name = content[found.start_byte : found.end_byte].decode(errors="replace")
    return " ".join(name.split())[:_LONGEST_NAME]


def _find_inner(node: Node) -> Node | None:
    """Return the child that holds a node's name, or None."""
    for field in _NAMES:
        if (child := node.child_by_field_name(field)) is not None:
            return child
    if node.type in _DEFINITIONS:  # this grammar does not name its fields
        return next((child for child in node.named_children if child.type in _IDENTIFIERS), None)
    return None


def main() -> None:
    """Serve standard input, with limited memory and no core dump."""
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    most = _MEMORY_LIMIT if allowed == resource.RLIM_INFINITY else min(allowed, _MEMORY_LIMIT)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
