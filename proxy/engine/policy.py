"""Settings of the engine as plain values: tenants, providers, the policy of exchanges, secrets in files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from proxy.context.budget import ModelPolicy
from proxy.context.loops.detection import MOST_COUNTED
from proxy.model.card import CacheKind
from proxy.model.epoch import Strategy
from proxy.model.exchange import Mode
from proxy.model.settings import UNTOLD, Fraction, HeaderName, Rule, Size, Small, check_secret

LoopAction = Literal["notify", "annotate"]
Durability = Literal["full", "normal"]
RECORD_CAP_BYTES = 8 * 1024 * 1024


def expand(value: Path) -> Path:
    """Return a path with `~` replaced. Raises ValueError if it can be no path."""
    try:
        path = value.expanduser()
        is_path = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_path = False
    except RuntimeError:  # pathlib does not know the user of `~name`
        raise ValueError("begins with the name of a user who is not known; write it out") from None
    if not is_path:
        raise ValueError("must be a path; no path can have such a character")
    return path


def _read_secret_file(value: object) -> object:
    if value == "":
        return value
    if not isinstance(value, str | Path):
        raise ValueError("must be the path of a file that holds the secret")
    try:
        content = expand(Path(value)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"names a file that cannot be read: {reason}") from None
    if not content:
        raise ValueError("names an empty file; write the secret into it")
    return content


SecretFile = Annotated[str, Rule(read=_read_secret_file, check=check_secret), UNTOLD]
"""A setting that names a file, whose content is kept."""


def refuse_both(policy: object, *names: str) -> None:
    """Raise ValueError if a secret is set, and a file with it, too."""
    for name in names:
        if getattr(policy, name) and getattr(policy, f"{name}_file"):
            raise ValueError(f"{name} and {name}_file are both set; keep one of them")


def matches(model: str, patterns: Sequence[str]) -> bool:
    """Return whether a model's name matches one of these shell patterns."""
    return any(fnmatchcase(model, pattern) for pattern in patterns)


def choose_upstream(patterns: Sequence[Sequence[str]], model: str) -> int:
    """Return the place of the upstream that calls of a model go to, by the patterns of each.

    It is the first that matches, else the first without patterns, else the first of all.
    """
    if model:
        for i, each in enumerate(patterns):
            if matches(model, each):
                return i
    return next((i for i, each in enumerate(patterns) if not each), 0)


