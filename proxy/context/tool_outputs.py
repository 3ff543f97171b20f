"""Replacement of single messages among those that are kept: order, markers and their references.

Superseded outputs are replaced first, then repeated ones, then corrected errors, then other errors, then the oldest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from textwrap import wrap

import msgspec
from msgspec.structs import replace

from proxy.context.budget import MESSAGE_FRAME, Count, estimate_tokens, find_cap
from proxy.context.conversation import ConversationIndex, PlanRequest, PruningPolicy
from proxy.context.message_features import count_lines, find_outcome, is_not_done
from proxy.context.outline import LONGEST_LINE, OutlineParser, outline
from proxy.context.references import (
    PAGE,
    PAGE_OVERLAP,
    FileReference,
    Tombstone,
    cut_to_ends,
    find_access,
    list_argument_lines,
    render_file,
    render_message,
    render_tombstone,
    sanitize_text,
)
from proxy.model import Value
from proxy.model.epoch import Reference, Replaced
from proxy.model.messages import BESIDE, MOST_BESIDE, ToolCall

# Parts that a marker names, each of a page: 24 are some 70,000 tokens, more than an output has that is read by parts.
_MAX_PARTS = 24
MIN_PRUNED_TOKENS = 100
"""Size in tokens up to which an output is not worth a marker."""
# Characters that are left of a text where nothing else fits: what it is about, in some 100 tokens.
_SHORTENED_LENGTH = 400
# Levels of arguments that are searched for long values: deeper ones are left as they are, within the stack's limit.
_MAX_DEPTH = 32
# Tokens of the line that introduces an excerpt, and the fewest that make an excerpt.
_EXCERPT_FRAME, _LEAST_EXCERPT = 12, 60


class ReplacedMessage(Value):
    """A replacement of one message, and the references that its marker names."""

    edit: Replaced
    references: tuple[Reference, ...]


def order_outputs(index: ConversationIndex, places: Iterable[int]) -> list[int]:
    """Return those of the places that hold outputs worth replacing, in the order in which to replace them."""
    overtaken = find_superseded(index)

    def rank(place: int) -> tuple[int, int]:
        return overtaken.get(place, 3 if index.found[place].outcome else 4), place

    outputs = (place for place in places if index.messages[place].structure.role == "tool")
    return sorted((place for place in outputs if index.messages[place].tokens > MIN_PRUNED_TOKENS), key=rank)


def list_large_outputs(index: ConversationIndex, step: int) -> list[int]:
    """Return the places of a step's outputs that are worth a marker."""
    outputs = (place for place in index.steps[step].places if index.messages[place].structure.role == "tool")
    return [place for place in outputs if index.messages[place].tokens > MIN_PRUNED_TOKENS]


def find_superseded(index: ConversationIndex) -> dict[int, int]:
    """Return the places of outputs that a newer one supersedes, each with its rank.

    0: the same call was made again. 1: a later output has the same text. 2: an error, and the same command succeeded
    later. Only an output whose call was not made again counts as a copy, so that the newest copy is never among them.
    """
    calls = {
        place: found
        for place, seen in enumerate(index.messages)
        if seen.structure.role == "tool" and (found := _find_calls(index, place))
    }
    asked = {_identify_calls(found): place for place, found in calls.items()}
    outputs = [place for place, seen in enumerate(index.messages) if seen.structure.role == "tool"]
    again = {place for place, found in calls.items() if asked[_identify_calls(found)] != place}
    copies = {index.found[place].digest: place for place in outputs if place not in again}
    mended = {_identify_commands(found): place for place, found in calls.items() if not index.found[place].outcome}
    overtaken = dict.fromkeys(again, 0)
    for place in outputs:
        if place in again:
            continue
        if copies[index.found[place].digest] != place:
            overtaken[place] = 1
        elif index.found[place].outcome and place in calls and mended.get(_identify_commands(calls[place]), 0) > place:
            overtaken[place] = 2
    return overtaken


class _Asked(Value):
    """A call that an output answers, its summary, and whether it may have changed something."""

    call: ToolCall
    summary: str
    has_effects: bool


def _identify_calls(found: Iterable[_Asked]) -> tuple[tuple[str, str], ...]:
    return tuple([(asked.call.name, asked.call.arguments) for asked in found])


