"""What a model is asked for a report, as the bytes of a call (BEHAVIOUR B28).

Rule: blocks, and so runs in a thread. A warm call reads what the conversation's last one left in the provider's cache;
a compact one has a transcript, and can be asked of any model.
"""

from collections.abc import Callable

import msgspec

from proxy.context.compaction.prompts import (
    MOST,
    NODE,
    SHORT,
    SummaryOrder,
    describe_span,
    write_instruction,
    write_reports,
    write_request,
    write_transcript,
    write_wording,
)
from proxy.context.compaction.spans import LEAST, find_most
from proxy.engine.compaction.policy import CompactionPolicy, PromptHook
from proxy.engine.compaction.work import Work, count_hidden
from proxy.model.exchange import Usage
from proxy.model.summary import Level
from proxy.wire.asking import Room, write_compact, write_warm
from proxy.wire.body import split_body

# What a model of which nobody knows the window is asked at most.
_ASSUMED_WINDOW = 32_768
# By how much more than was asked for an answer may be, before nobody listens any longer.
_SLACK = 1.5
_CHARACTERS = 6
_FRAME_TOKENS = 600


class Question(msgspec.Struct, frozen=True, gc=False):
    """The body of a call, the tokens and characters that its answer may have, and what it will probably cost."""

    body: bytes
    limit: int
    most_characters: int
    expected: Usage
    is_warm: bool


class Questions:
    """Writes them. `count` gives the tokens of a text, `hook` a person's own instruction."""

    def __init__(self, policy: CompactionPolicy, count: Callable[[str], int], hook: PromptHook | None) -> None:
        self._policy = policy
        self._count = count
        self._hook = hook

    def write_warm(self, work: Work, level: Level, *, is_alternating: bool) -> Question | None:
        """A warm call; None where there is none for this, or it would not be asked what it is about."""
        case = work.latest.case
        split = split_body(work.latest.body, case.subject.items_key)
        if work.parents or split is None:
            return None
        asked = self._ask(work, level)
        instruction = write_instruction(asked, describe_span(work.survey, work.span, count_hidden(work)))
        room = Room(asked.most, self._policy.reasoning_tokens)
        body = write_warm(split, instruction, room, is_alternating=is_alternating)
        if body is None:
            return None
        sent = case.tell(work.latest.tokens)
        return _make(body, work, level, Usage(sent + _FRAME_TOKENS, asked.most, sent), is_warm=True)

    def write_compact(self, work: Work, level: Level, model: str, window: int | None) -> Question | None:
        """A call of its own; None where the model takes too little to be asked anything."""
        asked = self._ask(work, level)
        room = self.find_room(window, asked.most)
        if room < LEAST:
            return None
        if work.parents:
            texts = [parent.text for parent in work.parents]
            material = write_reports(texts, room, self._count, NODE if level > 1 else None)
        else:
            material = write_transcript(work.survey, work.span, room, self._count, SHORT if level > 1 else None)
        orders, text = write_request(asked, material)
        body = write_compact(model, orders, text, Room(asked.most, self._policy.reasoning_tokens))
        expected = Usage(self._count(orders) + self._count(text), asked.most)
        return _make(body, work, level, expected, is_warm=False)

    def find_room(self, window: int | None, most: int) -> int:
        """The tokens that a model with this window may be asked about."""
        known = _ASSUMED_WINDOW if window is None else window
        scaled = known * self._policy.input_fraction / 0.75
        return min(find_most(int(scaled), most), known - most - _FRAME_TOKENS)

    def _ask(self, work: Work, level: Level) -> SummaryOrder:
        custom = (work.wish.prompt if work.wish is not None else "") or self._policy.prompt
        if self._hook is not None:
            custom = self._hook(custom or write_wording(level), level)
        return SummaryOrder(work.kind, level, work.find_most(level, MOST[level]), custom)


def _make(body: bytes, work: Work, level: Level, expected: Usage, *, is_warm: bool) -> Question:
    limit = work.find_limit(level, MOST[level])
    return Question(body, limit, int(_SLACK * _CHARACTERS * limit), expected, is_warm)
