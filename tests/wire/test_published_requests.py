"""The requests of the providers' documentation, in words of our own: what is read of each, and that all of it goes on.

Rule: `published/*.txt` has a heading for each, behind a `!` why it is not managed, then `#` and its items, each with
the calls that it makes (+) or answers (-), and a `*` if it always stays, then the body as it is sent.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proxy.model.epoch import Kept, Written
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.json_values import join_array, list_elements
from proxy.wire.rendering import apply, change_items, render

_PUBLISHED = Path(__file__).parent / "published"
_WIRES = {"messages": FORMATS["anthropic_messages"], "responses": FORMATS["responses"]}


class Published(NamedTuple):
    """One request, and what the file says of it."""

    form: Format
    items: list[str]
    management: str
    body: bytes

    @property
    def split(self) -> SplitBody:
        """The request, split."""
        split = split_body(self.body, self.form.items_key)
        assert split is not None
        return split

    @property
    def raws(self) -> list[bytes]:
        """Its items."""
        return [self.body[span.start : span.end] for span in self.split.items]


def load_published() -> dict[str, Published]:
    """All requests, by wire and heading."""
    found: dict[str, Published] = {}
    for file, form in _WIRES.items():
        for part in re.split(r"^### ", (_PUBLISHED / f"{file}.txt").read_text(), flags=re.MULTILINE)[1:]:
            head, told, body = part.split("\n", 2)
            name, _, management = head.partition(" ! ")
            items = [] if told == "# none" else told.removeprefix("# ").split(" ")
            found[f"{file}: {name}"] = Published(form, items, management, body.rstrip("\n").encode())
    return found


PUBLISHED = load_published()
every_request = pytest.mark.parametrize("name", PUBLISHED)


def respell(value: Any) -> bytes:
    """The same request as another client writes it: without blanks, members in another order, all of it escaped."""

    def turn(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: turn(member) for key, member in reversed(part.items())}
        return [turn(member) for member in part] if isinstance(part, list) else part

    return json.dumps(turn(value), separators=(",", ":")).encode()


def tell(form: Format, body: bytes, split: SplitBody) -> list[str]:
    """What is read of the items of a request."""
    structures = [form.parse_structure(body[span.start : span.end]) for span in split.items]
    stays = ["*" if structure.stays == "always" else "" for structure in structures]
    return [
        "".join([item.role, *(f"+{call}" for call in item.calls), *(f"-{call}" for call in item.results), stay])
        for item, stay in zip(form.read_items(body, split.items), stays, strict=True)
    ]


def test_there_are_many_of_both() -> None:
    for file in _WIRES:
        assert sum(name.startswith(file) for name in PUBLISHED) >= 35


@every_request
def test_it_is_split_into_its_items_and_joined_to_the_same_bytes(name: str) -> None:
    published = PUBLISHED[name]
    value, split = json.loads(published.body), published.split
    given = value.get(published.form.items_key)
    assert [json.loads(raw) for raw in published.raws] == (given if isinstance(given, list) else [])
    assert set(split.members) == set(value)
    assert {member: json.loads(split.member(member)) for member in split.members} == value
    assert change_items(split, 0, dict(enumerate(published.raws))) == published.body
    assert list_elements(join_array(published.raws)) == published.raws


@every_request
def test_its_items_are_read_as_they_are_meant_however_they_are_spelt(name: str) -> None:
    published = PUBLISHED[name]
    form, split = published.form, published.split
    assert tell(form, published.body, split) == published.items
    body = respell(json.loads(published.body))
    other = split_body(body, form.items_key)
    assert other is not None
    forms = [item.form for item in form.read_items(published.body, split.items)]
    assert [item.form for item in form.read_items(body, other.items)] == forms
    assert tell(form, body, other) == published.items
    structures = [form.parse_structure(raw) for raw in published.raws]
    assert [structure.role for structure in structures] == [re.split(r"[-+*]", item)[0] for item in published.items]
    assert [structure.flaws for structure in structures] == [()] * len(structures)


@every_request
def test_who_manages_its_context(name: str) -> None:
    published = PUBLISHED[name]
    found = published.form.find_management(published.split)
    assert found.endswith(published.management) and bool(found) == bool(published.management)


@every_request
def test_what_is_kept_is_sent_as_it_came_at_any_place_of_an_epoch(name: str) -> None:
    published = PUBLISHED[name]
    form, raws, split = published.form, published.raws, published.split
    for through in range(1, len(raws) + 1):
        rendered = render(form, [Written("Before.", 0, 0), *map(Kept, range(through))], raws)
        (written, *kept) = rendered
        assert form.parse_message(written).text == "Before."
        # Cache markers go from frozen messages: the client moves them, and at most four may be sent.
        plain = [raw if b"cache_control" not in raw else _unmark(raw) for raw in raws[:through]]
        assert [json.loads(raw) for raw in kept] == [json.loads(raw) for raw in plain]
        assert all(raw == own for raw, own in zip(kept, raws, strict=False) if b"cache_control" not in own)
        sent = apply(split, 0, through, kept)
        before, after = published.body[: split.items[0].start], published.body[split.items[through - 1].end :]
        assert sent == before + b",".join(kept) + after


def _unmark(raw: bytes) -> bytes:
    """A message without its markers, by a way that is not the proxy's."""
    message = json.loads(raw)
    for part in message["content"] if isinstance(message["content"], list) else ():
        part.pop("cache_control", None)
    return json.dumps(message).encode()