def _identify_commands(found: Iterable[_Asked]) -> tuple[tuple[str, ...], ...]:
    """Return the name of each call and the words of its arguments that are not options."""
    return tuple([_identify_command(asked.call) for asked in found])


def _identify_command(call: ToolCall) -> tuple[str, ...]:
    words = " ".join(list_argument_lines(call.arguments)).split()
    return call.name, *(word for word in words if not word.startswith("-"))


def _find_calls(index: ConversationIndex, place: int) -> list[_Asked]:
    """Return the calls that the message at a place answers, in the order of its results; of one id, the newest."""
    answers = index.messages[place].message.results
    found: dict[str, _Asked] = {}
    for before in range(place - 1, -1, -1):
        features = index.found[before]
        for call, asked, is_act in zip(
            index.messages[before].message.calls, features.asked, features.effects, strict=True
        ):
            if call.id in answers:
                found.setdefault(call.id, _Asked(call, asked, is_act))
        if len(found) == len(answers) or index.messages[before].structure.role == "user":
            break
    return [found[id] for id in answers if id in found]


class _Output(Value):
    """An output of a tool: all that a message says, or one of its results. It is in the original from `start` on."""

    text: str
    start: int
    stop: int
    lines: int
    outcome: str
    digest: bytes
    asked: _Asked | None
    id: str = ""  # of the call, if it is one of several results

    @property
    def has_effects(self) -> bool:
        """Whether the call may have changed something."""
        return self.asked is not None and self.asked.has_effects and not self.is_refused

    @property
    def is_refused(self) -> bool:
        """Whether the output says that the call was not carried out."""
        return self.asked is not None and is_not_done(self.asked.call.name, self.text)


def _read_output(index: ConversationIndex, place: int) -> _Output:
    """Return all that a message says as one output."""
    found, asked = index.found[place], next(iter(_find_calls(index, place)), None)
    text = index.messages[place].message.text
    return _Output(text, 0, found.characters, found.lines, found.outcome, found.digest, asked)


def _list_outputs(index: ConversationIndex, place: int) -> list[_Output]:
    """Return the outputs of a message with several results."""
    message = index.messages[place].message
    asked, original, at = {each.call.id: each for each in _find_calls(index, place)}, render_message(message), 0
    outputs: list[_Output] = []
    for id, text in zip(message.results, message.outputs, strict=True):
        start = max(at, original.find(text, at))
        at = start + len(text)
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        outputs.append(_Output(text, start, at, count_lines(text), find_outcome(text), digest, asked.get(id), id))
    return outputs


def _replace_outputs(
    index: ConversationIndex, place: int, room: float, replace: Callable[[_Output], tuple[str, tuple[Reference, ...]]]
) -> ReplacedMessage:
    """Replace the results of more than `room` tokens of a message with several; all of them if none has so many."""
    outputs, has_media = _list_outputs(index, place), bool(index.messages[place].message.media)
    large = [output for output in outputs if has_media or estimate_tokens(output.text) > room] or outputs
    texts, references = dict[str, str](), list[Reference]()
    for output in large:
        texts[output.id], named = replace(output)
        references += named
    text = "\n".join([texts.get(output.id, output.text) for output in outputs])
    return ReplacedMessage(Replaced(place, text, "tombstone", tuple(texts.items())), tuple(references))


def prune_output(
    request: PlanRequest, index: ConversationIndex, place: int, words: Sequence[str] = ()
) -> ReplacedMessage:
    """Replace an output by a tombstone with these words of it; of several in one message, each by its own."""

    def write(output: _Output, named: Sequence[str]) -> tuple[str, tuple[Reference, ...]]:
        references, asked = list_part_references(request, place, output.start, output.stop), output.asked
        stone = Tombstone(
            references[0].id,
            asked.call.name if asked is not None else "unknown",
            output.outcome or ("refused" if output.is_refused else ""),
            output.lines,
            find_access(has_tool=request.has_tool, has_effects=output.has_effects),
            named,
            output.has_effects,
        )
        return _append_parts(render_tombstone(stone), references), references

    if index.messages[place].message.outputs:
        return _replace_outputs(
            index,
            place,
            MIN_PRUNED_TOKENS,
            lambda output: write(output, [word for word in words if word in output.text]),
        )
    text, references = write(_read_output(index, place), words)
    return ReplacedMessage(Replaced(place, text, "tombstone"), references)


