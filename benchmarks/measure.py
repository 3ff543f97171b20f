"""One cell of the benchmark: a job against a target, with what it cost the measured process.

The rule: within a round the targets take turns, so that whatever else the machine does meets all of them; `added` is
always the difference to direct in the same round, and only then is the median taken.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.jobs import Job, Result
from benchmarks.processes import Child, read_cpu_seconds, read_memory, wait_until_quiet
from benchmarks.targets import Setting, Target

_QUIET_LIMIT = 3.0


class Sample(msgspec.Struct, kw_only=True):
    """One job against one target: what the client saw, CPU seconds and resident bytes of the target, and the share of
    its core that the harness used meanwhile (near 1, a rate is the harness's).
    """

    result: Result
    cpu: float = 0.0
    harness: float = 0.0
    memory: int = 0
    is_quiet: bool = True


Metric = Callable[[Sample], float]


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of a table: which job; `labels` are its leading columns."""

    scenario: str
    labels: tuple[str, ...]
    job: Job

    @property
    def key(self) -> str:
        return " ".join((self.scenario, *self.labels))


@dataclass(slots=True)
class Bench:
    """A run: the targets that are up, the load generator, and every sample so far by cell and target."""

    setting: Setting
    load: Child
    targets: list[Target]
    rounds: int
    is_quick: bool
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)

    def has(self, key: str, name: str) -> bool:
        return bool(self.samples.get(key, {}).get(name))

    def values(self, key: str, name: str, metric: Metric) -> list[float]:
        """The metric of each round; empty if the cell was not measured against this target."""
        return [metric(sample) for sample in self.samples.get(key, {}).get(name, [])]

    def median(self, key: str, name: str, metric: Metric) -> float | None:
        """The median over the rounds."""
        values = self.values(key, name, metric)
        return statistics.median(values) if values else None

    def added(self, key: str, name: str, metric: Metric) -> float | None:
        """The median over the rounds of the difference to direct in the same round."""
        pairs = zip(self.values(key, name, metric), self.values(key, "direct", metric), strict=False)
        differences = [value - direct for value, direct in pairs]
        return statistics.median(differences) if differences else None


def measure_job(bench: Bench, target: Target, job: Job) -> Sample:
    """Run one job: warm up, wait, measure, wait, so that background work is charged to the job that caused it."""
    bench.load.write_line(msgspec.json.encode(msgspec.structs.replace(job, port=target.port)).decode())
    bench.load.read_line()
    if target.child is None:
        bench.load.write_line("")
        return Sample(result=msgspec.json.decode(bench.load.read_line(), type=Result))
    pid = target.child.pid
    is_quiet = wait_until_quiet(pid, _QUIET_LIMIT, 0.02)
    before, harness_before = read_cpu_seconds(pid), _read_harness_seconds(bench)
    bench.load.write_line("")
    result = msgspec.json.decode(bench.load.read_line(), type=Result)
    harness = (_read_harness_seconds(bench) - harness_before) / result.seconds
    is_quiet = wait_until_quiet(pid, _QUIET_LIMIT, 0.02) and is_quiet
    cpu = read_cpu_seconds(pid) - before
    return Sample(result=result, cpu=cpu, harness=harness, memory=read_memory(pid)[0], is_quiet=is_quiet)


def _read_harness_seconds(bench: Bench) -> float:
    return read_cpu_seconds(bench.load.pid) + read_cpu_seconds(bench.setting.mock.pid)


def measure_cells(bench: Bench, cells: Sequence[Cell]) -> None:
    """Measure every cell against every target, round by round; the first target changes with the round."""
    for number in range(bench.rounds):
        for cell in cells:
            first = number % len(bench.targets)
            for target in bench.targets[first:] + bench.targets[:first]:
                by_target = bench.samples.setdefault(cell.key, {})
                by_target.setdefault(target.name, []).append(measure_job(bench, target, cell.job))
        report_progress(f"{cells[0].scenario}: round {number + 1} of {bench.rounds}")


def report_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def p50(sample: Sample) -> float:
    return sample.result.latency.p50


def p99(sample: Sample) -> float:
    return sample.result.latency.p99


def first_p50(sample: Sample) -> float:
    return sample.result.first.p50


def last_p50(sample: Sample) -> float:
    return sample.result.last.p50


def first_byte_p50(sample: Sample) -> float:
    return sample.result.first_byte.p50


def first_byte_p99(sample: Sample) -> float:
    return sample.result.first_byte.p99


def gap_p99(sample: Sample) -> float:
    return sample.result.gap.p99


def requests_per_second(sample: Sample) -> float:
    return sample.result.requests / sample.result.seconds if sample.result.seconds else 0.0


def chunks_per_second(sample: Sample) -> float:
    return sample.result.chunks / sample.result.seconds if sample.result.seconds else 0.0


def cpu_per_request(sample: Sample) -> float:
    return sample.cpu / max(1, sample.result.requests)


def cpu_per_chunk(sample: Sample) -> float:
    return sample.cpu / max(1, sample.result.chunks)


def harness_share(sample: Sample) -> float:
    return sample.harness
