"""The tool `context_recall`: what models are told of it, and the reading of its arguments, which may be anything."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from proxy.wire.json_values import JSON_ERRORS, load_json

DESCRIPTION = (
    "Reads what was removed from this conversation to save room: earlier messages, outputs of tools, files as they were"
    " then. It changes nothing. search: finds passages by words, names or a question. expand: the original of a ref:ID."
    " describe: what a ref:ID is. read: a file as last seen, or step N of the ledger. Long results have pages."
)
Action = Literal["search", "describe", "expand", "read"]
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": list(get_args(Action))},
        "query": {"type": "string", "description": "search: what to find. read: `PATH`, `PATH @ STEP` or `step N`"},
        "ref": {"type": "string", "description": "expand, describe, read: ID"},
        "page": {"type": "integer", "description": "from 1"},
    },
    "required": ["action"],
}

MOST_QUERY = 4000
"""Characters of a query that are looked at."""

_ACTIONS: tuple[Action, ...] = get_args(Action)
_LARGEST_PAGE = 1_000_000
_MOST_NESTED = 3
_REFERENCE = re.compile(r"\bref:\s*([a-z0-9]{10})(?![a-z0-9])")
_BARE = re.compile(r"\W*([a-z0-9]{10})\W*")
_WHOLE_REFERENCE = re.compile(r"\W*ref:\s*[a-z0-9]{10}\W*")


class RecallCall(msgspec.Struct, frozen=True, gc=False):
    """A call of the tool with arguments that make sense. `reference` is an id without `ref:`."""

    action: Action
    query: str = ""
    reference: str = ""
    page: int = 1


class Misused(msgspec.Struct, frozen=True, gc=False):
    """Arguments that make no sense, and the sentence that tells the model what to do."""

    answer: str


def parse_call(arguments: str) -> RecallCall | Misused:
    """Read the arguments of a call as the model wrote them. Never raises."""
    value = decode_arguments(arguments)
    if value is None:
        return Misused(
            "The arguments are no JSON object. Call it with an action and what it needs, for example action search with"
            " a query, or action expand with a ref."
        )
    query, reference, page = _read_query(value.get("query")), _read_reference(value.get("ref")), value.get("page")
    if query is None:
        return Misused("query is a text: say in it what to find, or which path to read.")
    if reference is None:
        return Misused(
            f"{_quote(value.get('ref'))} is no reference: one is `ref:` and ten letters and digits, as the ledger names"
            " them. To find something by its words, use action search with a query."
        )
    number = _read_page(page)
    if number is None:
        return Misused(f"{_quote(page)} is no page: pages are counted from 1.")
    return _choose(value.get("action"), query, reference, number)


def find_reference(text: str) -> str:
    """Return the id in a text that consists of a reference; empty if it is something else."""
    lowered = text.strip().lower()
    named = _REFERENCE.search(lowered) if _WHOLE_REFERENCE.fullmatch(lowered) else _BARE.fullmatch(lowered)
    return named[1] if named else ""


def _choose(action: object, query: str, reference: str, page: int) -> RecallCall | Misused:
    """Return the call, if its action has what it needs. An action that is missing follows from what there is."""
    name = action.strip().lower() if isinstance(action, str) else ""
    if not name and (action is None or isinstance(action, str)):
        name = "expand" if reference else "search" if query else ""
    chosen = next((each for each in _ACTIONS if each == name), None)
    if chosen is None:
        said = f"{_quote(action)} is no action" if name or action else "There is no action"
        return Misused(f"{said}: use search (with query), describe or expand (with ref), or read (with query or ref).")
    if chosen == "search":
        if query:
            return RecallCall(chosen, query, reference, page)
        if reference:
            return Misused(f"search needs a query. To read ref:{reference} itself, use action expand with that ref.")
        return Misused("search needs a query: the words, names or question to look for.")
    if not reference and _WHOLE_REFERENCE.fullmatch(query.lower()):
        reference, query = find_reference(query), ""
    if reference:
        return RecallCall(chosen, query, reference, page)
    if chosen == "read":
        if query:
            return RecallCall(chosen, query, "", page)
        return Misused("read needs a query with a path, such as `src/app.py` or `src/app.py @ 12`, or a ref.")
    if query:
        return Misused(f"{chosen} needs a ref. To find one by its words, use action search with this query.")
    return Misused(f"{chosen} needs a ref, as the ledger and the results of search name them.")


def decode_arguments(arguments: str) -> dict[str, Any] | None:
    """Return the object in the arguments, which may be encoded several times; nothing at all is an empty object."""
    value: object = arguments
    for _ in range(_MOST_NESTED):
        if isinstance(value, str):
            try:
                value = load_json(value) if value.strip() else {}
            except JSON_ERRORS:
                return None
    return value if isinstance(value, dict) else None


def _read_query(value: object) -> str | None:
    """Return a query in one piece, None if it is no text. A number, or a list of words, counts as text."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = " ".join(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return value[:MOST_QUERY].strip() if isinstance(value, str) else None


def _read_reference(value: object) -> str | None:
    """Return the id of a reference, empty if there is none, None if it is something else.

    The first one counts where there are several.
    """
    if isinstance(value, list):
        value = value[0] if value else ""
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        return None
    lowered = value[:MOST_QUERY].strip().lower()
    found = _REFERENCE.search(lowered) or _BARE.fullmatch(lowered)
    return found[1] if found else None if lowered else ""


def _read_page(value: object) -> int | None:
    if value is None or value == "":
        return 1
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value.strip()[:9])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 1 <= value <= _LARGEST_PAGE else None


def _quote(value: object) -> str:
    return repr(value if isinstance(value, str) else str(value))[:60]