def shorten_message(request: PlanRequest, index: ConversationIndex, place: int) -> ReplacedMessage:
    """Replace a message by its first `_SHORTENED_LENGTH` characters and a note that names its reference."""
    references = list_part_references(request, place, 0, index.found[place].characters)
    lines = index.messages[place].message.text[:_SHORTENED_LENGTH].split("\n")
    text = "\n".join(sanitize_text(line, _SHORTENED_LENGTH) for line in lines)
    note = f"[cut by the proxy palimpsest; the original is intact: ref:{references[0].id}]"
    return ReplacedMessage(Replaced(place, _append_parts(f"{text}…\n{note}", references), "shortened"), references)


def trim_giants(
    request: PlanRequest, index: ConversationIndex, share: float, count: Count
) -> dict[int, ReplacedMessage]:
    """Return what replaces messages of the assistant above a share of the usable tokens: their heads and tails."""
    most = share * request.budget.usable
    large = [
        place
        for place, seen in enumerate(index.messages)
        if seen.structure.role == "assistant" and seen.tokens > most and place not in index.bound
    ]
    # Texts of some languages have a token for each character.
    rates = {place: index.found[place].characters / index.messages[place].tokens for place in large}
    made = {place: trim_message(request, index, place, int(most * rates[place] / 3)) for place in large}
    return {place: each for place, each in made.items() if count_saved_tokens(index, {place: each}, count) > 0}


def count_values(index: ConversationIndex, place: int) -> int:
    """Return how many texts and values of a message are trimmed each for itself."""
    return max(1, len(index.messages[place].message.calls))


def trim_message(request: PlanRequest, index: ConversationIndex, place: int, most: int) -> ReplacedMessage:
    """Replace a long text, and long values in calls, by their heads and tails.

    Those of more than about `most` tokens (three characters each) are long.
    """
    message = index.messages[place].message
    references = list_part_references(request, place, 0, index.found[place].characters)
    parts = " ".join(f"ref:{each.id}" for each in references)
    cutter = _TextCutter(3 * most, f"[… cut by the proxy palimpsest; the original is intact: {parts} …]")
    text = cutter.cut(message.text)
    called = ((call, _trim_arguments(call.arguments, cutter)) for call in message.calls if call.id)
    arguments = tuple([(call.id, spelled) for call, spelled in called if spelled != call.arguments])
    return ReplacedMessage(Replaced(place, "" if text == message.text else text, "shortened", arguments), references)


class _TextCutter(Value):
    """A cutter of texts of more than `most` characters to half of that, with `note` where characters are missing."""

    most: int
    note: str

    def cut(self, text: str) -> str:
        if len(text) <= self.most + len(self.note):
            return text
        head, tail = self.most // 3, self.most // 6
        return f"{text[:head]}\n{self.note}\n{text[-tail:]}"

    def cut_within(self, value: object, depth: int = 0) -> object:
        """Cut each text in a JSON value."""
        if isinstance(value, str):
            return self.cut(value)
        if depth < _MAX_DEPTH and isinstance(value, dict):
            return {key: self.cut_within(each, depth + 1) for key, each in value.items()}
        if depth < _MAX_DEPTH and isinstance(value, list):
            return [self.cut_within(each, depth + 1) for each in value]
        return value


def _trim_arguments(arguments: str, cutter: _TextCutter) -> str:
    """Cut the long values of arguments; what is not JSON, such as a tool's free-form input, is cut as one text."""
    if len(arguments) <= cutter.most:
        return arguments
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return cutter.cut(arguments)
    cut = cutter.cut_within(value)
    return arguments if cut == value else msgspec.json.encode(cut).decode()


