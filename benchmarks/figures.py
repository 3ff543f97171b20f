"""The figures the project has targets for, beside those targets.

The rule: a figure is one number per target, in the unit of its name; `must` and `want` are the specification's and are
never set where the code happens to stand.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from benchmarks.as_used import ColdStart
from benchmarks.measure import (
    Bench,
    Metric,
    cpu_per_chunk,
    cpu_per_request,
    first_byte_p50,
    first_p50,
    last_p50,
    p50,
    p99,
    requests_per_second,
)
from benchmarks.scenarios import HISTORIES, Extras

_MILLI = 1e3
_MICRO = 1e6
_MEBI = 1 / 2**20
# Agents are above the soft mark of one ceiling with each call, and below that of the other to their end. That of the
# default one they reach at some 185 KB, so that their figures would be of both.
_ABOVE, _BELOW = "palimpsest-32k", "palimpsest-200k"

Read = Callable[[Bench, Extras, str], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is read, and what it must and should be; None: no target."""

    name: str
    read: Read
    must: float | None = None
    want: float | None = None
    more_is_better: bool = False


class Reading(msgspec.Struct, kw_only=True):
    """A figure as measured, by target."""

    name: str
    must: float | None
    want: float | None
    values: dict[str, float | None]
    verdicts: dict[str, str]


def read_figures(bench: Bench, extras: Extras) -> list[Reading]:
    """Every figure that was measured in this run."""
    readings: list[Reading] = []
    for figure in FIGURES:
        values = {
            target.name: figure.read(bench, extras, target.name) for target in bench.targets if target.name != "direct"
        }
        if any(value is not None for value in values.values()):
            verdicts = {name: judge(figure, value) for name, value in values.items() if name.startswith("palimpsest")}
            readings.append(
                Reading(name=figure.name, must=figure.must, want=figure.want, values=values, verdicts=verdicts)
            )
    return readings


def judge(figure: Figure, value: float | None) -> str:
    """`want`, `must` or `missed`; empty where there is no target or no value."""
    if value is None or figure.must is None:
        return ""
    sign = -1 if figure.more_is_better else 1
    if figure.want is not None and value * sign <= figure.want * sign:
        return "want"
    return "must" if value * sign <= figure.must * sign else "missed"


