"""What the runner asks of the load generator and what comes back: one JSON line each way.

The rule: times are seconds, counts are of the measured part only; the warm-up is never in a figure.
"""

from typing import Literal

import msgspec

Mode = Literal["repeat", "new", "grow", "respell"]
"""The same bytes again; unseen content each time; a session that grows; the same, spelled differently every call."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the benchmark against one target.

    The history before the first call is `size` bytes or `messages` messages, whichever is set.  A connection stops
    after `turns` calls (0: no limit) or `seconds` (0: no limit), whichever comes first.  `chunks` > 0: a stream.
    `pause_ms` is how long a connection is silent between an answer and its next call, as every agent is: what a target
    does behind an answer is in no figure then.
    `is_anonymous`: calls have no session id, as most clients' have none.
    `differs`: every call of a repeated request gets another answer.
    `hold`: open one stream per connection, report, and hang up when told to go on.
    """

    port: int
    mode: Mode = "repeat"
    connections: int = 1
    size: int = 0
    messages: int = 0
    chunks: int = 0
    delay_ms: int = 0
    pause_ms: int = 0
    warm_turns: int = 3
    turns: int = 0
    seconds: float = 0.0
    is_anonymous: bool = False
    differs: bool = False
    hold: bool = False


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of one set of durations, in seconds."""

    p50: float = 0.0
    p99: float = 0.0
    worst: float = 0.0
    count: int = 0


class Result(msgspec.Struct, kw_only=True):
    """What the load generator saw in the measured part of one job.

    `first` and `last`: of the first and the last hundred calls. `new_bytes`: what the requests held that the target had
    not seen; `received_bytes`: bodies, without heads.
    """

    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    chunks: int = 0
    latency: Spread = Spread()
    first: Spread = Spread()
    last: Spread = Spread()
    first_byte: Spread = Spread()
    gap: Spread = Spread()
    new_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


def measure_spread(durations: list[float]) -> Spread:
    """Percentiles by nearest rank; all zero for an empty list."""
    if not durations:
        return Spread()
    ordered = sorted(durations)
    last = len(ordered) - 1
    return Spread(ordered[last // 2], ordered[round(last * 0.99)], ordered[-1], len(ordered))