def outline_output(
    request: PlanRequest,
    index: ConversationIndex,
    place: int,
    room: float = 0,
    *,
    has_outline: bool = True,
    parse: OutlineParser | None = None,
    count: Count = estimate_tokens,
) -> ReplacedMessage:
    """Replace an output that is too large to be sent again, or at all, by a file block.

    What the block leaves of `room` tokens is filled with the first and the last lines of the output. Of several outputs
    in one message, the large ones are replaced, each by its own block.
    """

    def write(output: _Output, room: float, tokens: int) -> tuple[str, tuple[Reference, ...]]:
        references, asked = list_part_references(request, place, output.start, output.stop), output.asked
        path = _find_path(asked)
        seen = outline(output.text, path, parse if has_outline else None)
        block = FileReference(
            references[0].id,
            path or (f"output of {asked.call.name}" if asked is not None else "a message"),
            seen.kind,
            tokens,
            output.lines,
            output.digest,
            (
                *wrap(request.sentences.get(output.digest.hex(), ""), LONGEST_LINE),
                *(seen.structure if has_outline else ()),
            ),
            find_access(has_tool=request.has_tool, has_effects=output.has_effects),
        )
        text = _append_parts(render_file(block), references)
        if room > 0:
            is_too_long = count(text) + MESSAGE_FRAME > room
            has_preview = has_outline and seen.shows == "preview"
            bare = replace(block, outline=() if is_too_long or has_preview else block.outline)
            left = room - MESSAGE_FRAME - _EXCERPT_FRAME - count(_append_parts(render_file(bare), references))
            if left >= _LEAST_EXCERPT and seen.shows != "nothing":
                bare = replace(bare, excerpt=cut_to_ends(output.text, left, count))
            if is_too_long or bare.excerpt:
                text = _append_parts(render_file(bare), references)
        return text, references

    outputs = index.messages[place].message.outputs
    if not outputs:
        text, references = write(_read_output(index, place), room, request.messages[place].tokens)
        return ReplacedMessage(Replaced(place, text, "file"), references)
    cap = find_cap(map(estimate_tokens, outputs), room) if room > 0 else 0
    made = _replace_outputs(
        index, place, max(cap, MIN_PRUNED_TOKENS), lambda output: write(output, cap, count(output.text))
    )
    return replace(made, edit=replace(made.edit, kind="file"))


def _find_path(asked: _Asked | None) -> str:
    """Return the path that a call read; empty unless it names exactly one."""
    paths = [word for word in asked.summary.split() if "/" in word or "." in word.strip(".")] if asked else []
    return paths[0].strip("'\"") if len(paths) == 1 else ""


def list_part_references(request: PlanRequest, place: int, start: int, stop: int) -> tuple[Reference, ...]:
    """Return references of a message whose first pages hold its original from character `start` up to `stop`."""
    offsets = range(start, max(start + 1, stop - PAGE_OVERLAP), PAGE - PAGE_OVERLAP)[:_MAX_PARTS]
    return tuple(Reference(request.name(place, place + 1, offset), place, place + 1, offset) for offset in offsets)


def _append_parts(text: str, references: tuple[Reference, ...]) -> str:
    if len(references) < 2:
        return text
    parts = " ".join(f"ref:{each.id}" for each in references)
    return f"{text}\n[its parts in order: {parts}]"


def order_by_size(index: ConversationIndex, places: Iterable[int]) -> list[int]:
    """Return places of messages, the largest first."""
    return sorted(places, key=lambda place: (-index.messages[place].tokens, place))


def can_be_cut(index: ConversationIndex, place: int) -> bool:
    """Return whether a new message may be cut where it does not fit: an output, or a text of the user."""
    seen = index.messages[place]
    is_text = seen.structure.role == "user" and is_text_only(index, place) and not seen.message.media
    return seen.structure.role == "tool" or is_text


def is_text_only(index: ConversationIndex, place: int) -> bool:
    """Return whether a message has only text, which may be cut."""
    structure = index.messages[place].structure
    return structure.role in ("user", "assistant") and not (structure.calls or structure.results or structure.reasoning)


def find_sent_form(request: PlanRequest, place: int, *, is_tombstone: bool = False) -> ReplacedMessage | None:
    """Return what the active plan sends in place of a message: a file block or shortened text, or else a tombstone."""
    if request.frozen is None or place >= request.frozen.through:
        return None
    for edit in request.frozen.edits:
        if isinstance(edit, Replaced) and edit.place == place and edit.text:
            if (edit.kind == "tombstone") != is_tombstone:
                return None
            named = tuple([each for each in request.frozen.references if f"ref:{each.id}" in edit.text])
            return ReplacedMessage(edit, named)
    return None


