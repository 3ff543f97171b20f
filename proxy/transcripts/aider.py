"""Reader of aider's transcripts: `.aider.llm.history`, with whole requests, and `.aider.chat.history.md`.

The first has all messages of each request, each line behind its role. The second has what the user and the model said,
and the tokens of each answer in rounded numbers; what of the repository the client added is not in it.
"""

import re
from collections.abc import Iterable, Iterator

from proxy.model.exchange import Usage
from proxy.transcripts.chat_messages import write_text
from proxy.transcripts.transcript import (
    CallHistory,
    Transcript,
    TranscriptFile,
    read_time,
)

_TO_MODEL = re.compile(r"^TO LLM (\S+)$", re.MULTILINE)
_ANSWER = re.compile(r"^LLM RESPONSE (\S+)$", re.MULTILINE)
_SEPARATOR = "-------"
_ROLES = ("SYSTEM", "USER", "ASSISTANT", "TOOL")
_STARTED = re.compile(r"^# aider chat started at (.+)$", re.MULTILINE)
_COUNT = r"([\d.,]+[kM]?)"
_TOKENS = re.compile(
    rf"^> Tokens: {_COUNT} sent,(?: {_COUNT} cache write,)?(?: {_COUNT} cache hit,)? {_COUNT} received"
)
_MODEL = re.compile(r"^> (?:Main model|Model): (\S+) with ")
_VERSION = re.compile(r"^> Aider v(\S+)")
_UNITS = {"k": 1_000, "M": 1_000_000}
_MISSING = ("its system prompt", "the files that the client adds")


def is_aider(text: str) -> bool:
    """Return whether this is the content of such a transcript."""
    return bool(_TO_MODEL.search(text) or _STARTED.search(text))


def read_aider(file: TranscriptFile) -> Iterator[Transcript]:
    """Yield the sessions of a file. Where it has whole requests, they are one session."""
    if _TO_MODEL.search(file.text):
        yield from _read_requests(file)
    else:
        yield from _read_chat(file)


def _read_requests(file: TranscriptFile) -> Iterator[Transcript]:
    conversation, broken = CallHistory(), 0
    pieces = _TO_MODEL.split(file.text)
    for at, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        asked, _, rest = _cut_answer(piece)
        messages = [*_list_messages(asked.rstrip("\n").split("\n"))]
        answer = "\n".join(_strip_role(line) for line in rest.strip("\n").split("\n"))
        if not messages or not rest:
            broken += 1
            continue
        conversation.continue_from(0, messages)
        conversation.call([write_text("assistant", answer)], "", None, read_time(at))
    if conversation.calls:
        yield Transcript(
            file.path,
            "aider",
            "chat_completions",
            conversation.freeze(),
            tuple(conversation.calls),
            missing=("its model",),
            source=file.path,
            broken=broken,
        )


def _cut_answer(piece: str) -> tuple[str, str, str]:
    found = _ANSWER.search(piece)
    return (piece[: found.start()], found[1], piece[found.end() :]) if found else (piece, "", "")


def _list_messages(lines: Iterable[str]) -> Iterator[bytes]:
    role, texts = "", list[str]()
    for line in [*lines, _SEPARATOR]:
        name = line.partition(" ")[0]
        if line == _SEPARATOR or (role and name in _ROLES and name != role):
            if role:
                yield write_text(role.lower(), "\n".join(texts))
            role, texts = "", []
        if name in _ROLES:
            role = name
            texts.append(_strip_role(line))
        elif role and line != _SEPARATOR:
            texts.append(line)


def _strip_role(line: str) -> str:
    name, _, text = line.partition(" ")
    return text if name in _ROLES else line


def _read_chat(file: TranscriptFile) -> Iterator[Transcript]:
    pieces = _STARTED.split(file.text)
    for started, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        builder = _ChatBuilder(read_time(started.strip().replace(" ", "T")))
        for line in piece.split("\n"):
            builder.add(line)
        if builder.conversation.calls:
            yield Transcript(
                f"{file.path}#{started.strip()}",
                "aider",
                "chat_completions",
                builder.conversation.freeze(),
                tuple(builder.conversation.calls),
                version=builder.version,
                missing=_MISSING,
                source=file.path,
            )


class _ChatBuilder:
    """Makes a conversation of the lines of one chat: `#### ` is the user, `> ` the client, all else the model."""

    def __init__(self, at_ms: int) -> None:
        self.conversation = CallHistory()
        self.version = ""
        self._model = ""
        self._at_ms = at_ms
        self._asked: list[str] = []
        self._answer: list[str] = []

    def add(self, line: str) -> None:
        """Add a line."""
        if line.startswith("#### "):
            self._asked.append(line[5:].rstrip())
        elif line.startswith("> ") or line == ">":
            self._add_note(line)
        elif self._asked:
            self._answer.append(line)

    def _add_note(self, line: str) -> None:
        if found := _MODEL.match(line):
            self._model = found[1]
        elif found := _VERSION.match(line):
            self.version = found[1].rstrip()
        elif (found := _TOKENS.match(line)) and self._asked:
            sent, written, read, received = (_read_count(each) for each in found.groups())
            usage = Usage(sent, received, read, written) if sent else None
            asked, answer = "\n".join(self._asked), "\n".join(self._answer).strip()
            self.conversation.add(write_text("user", asked))
            self.conversation.call([write_text("assistant", answer)], self._model, usage, self._at_ms)
            self._asked, self._answer = [], []


def _read_count(text: str | None) -> int | None:
    """Return a rounded number of tokens: `654`, `1.2k`, `3M`."""
    if not text:
        return None
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1] in _UNITS else (text, 1)
    try:
        return round(float(number.replace(",", "")) * unit)
    except ValueError:
        return None
