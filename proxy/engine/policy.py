"""Settings of the engine as plain values: tenants, providers, and the policy of exchanges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from proxy.model.card import CacheKind
from proxy.model.epoch import Strategy
from proxy.model.exchange import Mode

LoopAction = Literal["notify", "annotate"]
RECORD_CAP_BYTES = 8 * 1024 * 1024


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
    # Bounds the memory for conversations: half of it for bodies, an eighth for nodes, an eighth for message features, a
    # quarter for all else that managing needs. On top come a sixth for token counts, half for the worker's queue, and a
    # quarter for histories that we hold.
    cache_bytes: int = 64 * 1024 * 1024
    principals: Mapping[str, Principal] = field(default_factory=dict)  # tenants by name
    own_keys: tuple[bytes, ...] = field(default=(), repr=False)  # keys for upstreams, which are never recorded
    places: tuple[CredentialPlace, ...] = ()  # where credentials go, to tell of those that go to the wrong provider
    strategy: Strategy = "epochs"
    loop_action: LoopAction = "notify"  # whether its model is told, too
    loop_threshold: int = 3  # how often in a row the same call of a tool is a loop; 0: none is looked for
    strategies: tuple[tuple[str, Strategy], ...] = ()  # by shell patterns of models; the first that matches counts
    # Bounds each of three waits of a call: for its session in the log, for a running summary and the plan together, and
    # until its epoch is in the log.
    hard_wait_seconds: float = 2.0

    def find_strategy(self, model: str) -> Strategy:
        """Return the strategy of requests to a model that ask for none."""
        return next((each for pattern, each in self.strategies if fnmatchcase(model, pattern)), self.strategy)


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """How many items of a list operators work on at once, and how often an item is asked for again."""

    llm_map_concurrency: int = 16
    agentic_map_concurrency: int = 4
    max_retries: int = 3


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """What the strategy `snapshot` shows: the settings of the same names."""

    raw_tail_turns: int = 4
    max_episodic_items: int = 3
    max_semantic_items: int = 20
    tail: Literal["messages", "text"] = "messages"  # in which form the raw tail is shown


@dataclass(frozen=True, slots=True)
class FilePolicy:
    """The most tokens of a file that is sent whole, whether outlines have structure, and who writes sentences.

    `cap` are the most bytes that the log keeps whole of one.
    """

    inline_tokens: int
    has_outlines: bool
    summary_model: str
    cap: int