@dataclass(frozen=True, slots=True)
class Principal:
    """A named tenant: callers with one of `keys`, or, if `header` is set, callers with one value in that header."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    header: str = ""


@dataclass(frozen=True, slots=True)
class Provider:
    """The facts about an upstream that context management needs."""

    host: str = ""
    cache: CacheKind | None = None  # how its cache works; None means as known for `host`
    summary_role: Literal["user", "assistant"] = "user"  # the role of the messages that replace older ones
    strict_alternation: bool = False  # no two adjacent messages have the same role; `summary_role` is then the user
    has_own_key: bool = False  # requests are sent with a key of the settings, whoever calls
    edits_context: bool = True  # it clears itself what a request asks to clear of its context
    has_compaction: bool = False  # it compacts conversations itself, may be asked to, and takes what it has made

    @property
    def takes_markers(self) -> bool:
        """True if the settings say that the upstream takes cache markers, so that ours are added."""
        return self.cache == "breakpoints"


UNKNOWN_PROVIDER = Provider()


@dataclass(frozen=True, slots=True)
class CredentialPlace:
    """The host of an upstream, and the key that calls to it have; without one they have that of the client."""

    upstream: str
    host: str
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """Defaults of every exchange."""

    mode: Mode = "manage"
    commit_wait_ms: int = 250  # bounds both waits for durability
    record_cap_bytes: int = RECORD_CAP_BYTES  # the most that is recorded of one body; has no other effect
    on_failure: Literal["forward", "refuse"] = "forward"  # what happens to calls while the log takes no writes
    session_headers: tuple[str, ...] = ()  # request headers, besides the known ones, that name a conversation
    infer: bool = True  # whether conversations without a name are recognised by their content
    # Bounds the memory for conversations: three quarters for bodies and what was measured of them, an eighth for nodes.
    # On top come an eighth for the bodies that are sent in their place, an eighth for message features, a sixteenth for
    # epochs, a sixth for token counts, half for the worker's queue, and a quarter for histories that we hold.
    cache_bytes: int = 64 * 1024 * 1024
    principals: Mapping[str, Principal] = field(default_factory=dict)  # tenants by name
    own_keys: tuple[bytes, ...] = field(default=(), repr=False)  # keys for upstreams, which are never recorded
    places: tuple[CredentialPlace, ...] = ()  # where credentials go, to tell of those that go to the wrong provider
    strategy: Strategy = "epochs"
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)  # by shell patterns; the first that matches counts
    # Bounds each of three waits of a call: for its session in the log, for a running summary and the plan together, and
    # until its epoch is in the log.
    hard_wait_seconds: float = 2.0

    def find_strategy(self, model: str) -> Strategy:
        """Return the strategy of requests to a model that ask for none."""
        stated = ((pattern, each.strategy) for pattern, each in self.models.items())
        return next((each for pattern, each in stated if each and fnmatchcase(model, pattern)), self.strategy)


@dataclass(frozen=True, slots=True)
class SessionsSettings:
    """How requests are assigned to conversations."""

    headers: tuple[HeaderName, ...] = ()
    """Request headers, besides the known ones, whose value identifies the conversation."""
    infer: bool = True
    """Recognise conversations without an id by their content. Off: each such request is its own."""
    cache_bytes: Size = 64 * 1024 * 1024
    """Memory for the most recent conversations, three quarters of it for request bodies and what was counted of them;
    bytes. What waits for the worker process may take half as much beside it."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The log: durability, behaviour on failure, and size."""

    durability: Durability = "normal"
    """normal: survives a killed process; full: survives a power failure, too, and waits for the disk."""
    on_failure: Literal["forward", "refuse"] = "forward"
    """While the log cannot be written: forward requests and keep records in memory, or refuse with 503."""
    commit_wait_ms: Annotated[int, Rule(ge=0)] = 250
    """Longest time that a response waits for its record to be durable; milliseconds."""
    spool_bytes: Size = 64 * 1024 * 1024
    """Memory for records that cannot be written yet; bytes."""
    record_cap_bytes: Size = RECORD_CAP_BYTES
    """Most bytes of one body that are recorded; of longer ones the beginning and a digest."""
    max_bytes: Size = 0
    """Most bytes of the log: at the limit no more is recorded, and calls go on. Nothing is erased for it, unless
    when_full says so. 0: no limit."""
    when_full: Literal["stop", "erase"] = "stop"
    """As the log nears max_bytes: stop recording there, or, from nine tenths on, erase the content of the longest
    idle sessions, never of one that was called within the hour."""
    retention_days: Annotated[int, Rule(ge=0, le=36_500)] = 0
    """Days after its newest call when the content of a session is erased. 0: never."""

    def __post_init__(self) -> None:
        """Raise ValueError if records could never be kept in memory."""
        if self.spool_bytes < 2 * self.record_cap_bytes:
            raise ValueError("spool_bytes must be at least twice record_cap_bytes, or large records never fit")

    @property
    def erased_above(self) -> int:
        """The bytes of the log near which the longest idle sessions are erased; 0: none is."""
        return self.max_bytes if self.when_full == "erase" else 0

    @property
    def is_erasing(self) -> bool:
        """Whether anything is ever erased without being asked."""
        return bool(self.retention_days or self.erased_above)


@dataclass(frozen=True, slots=True)
class DoomLoopSettings:
    """Agents that go round in circles."""

    threshold: Annotated[int, Rule(ge=0, le=MOST_COUNTED)] = 3
    """How often in a row the same call of a tool, with the same arguments, is told as a loop: in the log, the events
    and the response header x-palimpsest-doom-loop; the calls go on. 0: no loop is looked for."""
    action: LoopAction = "notify"
    """notify: as said above. annotate: where the outputs are the same, too, the model is told by a line behind the
    newest one, which stays until the next epoch; the client does not see it (docs/troubleshooting.md)."""


@dataclass(frozen=True, slots=True)
class ShadowPolicy:
    """Checking what shortening does to answers: some requests are sent again as the client made them."""

    fraction: Fraction = 0.0
    """Fraction of the calls sent shortened that are checked (docs/savings.md): behind each, the client's own request
    is sent, too, at the client's cost, and both answers are compared. 0: none."""
    spend_per_day: Annotated[float, Rule(gt=0, allow_inf_nan=False)] = 1.0
    """Most to spend on it in a day (UTC); currency units, as in pricing. Models of unknown price are not checked.
    compaction.spend_per_day holds, too."""
    bound_reasoning: bool = False
    """Whether requests with signed reasoning are checked where a model may bind it to its prompt: the provider may
    refuse such a request, or leave the reasoning out."""


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """LLMMap and AgenticMap: a model call, or an agent, for each item of a list (docs/operators.md)."""

    llm_map_concurrency: Annotated[int, Rule(ge=1, le=1000)] = 16
    """Number of calls that LLMMap makes at once."""
    agentic_map_concurrency: Annotated[int, Rule(ge=1, le=1000)] = 4
    """Number of agents that AgenticMap runs at once."""
    max_retries: Small = 3
    """How often LLMMap asks again for an item whose answer does not fit, or whose call failed."""
