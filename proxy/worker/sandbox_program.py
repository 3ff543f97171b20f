"""The program of a process that renders prompts and checks answers for operators, within limits of time and memory.

The kernel holds the limits: a job that takes more processor time ends the process, and one that takes more memory than
the process may have fails. It imports only what that needs, so that it starts in a moment.
"""

import json
import resource
import signal
import sys
from functools import lru_cache

import msgspec

from proxy.engine.mapping.prompts import ItemTemplate, OutputSchema, find_json
from proxy.engine.mapping.sandbox import Batch, Limits, Task, TaskOutcome, Unfit, unpack_item
from proxy.worker.frames import end_with_parent, serve, write_no_core

_KNOWN = 16  # templates, and schemas, that are kept


class Tasks:
    """Does tasks, a batch at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def do(self, batch: Batch) -> list[TaskOutcome]:
        """Return what each task comes to. Raises any error that one of them raises."""
        signal.setitimer(signal.ITIMER_PROF, self._limits.cpu_seconds)
        try:
            outcomes = [_DOING[task.kind](task) for task in batch.tasks]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if sum(len(outcome.content) for outcome in outcomes) > self._limits.result_bytes:
            raise ValueError(f"the result has more than {self._limits.result_bytes >> 20} MB")
        return outcomes


def _check(task: Task) -> TaskOutcome:
    try:
        template = _find_template(task.rule)
        template.compile()
        if task.content:
            _find_schema(task.content)
    except ValueError as error:
        return TaskOutcome(problem=str(error))
    return TaskOutcome(json.dumps(template.parts).encode())


def _render(task: Task) -> TaskOutcome:
    return TaskOutcome(_find_template(task.rule).render(unpack_item(task.content)).encode("utf-8", "surrogatepass"))


def _read(task: Task) -> TaskOutcome:
    try:
        found, value = find_json(task.content.decode("utf-8", "surrogatepass"))
        if task.rule:
            _find_schema(task.rule).check(value)
    except Unfit as error:
        return TaskOutcome(problem=str(error))
    return TaskOutcome(found.encode())


_DOING = {"check": _check, "render": _render, "read": _read}


@lru_cache(_KNOWN)
def _find_template(text: bytes) -> ItemTemplate:
    return ItemTemplate(text.decode("utf-8", "surrogatepass"))


@lru_cache(_KNOWN)
def _find_schema(text: bytes) -> OutputSchema:
    return OutputSchema(json.loads(text))


def limit_memory(most: int) -> None:
    """Have this process get at most so many bytes of address space."""
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    most = most if allowed == resource.RLIM_INFINITY else min(allowed, most)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Serve standard input, with limited memory and no core dump."""
    limits = msgspec.json.decode(sys.argv[1], type=Limits)
    write_no_core()
    limit_memory(limits.memory_bytes)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whoever started us may ignore or block it, and that is inherited
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF,))
    end_with_parent()
    decoder = msgspec.msgpack.Decoder(Batch)
    serve(Tasks(limits).do, decoder.decode, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
