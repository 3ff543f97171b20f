"""Sentences that a user wrote themselves, between what they pasted and what their client put in (BEHAVIOUR B13, B32).

Rule: a sentence is a stretch of the user's own characters. A list's item is said together with the line that leads to
it, for "Never:" is a part of what each item below it means.
"""

import re
from collections.abc import Iterator

import msgspec

from proxy.context.pasted import find_pasted
from proxy.context.survey import Survey

_LEAST_PASTED = 400
_LOOKED_AT = 200_000
_LONGEST_INTRO = 160

_MARKS = ("`", "~", "<")
_CLIENT = re.compile(
    r"<(system-reminder|environment_details|environment_context|ide_\w{1,40}|local-command-\w{1,20}"
    r"|command-(?:name|message|args|output)|bash-(?:input|stdout|stderr)|task-notification)\b[^>\n]{0,200}>"
)
_ITEM = re.compile(r"[ \t]*(?:[-*+\u2022\u2013]|\(?\d{1,3}[.)]|[a-z][.)])[ \t]+")
_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)*_`]{0,3}[ \t]+(?=[\"'\u201c\u2018(\[*_`¿¡]{0,3}[A-ZÀ-ÖØ-Þ])|(?<=[\u3002\uff01\uff1f])"
)


class Sentence(msgspec.Struct, frozen=True, gc=False):
    """A sentence in the user's characters, and the line that leads to it where it is an item of a list."""

    text: str
    intro: str = ""

    @property
    def said(self) -> str:
        """Both, as they are to be read."""
        return f"{self.intro} {self.text}" if self.intro else self.text


def list_user_places(survey: Survey) -> list[int]:
    """Places of what the user wrote; what a machine put out in the user's role is not among them."""
    return [
        place
        for i in survey.users
        for place in range(survey.steps[i].start, survey.steps[i].stop)
        if survey.messages[place].shape.role == "user"
    ]


def find_sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a user's message in order; none of fenced or pasted blocks, nor of a client's reminders."""
    intro = ""
    is_in_list = False
    for line in _leave_out_foreign(text[:_LOOKED_AT]).split("\n"):
        item = _ITEM.match(line)
        bare = (line[item.end() :] if item else line).strip()
        if not bare:
            continue
        if not item:
            intro = bare if bare.endswith((":", "\uff1a")) and len(bare) <= _LONGEST_INTRO else ""
        is_in_list = bool(item)
        if is_in_list or not intro:
            yield from (Sentence(part, intro) for part in _split(bare))


def _split(line: str) -> Iterator[str]:
    at = 0
    for end in _END.finditer(line):
        yield line[at : end.start()] + end[0].rstrip()
        at = end.end()
    if at < len(line):
        yield line[at:]


def _leave_out_foreign(text: str) -> str:
    """The text without what its user did not write, and a line end where that stood: no sentence reaches over it."""
    own = "\n".join(_list_outside_tags(text))
    kept: list[str] = []
    at = 0
    for start, stop in find_pasted(own, 1):
        block = own[start:stop]
        if stop - start >= _LEAST_PASTED or block.lstrip().startswith(_MARKS):
            kept.append(own[at:start])
            at = stop
    return "\n".join((*kept, own[at:]))


def _list_outside_tags(text: str) -> Iterator[str]:
    """What stands outside a client's tags; one that is not closed reaches to the end."""
    at = 0
    while opening := _CLIENT.search(text, at):
        yield text[at : opening.start()]
        end = f"</{opening[1]}>"
        found = text.find(end, opening.end())
        at = found + len(end) if found >= 0 else len(text)
    yield text[at:]
