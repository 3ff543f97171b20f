"""Responses of several rounds in all formats, made from what a model does in each, as streams and as bodies."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.model.manifest import compute_digest
from proxy.wire import FORMATS
from proxy.wire.format import Format
from proxy.wire.rounds import RoundEnd, make_stitcher

TOOL = "context_recall"

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Thought:
    """Reasoning, signed by the provider."""

    text: str = "hm"
    id: str = ""


@dataclass(frozen=True)
class Text:
    """Words of the model."""

    text: str = "so"
    id: str = ""
    is_loose: bool = False  # as the client gets it, without what it is tied to


@dataclass(frozen=True)
class Call:
    """A call of a tool, by default of ours."""

    arguments: str = "{}"
    name: str = TOOL
    id: str = ""
    is_loose: bool = False

    @property
    def is_own(self) -> bool:
        return re.split(r"[./:]", self.name)[-1] == TOOL


Part = Thought | Text | Call


@dataclass(frozen=True)
class Turn:
    """What the model does in one round, the k-th, and what that took."""

    parts: tuple[Part, ...]
    k: int = 0
    input: int = 100
    output: int = 7
    is_cut: bool = False  # whether the output limit was reached

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(part for part in self.parts if isinstance(part, Call))

    @property
    def is_hidden(self) -> bool:
        return bool(self.calls) and all(call.is_own for call in self.calls) and not self.is_cut


def number(*turns: Iterable[Part]) -> tuple[Turn, ...]:
    """Turns of these parts, each part with an id of its own."""
    return tuple(
        Turn(tuple(replace(part, id=f"x{k}i{i}") for i, part in enumerate(parts)), k, 100 + k, 7 + k)
        for k, parts in enumerate(turns)
    )


class Speaker(ABC):
    """Writes turns in one format."""

    form: Format

    @abstractmethod
    def list_events(self, turn: Turn) -> list[bytes]:
        """The events of a streamed turn, each with its blank line."""

    @abstractmethod
    def spell_body(self, turn: Turn) -> bytes:
        """The body of a turn that is not streamed."""

    def stream(self, turn: Turn) -> bytes:
        """A streamed turn."""
        return b"".join(self.list_events(turn))

    @abstractmethod
    def shows(self, turn: Turn, place: int, *, binds: bool) -> bool:
        """Whether the client gets a part of a turn that is no call of ours."""

    def loosen(self, turn: Turn, place: int) -> Part:
        """A part as the client gets it."""
        return turn.parts[place]

    def join(self, turns: Sequence[Turn], *, binds: bool = True) -> Turn:
        """One turn without our tool that says what these say to the client."""
        parts = [
            self.loosen(turn, place)
            for turn in turns
            for place, part in enumerate(turn.parts)
            if not (isinstance(part, Call) and part.is_own) and self.shows(turn, place, binds=binds)
        ]
        return replace(turns[-1], parts=tuple(parts), k=0, output=sum(turn.output for turn in turns))

    @staticmethod
    def spell(value: Fields) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _cut(text: str) -> Iterator[str]:
    """Pieces of a text, of which there is at least one."""
    yield from (text[at : at + 4] for at in range(0, len(text), 4))
    if not text:
        yield ""


class ChatSpeaker(Speaker):
    """Chat Completions. Reasoning is plain text."""

    form = FORMATS["chat_completions"]

    def shows(self, turn: Turn, place: int, *, binds: bool) -> bool:
        return True

    def list_events(self, turn: Turn) -> list[bytes]:
        deltas: list[Fields] = [{"role": "assistant", "content": ""}]
        at = 0
        for part in turn.parts:
            if isinstance(part, Call):
                function = {"name": part.name, "arguments": ""}
                deltas.append({"tool_calls": [{"index": at, "id": part.id, "type": "function", "function": function}]})
                for piece in _cut(part.arguments):
                    deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
                at += 1
            else:
                name = "content" if isinstance(part, Text) else "reasoning_content"
                deltas += [{name: piece} for piece in _cut(part.text)]
        events = [self._event(turn, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        events.append(self._event(turn, [{"index": 0, "delta": {}, "finish_reason": self._finish(turn)}]))
        return [*events, self._event(turn, [], usage=self._usage(turn)), b"data: [DONE]\n\n"]

    def spell_body(self, turn: Turn) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for part in turn.parts:
            if isinstance(part, Call):
                function = {"name": part.name, "arguments": part.arguments}
                message.setdefault("tool_calls", []).append({"id": part.id, "type": "function", "function": function})
            else:
                name = "content" if isinstance(part, Text) else "reasoning_content"
                message[name] = (message.get(name) or "") + part.text
        choice = {"index": 0, "message": message, "finish_reason": self._finish(turn)}
        return self.spell({**self._head(turn, ""), "choices": [choice], "usage": self._usage(turn)})

    def _event(self, turn: Turn, choices: list[Fields], **more: Fields) -> bytes:
        return b"data: %b\n\n" % self.spell({**self._head(turn, ".chunk"), "choices": choices, **more})

    @staticmethod
    def _head(turn: Turn, kind: str) -> Fields:
        return {"id": f"c{turn.k}", "object": f"chat.completion{kind}", "created": 10 + turn.k, "model": f"m{turn.k}"}

    @staticmethod
    def _finish(turn: Turn) -> str:
        return "length" if turn.is_cut else "tool_calls" if turn.calls else "stop"

    @staticmethod
    def _usage(turn: Turn) -> Fields:
        return {
            "prompt_tokens": turn.input,
            "completion_tokens": turn.output,
            "total_tokens": turn.input + turn.output,
            "completion_tokens_details": {"reasoning_tokens": turn.output},
        }


class MessagesSpeaker(Speaker):
    """Anthropic Messages."""

    form = FORMATS["anthropic_messages"]

    def shows(self, turn: Turn, place: int, *, binds: bool) -> bool:
        return not (turn.k and binds and isinstance(turn.parts[place], Thought))

    def list_events(self, turn: Turn) -> list[bytes]:
        message = {**self._head(turn), "content": [], "stop_reason": None, "usage": self._usage(turn, 1)}
        events = [self._event("message_start", message=message), self._event("ping")]
        for index, part in enumerate(turn.parts):
            begun, deltas = self._begin(part)
            events.append(self._event("content_block_start", index=index, content_block=begun))
            events += [self._event("content_block_delta", index=index, delta=delta) for delta in deltas]
            events.append(self._event("content_block_stop", index=index))
        delta = {"stop_reason": self._stop(turn), "stop_sequence": None}
        events.append(self._event("message_delta", delta=delta, usage={"output_tokens": turn.output}))
        return [*events, self._event("message_stop")]

    def spell_body(self, turn: Turn) -> bytes:
        content = []
        for part in turn.parts:
            begun, _ = self._begin(part)
            if isinstance(part, Call):
                content.append({**begun, "input": json.loads(part.arguments)})
            else:
                name = "text" if isinstance(part, Text) else "thinking"
                signed = {"signature": f"s-{part.id}"} if isinstance(part, Thought) else {}
                content.append({**begun, name: part.text, **signed})
        message = {**self._head(turn), "content": content, "stop_reason": self._stop(turn)}
        return self.spell({**message, "usage": self._usage(turn, turn.output)})

    @staticmethod
    def _begin(part: Part) -> tuple[Fields, list[Fields]]:
        if isinstance(part, Call):
            pieces: list[Fields] = [
                {"type": "input_json_delta", "partial_json": piece} for piece in _cut(part.arguments)
            ]
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}, pieces
        if isinstance(part, Text):
            pieces = [{"type": "text_delta", "text": piece} for piece in _cut(part.text)]
            return {"type": "text", "text": ""}, pieces
        thinking: list[Fields] = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(part.text)]
        begun = {"type": "thinking", "thinking": "", "signature": ""}
        return begun, [*thinking, {"type": "signature_delta", "signature": f"s-{part.id}"}]

    def _event(self, kind: str, **fields: Any) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), self.spell({"type": kind, **fields}))

    @staticmethod
    def _head(turn: Turn) -> Fields:
        return {"id": f"msg_{turn.k}", "type": "message", "role": "assistant", "model": f"m{turn.k}"}

    @staticmethod
    def _stop(turn: Turn) -> str:
        return "max_tokens" if turn.is_cut else "tool_use" if turn.calls else "end_turn"

    @staticmethod
    def _usage(turn: Turn, output: int) -> Fields:
        return {"input_tokens": turn.input, "cache_read_input_tokens": turn.input * 2, "output_tokens": output}


class ResponsesSpeaker(Speaker):
    """Responses, whose events repeat the request's tools."""

    form = FORMATS["responses"]
    tools: tuple[str, ...] = ("read", TOOL)

    def shows(self, turn: Turn, place: int, *, binds: bool) -> bool:
        if not isinstance(turn.parts[place], Thought):
            return True
        following = next(iter(turn.parts[place + 1 :]), None)
        if following is not None:
            return not (isinstance(following, Call) and following.is_own)
        return any(not call.is_own for call in turn.calls) or not turn.calls

    def loosen(self, turn: Turn, place: int) -> Part:
        part = turn.parts[place]
        thoughts = [i for i in range(place) if isinstance(turn.parts[i], Thought)]
        is_loose = bool(thoughts) and not self.shows(turn, thoughts[-1], binds=True)
        return part if isinstance(part, Thought) or not is_loose else replace(part, is_loose=True)

    def list_events(self, turn: Turn) -> list[bytes]:
        sent: list[tuple[str, Fields]] = []
        begun = self._response(turn, (), "in_progress")
        sent += [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
        for index, part in enumerate(turn.parts):
            sent += [(kind, {"output_index": index, **fields}) for kind, fields in self._list_item_events(part)]
        kind = "incomplete" if turn.is_cut else "completed"
        ended = self._response(turn, turn.parts, kind)
        sent.append((f"response.{kind}", {"response": ended}))
        return [
            b"event: %b\ndata: %b\n\n" % (kind.encode(), self.spell({"type": kind, "sequence_number": i, **fields}))
            for i, (kind, fields) in enumerate(sent)
        ]

    def spell_body(self, turn: Turn) -> bytes:
        return self.spell(self._response(turn, turn.parts, "incomplete" if turn.is_cut else "completed"))

    def _list_item_events(self, part: Part) -> Iterator[tuple[str, Fields]]:
        item = self._item(part)
        bare = {"item_id": item["id"]}
        if isinstance(part, Call):
            yield "response.output_item.added", {"item": {**item, "arguments": "", "status": "in_progress"}}
            for piece in _cut(part.arguments):
                yield "response.function_call_arguments.delta", {**bare, "delta": piece}
            yield "response.function_call_arguments.done", {**bare, "arguments": part.arguments}
        elif isinstance(part, Text):
            place = {**bare, "content_index": 0}
            yield "response.output_item.added", {"item": {**item, "content": [], "status": "in_progress"}}
            yield "response.content_part.added", {**place, "part": self._text_part("")}
            for piece in _cut(part.text):
                yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
            yield "response.output_text.done", {**place, "text": part.text, "logprobs": []}
            yield "response.content_part.done", {**place, "part": self._text_part(part.text)}
        else:
            place = {**bare, "summary_index": 0}
            yield "response.output_item.added", {"item": {**item, "summary": [], "encrypted_content": "e"}}
            yield "response.reasoning_summary_part.added", {**place, "part": {"type": "summary_text", "text": ""}}
            for piece in _cut(part.text):
                yield "response.reasoning_summary_text.delta", {**place, "delta": piece}
            yield "response.reasoning_summary_text.done", {**place, "text": part.text}
        yield "response.output_item.done", {"item": item}

    def _item(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Text | Call) and part.is_loose:
            return loosen(self._item(replace(part, is_loose=False)))
        if isinstance(part, Call):
            called = {"call_id": part.id, "name": part.name, "arguments": part.arguments, "status": "completed"}
            return {"id": f"fc_{part.id}", "type": "function_call", **called}
        if isinstance(part, Text):
            content = [self._text_part(part.text)]
            return {
                "id": f"msg_{part.id}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        summary = [{"type": "summary_text", "text": part.text}]
        return {"id": f"rs_{part.id}", "type": "reasoning", "summary": summary, "encrypted_content": f"e-{part.id}"}

    @staticmethod
    def _text_part(text: str) -> Fields:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _response(self, turn: Turn, parts: Iterable[Part], status: str) -> Fields:
        output = [self._item(part) for part in parts]
        return {
            "id": f"resp_{turn.k}",
            "object": "response",
            "created_at": 10 + turn.k,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if turn.is_cut else None,
            "model": f"m{turn.k}",
            "max_output_tokens": 50 - turn.k,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "tools": [{"type": "function", "name": name, "parameters": {}, "strict": False} for name in self.tools],
            "output": output,
            "usage": None if status == "in_progress" else self._usage(turn),
        }

    @staticmethod
    def _usage(turn: Turn) -> Fields:
        return {
            "input_tokens": turn.input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": turn.output,
            "output_tokens_details": {"reasoning_tokens": turn.output},
            "total_tokens": turn.input + turn.output,
        }


def loosen(item: Fields) -> dict[str, Any]:
    """An item with another id, since the reasoning that it is tied to is withheld."""
    kind, digest = item["id"].partition("_")[0], compute_digest(json.dumps(item["id"]).encode()).hex()
    return {**item, "id": f"{kind}_{digest[:32]}"}


class PlainResponsesSpeaker(ResponsesSpeaker):
    """The same for a request that has no tool of ours."""

    tools = ("read",)


SPEAKERS: tuple[Speaker, ...] = (ChatSpeaker(), MessagesSpeaker(), ResponsesSpeaker())


def slice_body(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """The body in pieces of these sizes, in turn."""
    at = 0
    while at < len(body):
        for size in sizes or (len(body),):
            yield body[at : at + size]
            at += size


def play(
    form: Format,
    bodies: Sequence[bytes],
    sizes: Sequence[int] = (),
    *,
    is_stream: bool = True,
    binds: bool = True,
    is_stored: bool = False,
) -> tuple[bytes, list[RoundEnd]]:
    """What the client gets for these rounds, and what each has come to."""
    stitcher = make_stitcher(form, TOOL, is_stream=is_stream, binds_reasoning=binds, is_stored=is_stored)
    written, ends = [], []
    for body in bodies:
        written += [stitcher.feed(piece) for piece in slice_body(body, sizes) if piece]
        ends.append(stitcher.end_round())
    return b"".join([*written, stitcher.finish()]), ends