def select_sent(
    index: ConversationIndex, replaced: Mapping[int, ReplacedMessage], tail: int, staying: frozenset[int]
) -> dict[int, ReplacedMessage]:
    """Return the replacements of messages that are sent: those of steps from `tail` on, and of `staying` ones."""
    steps = (step for i, step in enumerate(index.steps) if i >= tail or i in staying)
    sent = {place for step in steps for place in step.places}
    return {place: made for place, made in replaced.items() if place in sent}


def replace_messages(
    index: ConversationIndex, replaced: Mapping[int, ReplacedMessage], count: Count
) -> ConversationIndex:
    """Return an index in which messages have the tokens of what replaces them."""
    if not replaced:
        return index
    messages, steps, saved = list(index.messages), list(index.steps), dict(index.saved)
    for place, made in replaced.items():
        more = count_saved_tokens(index, {place: made}, count)
        messages[place] = replace(messages[place], tokens=messages[place].tokens - more)
        saved[place] = saved.get(place, 0) + more
    for i, step in enumerate(steps):
        if not replaced.keys().isdisjoint(step.places):
            steps[i] = replace(step, tokens=sum(messages[place].tokens for place in step.places))
    return replace(index, messages=messages, steps=steps, saved=saved)


_PROTECTED_SHARE, _MINIMUM_SHARE = 0.25, 0.05


def prune_superseded(
    request: PlanRequest, index: ConversationIndex, policy: PruningPolicy, steps: range, count: Count
) -> dict[int, ReplacedMessage]:
    """Return tombstones for superseded outputs of these steps, by place; none where they would save too little."""
    if not policy.enabled or not steps:
        return {}
    usable = request.budget.usable
    protected = min(policy.protect_tokens, _PROTECTED_SHARE * usable)
    replaced = {place: prune_output(request, index, place) for place in _list_superseded(index, steps, protected)}
    replaced = {place: made for place, made in replaced.items() if count_saved_tokens(index, {place: made}, count) > 0}
    return (
        replaced
        if count_saved_tokens(index, replaced, count) >= min(policy.minimum_tokens, _MINIMUM_SHARE * usable)
        else {}
    )


def count_saved_tokens(index: ConversationIndex, replaced: Mapping[int, ReplacedMessage], count: Count) -> int:
    """Return the tokens that markers save, in addition to what replaces messages in the index already."""
    return sum(_count_saved(index, made, count) - index.saved.get(place, 0) for place, made in replaced.items())


def _count_saved(index: ConversationIndex, made: ReplacedMessage, count: Count) -> int:
    edit = made.edit
    seen = index.messages[edit.place]
    tokens = seen.tokens + index.saved.get(edit.place, 0)
    if edit.arguments and seen.message.calls:
        known = {call.id: call.arguments for call in seen.message.calls}
        cut = sum(count(known[id]) - count(arguments) for id, arguments in edit.arguments)
        return cut + (count(seen.message.text) - count(edit.text) if edit.text else 0)
    if edit.kind != "shortened":
        words = dict(edit.arguments).get(BESIDE)
        kept = [text for text in seen.message.beside if len(text) <= MOST_BESIDE] if words is None else [words]
        beside = sum(map(count, kept))
        return tokens - count(edit.text) - MESSAGE_FRAME - beside
    # Where text is shortened, images and calls beside it stay.
    said = min(tokens, count(seen.message.text) + MESSAGE_FRAME)
    return said - count(edit.text) - MESSAGE_FRAME if edit.text else 0


def _list_superseded(index: ConversationIndex, steps: range, protected: float) -> list[int]:
    newest = _find_protected_start(index, protected)
    places = [
        place
        for i in steps
        if i not in index.fixed
        for place in index.steps[i].places
        if place < newest
        and index.messages[place].structure.role == "tool"
        and index.messages[place].tokens > MIN_PRUNED_TOKENS
    ]
    overtaken = find_superseded(index) if places else {}
    return [place for place in places if place in overtaken]


def _find_protected_start(index: ConversationIndex, tokens: float) -> int:
    """Return the place from which on the outputs have `tokens` together: the newest outputs are protected."""
    for place in reversed(range(len(index.messages))):
        if tokens <= 0:
            return place + 1
        if index.messages[place].structure.role == "tool":
            tokens -= index.messages[place].tokens
    return 0