def fit_slope(points: list[tuple[float, float]]) -> float:
    """Slope of the least-squares line."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def fit_cpu_per_message(bench: Bench, mode: str, name: str) -> float | None:
    """CPU seconds per repeated message: the slope of CPU per call over the length of the history."""
    points: list[tuple[float, float]] = []
    for messages in HISTORIES:
        cpu = bench.median(f"sessions {mode} {messages}", name, cpu_per_request)
        if cpu is not None:
            points.append((messages, cpu))
    return fit_slope(points) if len(points) > 1 else None


def _added(key: str, metric: Metric) -> Read:
    def read(bench: Bench, extras: Extras, name: str) -> float | None:
        return _scale(bench.added(key, name, metric), _MILLI)

    return read


def _agents(label: str, metric: Metric, *, is_above: bool = False) -> Read:
    """The added time of agents below the soft mark of their ceiling, or above it; that of nginx is with the former."""
    read, targets = _added(f"agents {label}", metric), (_ABOVE,) if is_above else (_BELOW, "nginx")
    return lambda bench, extras, name: read(bench, extras, name) if name in targets else None


def _unnamed(label: str) -> Read:
    """What a history without a session id adds, by what the same with one adds."""

    def read(bench: Bench, extras: Extras, name: str) -> float | None:
        named, unnamed = (bench.added(f"equal {label} {each}", name, p50) for each in ("an id", "no id"))
        return unnamed / named if named and unnamed is not None else None

    return read


def _growth(label: str) -> Read:
    """What the last hundred calls of a history without a session id take, by what the first hundred take."""

    def read(bench: Bench, extras: Extras, name: str) -> float | None:
        first, last = (bench.median(f"equal {label} no id", name, metric) for metric in (first_p50, last_p50))
        return last / first if first and last is not None else None

    return read


def _cold(number: int, read: Callable[[ColdStart], float]) -> Read:
    return lambda bench, extras, name: read(extras.cold[name][number]) * _MILLI if name in extras.cold else None


def _rate(key: str) -> Read:
    return lambda bench, extras, name: bench.median(key, name, requests_per_second)


def _chunk(key: str) -> Read:
    return lambda bench, extras, name: _scale(bench.median(key, name, cpu_per_chunk), _MICRO)


def _message(mode: str) -> Read:
    return lambda bench, extras, name: _scale(fit_cpu_per_message(bench, mode, name), _MICRO)


def _read_start(bench: Bench, extras: Extras, name: str) -> float | None:
    starts = extras.starts.get(name)
    return statistics.median(start.ready for start in starts) if starts else None


def _read_memory_at_start(bench: Bench, extras: Extras, name: str) -> float | None:
    starts = extras.starts.get(name)
    return statistics.median(start.memory for start in starts) * _MEBI if starts else None


def _read_memory_counted(bench: Bench, extras: Extras, name: str) -> float | None:
    starts = extras.starts.get(name)
    return statistics.median(start.counted for start in starts) * _MEBI if starts else None


def _read_memory_at_end(bench: Bench, extras: Extras, name: str) -> float | None:
    used = extras.memory.get(name)
    return used[0] * _MEBI if used else None


def _read_memory_peak(bench: Bench, extras: Extras, name: str) -> float | None:
    used = extras.memory.get(name)
    return used[1] * _MEBI if used else None


def _read_live(bench: Bench, extras: Extras, name: str) -> float | None:
    idle = extras.idle.get(name)
    return _scale(idle.worst, _MILLI) if idle else None


def _read_store(bench: Bench, extras: Extras, name: str) -> float | None:
    stores = extras.stores.get(name)
    return stores[0].at_rest / max(1, stores[0].new_bytes) if stores else None


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


FIGURES = (
    Figure("added p50, 1 KB, same bytes again, ms", _added("bodies 1 KB repeat 1", p50), 0.5, 0.2),
    Figure("added p50, 1 KB, all content new, ms", _added("bodies 1 KB new 1", p50), 0.5, 0.2),
    Figure("added p50, 100 KB, same bytes again, ms", _added("bodies 100 KB repeat 1", p50), 1.3, 0.6),
    Figure("added p50, 100 KB, growing, ms", _added("bodies 100 KB grow 1", p50), 1.3, 0.6),
    Figure("added p50, 800 KB, same bytes again, ms", _added("bodies 800 KB repeat 1", p50), 5, 1.5),
    Figure("added p50, 800 KB, growing, ms", _added("bodies 800 KB grow 1", p50), 5, 1.5),
    Figure("requests/s, 1 KB at 64, same bytes again", _rate("bodies 1 KB repeat 64"), 2_500, 8_000, True),
    Figure("requests/s, 1 KB at 64, all content new", _rate("bodies 1 KB new 64"), 2_500, 8_000, True),
    Figure("requests/s, 100 KB at 16, same bytes again", _rate("bodies 100 KB repeat 16"), 800, 1_600, True),
    Figure("requests/s, 100 KB at 16, growing", _rate("bodies 100 KB grow 16"), 800, 1_600, True),
    Figure("SSE, added TTFT p50 at 1 (burst), ms", _added("sse burst 1", first_byte_p50), 1.0, 0.4),
    Figure("SSE, added TTFT p50 at 16 (15 ms), ms", _added("sse 15 ms 16", first_byte_p50), 1.0, 0.4),
    Figure("SSE, CPU per chunk at 16 (15 ms), µs", _chunk("sse 15 ms 16"), 50, 30),
    Figure("SSE, CPU per chunk at 64 (15 ms), µs", _chunk("sse 15 ms 64"), 50, 30),
    Figure("SSE, CPU per chunk at 16 (burst), µs", _chunk("sse burst 16"), 50, 30),
    # Below the soft mark: of a ceiling of 200,000 tokens.
    Figure("one agent, 20 ms between calls, ceiling 200K: added p50, ms", _agents("1 20 ms", p50), 1.3, 0.7),
    Figure("above the soft mark: added p50, ms", _agents("1 20 ms", p50, is_above=True), 1.5, 0.8),
    Figure("one agent, ceiling 200K: added p99, ms", _agents("1 20 ms", p99), 10, 5),
    Figure("above the soft mark: added p99, ms", _agents("1 20 ms", p99, is_above=True), 10, 5),
    Figure("8 agents, 20 ms between calls, ceiling 200K: added p50, ms", _agents("8 20 ms", p50), 2.5, 1.2),
    Figure("above the soft mark: added p50, ms", _agents("8 20 ms", p50, is_above=True), 2.5, 1.2),
    Figure("8 agents, 20 ms, ceiling 200K: added p99, ms", _agents("8 20 ms", p99), 25, 10),
    Figure("above the soft mark: added p99, ms", _agents("8 20 ms", p99, is_above=True), 25, 10),
    Figure("8 agents, 500 ms between calls, ceiling 200K: added p50, ms", _agents("8 500 ms", p50), 1.5, 0.8),
    Figure("above the soft mark: added p50, ms", _agents("8 500 ms", p50, is_above=True), 1.5, 0.8),
    Figure("8 agents, 500 ms, ceiling 200K: added p99, ms", _agents("8 500 ms", p99), 6, 3),
    Figure("above the soft mark: added p99, ms", _agents("8 500 ms", p99, is_above=True), 6, 3),
    Figure("100 KB 1,000 times, no session id: added p50 by that with an id", _unnamed("100 KB"), 1.5, 1.2),
    Figure("the same, last 100 calls by the first: p50", _growth("100 KB"), 1.1, 1.0),
    Figure("800 KB 1,000 times, no session id: added p50 by that with an id", _unnamed("800 KB"), 1.5, 1.2),
    Figure("the same, last 100 calls by the first: p50", _growth("800 KB"), 1.1, 1.0),
    Figure("/-/live beside a cold start, idle core: longest gap, ms", _cold(0, lambda cold: cold.gap), 50, 20),
    Figure("the same, a busy core", _cold(1, lambda cold: cold.gap), 100, 50),
    Figure(
        "first call of 269K tokens (target: of 200K), cold, ms",
        _cold(0, lambda cold: cold.first_call),
        500,
        300,
    ),
    Figure("the next session's first call, ms", _cold(0, lambda cold: cold.next_call), 250, 120),
    Figure("CPU per repeated message, bytes unchanged, µs", _message("grow"), 8, 1),
    Figure("CPU per repeated message, spelled anew, µs", _message("respell")),
    Figure("start until /-/live, s", _read_start, 1.2, 0.8),
    Figure("memory of all processes, ready, MB", _read_memory_at_start, 190, 150),
    Figure("the same, a call of 100 KB counted and cut, MB", _read_memory_counted),
    Figure("RSS at the end of the run, MB", _read_memory_at_end),
    Figure("RSS at its peak, MB", _read_memory_peak),
    Figure("/-/live, slowest with 300 streams open, ms", _read_live, 1_000),
    Figure("store growth per new byte, at rest", _read_store),
)
