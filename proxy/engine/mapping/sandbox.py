"""What operators have done in a process apart: prompts are rendered there, and answers checked.

A template, a schema, an item and an answer come from others, and a few characters of them may take all time and all
memory there is. Nothing here evaluates them: it says what is to be done, and by whom (`worker/sandbox`).
"""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

import msgspec

Kind = Literal["check", "render", "read"]
Part = str | Sequence[str | int]
"""A text, or the keys and indexes that lead from the item to what stands there."""

_MOST_HERE = 65_536  # characters, and
_MOST_BITS = 10_000  # bits of a number, that are written in this process
_SCALARS = frozenset({str, int, float, bool, type(None)})
_MOST_ERRORS = 5
_LONGEST_ERROR = 300
_UTF8: tuple[str, str] = ("utf-8", "surrogatepass")  # a prompt is sent as JSON, which can have lone surrogates


class Limits(msgspec.Struct, frozen=True):
    """What a batch of tasks may take: processor time, memory of the process, and bytes of what it comes to."""

    cpu_seconds: float = 5.0
    memory_bytes: int = 512 * 1024 * 1024
    result_bytes: int = 8 * 1024 * 1024


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One thing to do.

    `check`: whether the template `rule` and the schema `content`, if there is one, can be; it comes to the template's
    parts. `render`: the template `rule` for the packed item `content`. `read`: the value that the answer `content`
    says, if it fits the schema `rule`; without a rule any value does. Schemas are JSON.
    """

    kind: Kind
    rule: bytes
    content: bytes

    @property
    def weight(self) -> int:
        """Its bytes, about."""
        return len(self.rule) + len(self.content)


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of one run that are done together."""

    tasks: tuple[Task, ...]

    @property
    def weight(self) -> int:
        """Its bytes, about."""
        return sum(task.weight for task in self.tasks)


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What a task comes to: a prompt, or the JSON of a value. `problem` is what is wrong with a rule or an answer."""

    content: bytes = b""
    problem: str = ""


class TaskFailed(Exception):
    """A task that came to nothing, or took more than it may. Its text says what to do."""


class Unfit(Exception):
    """An answer that does not fit the schema. Its text is what to tell the model."""


class Sandbox(Protocol):
    """Does tasks in a process apart, within limits. No run keeps the others from having theirs done."""

    async def do(self, run: str, task: Task) -> TaskOutcome:
        """Return what a task of a run comes to. Raises TaskFailed, and WorkerLost if there is no process to do it."""
        ...


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A template. `render_here` renders it in this process, for items that are objects of the program's own.

    `parts` are what it is made of if it does nothing but to name values of the item, else empty.
    """

    text: str
    render_here: Callable[[object], str] | None = None
    parts: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """The sandbox as one run uses it. Its methods raise TaskFailed and WorkerLost."""

    sandbox: Sandbox
    run: str

    async def check(self, template: str, schema: str) -> PromptTemplate:
        """Return a template. Raise TaskFailed if it, or the schema, cannot be."""
        outcome = await self.sandbox.do(self.run, Task("check", template.encode(*_UTF8), schema.encode(*_UTF8)))
        if outcome.problem:
            raise TaskFailed(outcome.problem)
        return PromptTemplate(template, parts=json.loads(outcome.content))

    async def render(self, template: PromptTemplate, item: object) -> str:
        """Return the prompt for an item. What is an object of the program's own is rendered in the program's process.

        May raise anything then.
        """
        if template.parts and (prompt := substitute(template.parts, item)) is not None:
            return prompt
        try:
            packed = pack_item(item)
        except pickle.PicklingError:
            if template.render_here is None:
                raise
            return template.render_here(item)
        outcome = await self.sandbox.do(self.run, Task("render", template.text.encode(*_UTF8), packed))
        return outcome.content.decode(*_UTF8)

    async def read(self, schema: str, answer: str) -> object:
        """Return the value that an answer says, if it fits a schema, or is any if there is none. Raises Unfit."""
        outcome = await self.sandbox.do(self.run, Task("read", schema.encode(*_UTF8), answer.encode(*_UTF8)))
        if outcome.problem:
            raise Unfit(outcome.problem)
        return msgspec.json.decode(outcome.content)


def substitute(parts: Iterable[Part], item: object) -> str | None:
    """Return the text of parts, with scalars of plain data as Jinja writes them; None if Jinja is to write it."""
    texts, room = list[str](), _MOST_HERE
    for part in parts:
        text = part if isinstance(part, str) else _write_value(part, item)
        if text is None or (room := room - len(text)) < 0:
            return None
        texts.append(text)
    return "".join(texts)


def _write_value(way: Sequence[str | int], value: Any) -> str | None:
    for step in way:
        if not (step in value if type(value) is dict else type(value) is list and type(step) is int):
            return None
        try:
            value = value[step]
        except IndexError:
            return None
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return None
    return str(value) if type(value) in _SCALARS else None


def pack_item(item: object) -> bytes:
    """Return an item of plain data, such as JSON has. Raises PicklingError for anything that has a class of its own."""
    packed = io.BytesIO()
    _PlainPickler(packed, pickle.HIGHEST_PROTOCOL).dump(item)
    return packed.getvalue()


def unpack_item(packed: bytes) -> object:
    """Return the item of `pack_item`."""
    return _PlainUnpickler(io.BytesIO(packed)).load()


class _PlainPickler(pickle.Pickler):
    """Takes the types that a pickle has a code for, exactly: none of them runs anything when it is read."""

    def reducer_override(self, obj: object) -> NoReturn:
        raise pickle.PicklingError(f"{type(obj).__name__} is no plain data")


class _PlainUnpickler(pickle.Unpickler):
    """Reads these types only."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain data")


def name_place(path: Iterable[object]) -> str:
    """Return the name of a place in a JSON value, `$.a[0]`."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return f"${''.join(steps)}"


def join_errors(errors: Iterable[str]) -> str:
    """Return what is told of errors: the first ones, each in a line, and how many more there are."""
    told = [each[:_LONGEST_ERROR] for each in errors]
    more = [f"and {len(told) - _MOST_ERRORS} more"] if len(told) > _MOST_ERRORS else []
    return "\n".join([*told[:_MOST_ERRORS], *more])
