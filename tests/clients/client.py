"""What the journeys know of a client: how it is installed and started, what of it differs by chance, what we expect.

Rule: values only. In commands, files and settings `$origin` is where calls go (direct or through the proxy), `$home`
and `$work` are the client's own folders, `$programs` is that of our programs, `$packages` that of what was installed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Literal

from tests.clients.script import Script
from tests.clients.task import LongTask

Normal = Callable[[bytes], bytes]
_ROOMY = 200_000


@dataclass(frozen=True, slots=True)
class Tree:
    """A session as it has to come out. A branch is the relations of the calls on the way to its tip, side calls in
    parentheses: `(root)`, `root append*7`; `(root)?` may also come out as `root`: what a client asks for beside its
    first call is known for it only if that came first. Without branches it may have any. `parent`: which of the run's
    sessions started it, from 0.
    """

    branches: tuple[str, ...]
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What the log has to make of a journey: so many calls in formats we read, and these sessions, in the order of
    their first calls. `names`: how the names of the client's sessions begin; empty where it names none.

    `spare`: how many calls there may be more, or fewer, where a client was killed: what it repeats is up to how much it
    had kept by then. It may also go on in a session of its own, so that its trees are those of chance, too.
    """

    calls: int
    sessions: tuple[Tree, ...]
    names: str = ""
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Long:
    """How a client is sent through the long task. `files` and `settings` come beside those of its short journey, or in
    their place; `inputs` are what its commands read from standard input.

    `ceiling` is that of the proxy, `window` that of the provider. `alone`: whether direct, without us, the client
    compacts its history by itself, by the tokens that are reported to it. `resume` is the command by which it goes on
    after it was killed; with it the task has trials, and `killed` is what the log has to make of that. `tells_window`:
    whether the provider names its window where it refuses a request as too long.
    """

    commands: tuple[tuple[str, ...], ...]
    expected: Expected
    ceiling: int
    window: int = _ROOMY
    task: LongTask = field(default_factory=LongTask)
    settings: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    alone: bool = False
    resume: tuple[str, ...] = ()
    killed: Expected | None = None
    tells_window: bool = True
    # Only what hangs takes so long, on whatever machine.
    seconds: float = 1800


@dataclass(frozen=True, slots=True)
class Client:
    """One client and its journey. `normal` takes out of a request what differs by chance; it says why."""

    name: str
    kind: Literal["pip", "npm"]
    commands: tuple[tuple[str, ...], ...]
    expected: Expected
    settings: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    newest_python: tuple[int, int] = (3, 14)
    seconds: float = 300
    script: Script = field(default_factory=Script)
    normal: Normal = bytes
    # A client that calls at the same time has no order of its calls.
    is_ordered: bool = True
    inputs: tuple[str, ...] = ()


def fill(text: str, places: Mapping[str, str]) -> str:
    """A text with its places filled in."""
    return Template(text).substitute(places)
