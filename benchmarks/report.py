"""The report: a run as Markdown and as JSON.

The rule: every table has its targets side by side, and what spoils a figure (errors, a target still busy afterwards, a
rate bound by the harness) is listed under the tables instead of being left out.
"""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.figures import Reading, fit_cpu_per_message, read_figures
from benchmarks.measure import (
    Bench,
    Cell,
    Metric,
    chunks_per_second,
    cpu_per_chunk,
    cpu_per_request,
    first_byte_p50,
    first_byte_p99,
    first_p50,
    gap_p99,
    harness_share,
    last_p50,
    p50,
    p99,
    requests_per_second,
)
from benchmarks.scenarios import (
    PACE_MS,
    REPEATS,
    Extras,
    list_agent_cells,
    list_body_cells,
    list_equal_cells,
    list_kept_cells,
    list_session_cells,
    list_stream_cells,
)

_HARNESS_SHARE = 0.9
_FILES_SHOWN = 5


class Meta(msgspec.Struct, kw_only=True):
    """Under which circumstances a run was made."""

    date: str
    cpu: str
    cores: int
    python: str
    rounds: int
    is_quick: bool
    seconds: float
    load_before: float
    load_after: float
    options: tuple[str, ...]


def describe_run(bench: Bench, begun: float, load_before: float) -> Meta:
    """The circumstances, at the end of the run."""
    return Meta(
        date=_tell_time(),
        cpu=_name_processor(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        rounds=bench.rounds,
        is_quick=bench.is_quick,
        seconds=round(time.monotonic() - begun, 1),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        options=bench.setting.serve_options,
    )


def describe_machine(load_before: float) -> str:
    """When and on what a short benchmark was run, at its end, in one sentence."""
    return (
        f"{_tell_time()}; {_name_processor()}, {os.cpu_count() or 1} cores; Python {platform.python_version()}; load "
        f"average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after."
    )


def _tell_time() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _name_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def render_json(meta: Meta, bench: Bench, extras: Extras) -> bytes:
    """Everything that was measured, sample by sample."""
    report = {
        "meta": meta,
        "figures": read_figures(bench, extras),
        "extras": extras,
        "samples": bench.samples,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=1)


def render_markdown(meta: Meta, bench: Bench, extras: Extras) -> str:
    """The report for people."""
    blocks = [
        _render_opening(meta),
        _render_figures(bench, read_figures(bench, extras)),
        _render_bodies(bench),
        _render_streams(bench),
        _render_sessions(bench),
        _render_kept(bench),
        _render_agents(bench),
        _render_equal(bench),
        _render_as_used(extras),
        _render_store(extras),
        _render_processes(bench, extras),
        _render_notes(bench),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_number(value: float | None) -> str:
    """Three significant digits or so, readable; a dash for what was not measured."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    return f"{value:.{digits}f}"


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _render_opening(meta: Meta) -> str:
    options = f" Extra options of `serve`: `{' '.join(meta.options)}`." if meta.options else ""
    return (
        f"# Benchmark, {meta.date}\n\n"
        f"{meta.cpu}, {meta.cores} cores; Python {meta.python}; {meta.rounds} rounds"
        f"{' (quick)' if meta.is_quick else ''}, {meta.seconds:.0f} s; load average {meta.load_before:.1f} before, "
        f"{meta.load_after:.1f} after. What is measured runs on one core, with all its threads; the load generator and "
        "the mock upstream of the proxies share another; *direct* is a mock in the proxy's place. Medians over the "
        "rounds; *added* is the difference to direct in the same round. "
        f"`palimpsest` is `durability: normal`, `palimpsest-full` is `full`.{options}"
    )


def _render_figures(bench: Bench, readings: list[Reading]) -> str:
    names = _list_proxies(bench)
    rows = []
    for reading in readings:
        row = [reading.name, render_number(reading.must), render_number(reading.want)]
        for name in names:
            verdict = reading.verdicts.get(name)
            row.append(render_number(reading.values.get(name)) + (f" ({verdict})" if verdict else ""))
        rows.append(row)
    return "## Figures and their targets\n\n" + render_table(["figure", "must", "want", *names], rows) if rows else ""


def _pair(bench: Bench, key: str, name: str, metrics: tuple[Metric, Metric], *, added: bool = True) -> str:
    """Two metrics in ms, as `a / b`."""
    read = bench.added if added else bench.median
    values = [read(key, name, metric) for metric in metrics]
    return " / ".join(render_number(None if value is None else value * 1e3) for value in values)


def _micro(bench: Bench, key: str, name: str, metric: Metric) -> str:
    value = bench.median(key, name, metric)
    return render_number(None if value is None else value * 1e6)


def _measured(bench: Bench, cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.key in bench.samples]


def _list_proxies(bench: Bench) -> list[str]:
    return [target.name for target in bench.targets if target.name != "direct"]


def _render_bodies(bench: Bench) -> str:
    cells = _measured(bench, list_body_cells(bench.is_quick))
    head = ["body", "calls", "at once", "direct p50 / p99, ms", "direct req/s"]
    for name in _list_proxies(bench):
        head += [f"{name}: added p50 / p99, ms", "req/s", "CPU, µs"]
    rows = []
    for cell in cells:
        row = [*cell.labels, _pair(bench, cell.key, "direct", (p50, p99), added=False)]
        row.append(render_number(bench.median(cell.key, "direct", requests_per_second)))
        for name in _list_proxies(bench):
            row.append(_pair(bench, cell.key, name, (p50, p99)))
            row.append(render_number(bench.median(cell.key, name, requests_per_second)))
            row.append(_micro(bench, cell.key, name, cpu_per_request))
        rows.append(row)
    text = (
        "## Bodies\n\nCPU is the measured process's, per request, background work included. *repeat*: the same bytes "
        "again; *new*: another session and content every call; *grow*: a session that repeats its history and appends "
        "a turn; *first*: the first call of a history the target has never seen.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _render_streams(bench: Bench) -> str:
    cells = _measured(bench, list_stream_cells(bench.is_quick))
    head = ["chunks", "at once", "direct TTFT p50 / p99, ms", "direct gap p99, ms"]
    for name in _list_proxies(bench):
        head += [f"{name}: added TTFT p50 / p99, ms", "gap p99, ms", "chunks/s", "CPU per chunk, µs"]
    rows = []
    for cell in cells:
        pair = (first_byte_p50, first_byte_p99)
        row = [*cell.labels, _pair(bench, cell.key, "direct", pair, added=False), _gap(bench, cell, "direct")]
        for name in _list_proxies(bench):
            row.append(_pair(bench, cell.key, name, pair))
            row.append(_gap(bench, cell, name))
            row.append(render_number(bench.median(cell.key, name, chunks_per_second)))
            row.append(_micro(bench, cell.key, name, cpu_per_chunk))
        rows.append(row)
    text = (
        f"## Streams\n\nOne event every {PACE_MS} ms, or all at once. TTFT is the first byte of the body. CPU per "
        "chunk holds the whole call, its request and its record included.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _gap(bench: Bench, cell: Cell, name: str) -> str:
    value = bench.median(cell.key, name, gap_p99) if cell.job.delay_ms else None
    return render_number(None if value is None else value * 1e3)


def _list_latencies(bench: Bench, cells: list[Cell], labels: list[str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table with each cell's latency and CPU at each target."""
    head, rows = [*labels, "direct p50 / p99, ms"], []
    for name in _list_proxies(bench):
        head += [f"{name}: added p50 / p99, ms", "CPU per call, µs"]
    for cell in cells:
        row = [*cell.labels, _pair(bench, cell.key, "direct", (p50, p99), added=False)]
        for name in _list_proxies(bench):
            row += [_pair(bench, cell.key, name, (p50, p99)), _micro(bench, cell.key, name, cpu_per_request)]
        rows.append(row)
    return head, rows


def _render_sessions(bench: Bench) -> str:
    cells = _measured(bench, list_session_cells(bench.is_quick))
    head, rows = _list_latencies(bench, cells, ["calls", "messages repeated"])
    for mode in ("grow", "respell"):
        row = [mode, "CPU per repeated message, µs", ""]
        for name in _list_proxies(bench):
            slope = fit_cpu_per_message(bench, mode, name)
            row += ["", render_number(None if slope is None else slope * 1e6)]
        rows.append(row)
    text = (
        "## Growing sessions\n\nOne session at a time; every call repeats the history and appends two messages (about "
        "2.3 KB). *grow*: byte for byte; *respell*: every other call with spaces after commas and colons.\n\n"
    )
    return text + render_table(head, rows) if cells else ""


def _render_kept(bench: Bench) -> str:
    cells = _measured(bench, list_kept_cells(bench.is_quick))
    head = ["session from", "pause", "direct p50 / p99, ms"]
    for name in _list_proxies(bench):
        head += [f"{name}: added p50 / p99, ms", "p50 of observe's", "CPU per call, µs"]
    rows = []
    for cell in cells:
        row = [*cell.labels, _pair(bench, cell.key, "direct", (p50, p99), added=False)]
        observed = bench.added(cell.key, "palimpsest-observe", p50)
        for name in _list_proxies(bench):
            added = bench.added(cell.key, name, p50)
            ratio = added / observed if added is not None and observed else None
            row += [_pair(bench, cell.key, name, (p50, p99)), render_number(ratio)]
            row.append(_micro(bench, cell.key, name, cpu_per_request))
        rows.append(row)
    text = (
        "## Kept epochs\n\nOne session at a time that grows by two messages (about 2.3 KB) a call. Under a ceiling of "
        "16,000 tokens (`palimpsest-16k`) every call is rewritten, some open an epoch; `palimpsest-observe` rewrites "
        "none. *Pause*: how long the caller is silent between an answer and its next call.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _render_agents(bench: Bench) -> str:
    cells = _measured(bench, list_agent_cells(bench.is_quick))
    head, rows = _list_latencies(bench, cells, ["agents", "pause"])
    text = (
        "## Agents\n\nSessions with tool calls, from 100 KB on, without a session id; *pause*: how long an agent is "
        "silent between an answer and its next call. `palimpsest-32k` is above its soft mark with each call, "
        "`palimpsest-200k` (a ceiling of 200,000 tokens) below it; `palimpsest` gets there near the end.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _render_equal(bench: Bench) -> str:
    cells = _measured(bench, list_equal_cells())
    head = ["body", "session", "direct p50 / p99, ms"]
    for name in _list_proxies(bench):
        head += [f"{name}: added p50 / p99, ms", "first 100 / last 100, p50, ms", "CPU per call, µs"]
    rows = []
    for cell in cells:
        row = [*cell.labels, _pair(bench, cell.key, "direct", (p50, p99), added=False)]
        for name in _list_proxies(bench):
            row += [_pair(bench, cell.key, name, (p50, p99))]
            row += [_pair(bench, cell.key, name, (first_p50, last_p50), added=False)]
            row += [_micro(bench, cell.key, name, cpu_per_request)]
        rows.append(row)
    text = (
        f"## Equal histories\n\nOne history with tool calls, {REPEATS:,} times, another answer each time (retries, "
        "best-of-n, evaluations); *first 100 / last 100*: of these calls, nothing subtracted.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _render_as_used(extras: Extras) -> str:
    rows = []
    for name, starts in extras.cold.items():
        for cold in starts:
            core = "a busy core" if cold.is_busy else "an idle core"
            gaps = f"{_list_ms(cold.gaps)} (control {_list_ms(cold.controls)})"
            rows.append([name, f"cold start on {core}: longest gap of `/-/live`, ms", gaps])
            rows.append(
                [
                    name,
                    "start; first call of 1 MB; the next session's, ms",
                    "; ".join(_list_ms(each) for each in (cold.starts, cold.calls, cold.next_calls)),
                ]
            )
    return "## As used\n\n" + render_table(["target", "what", "each round"], rows) if rows else ""


def _list_ms(seconds: Sequence[float]) -> str:
    return ", ".join(render_number(each * 1e3) for each in seconds)


def _render_store(extras: Extras) -> str:
    head = [
        "target",
        "sessions",
        "turns",
        "new per turn",
        "growth per turn, serving",
        "at rest",
        "per new byte",
        "files",
    ]
    rows = []
    for name, stores in extras.stores.items():
        for store in stores:
            per_turn = [store.new_bytes / store.turns, store.serving / store.turns, store.at_rest / store.turns]
            largest = sorted(store.files.items(), key=lambda entry: -abs(entry[1]))[:_FILES_SHOWN]
            files = ", ".join(f"{file} {size / store.turns:,.0f}" for file, size in largest if size)
            ratio = render_number(store.at_rest / max(1, store.new_bytes))
            rows.append([name, store.history, str(store.turns), *map(render_number, per_turn), ratio, files])
    text = (
        "## Store\n\nBytes. *New*: what the request appended and the answer's body. *Serving*: with the write-ahead "
        "log as it lies; *at rest*: after a clean end.\n\n"
    )
    return text + render_table(head, rows) if rows else ""


def _render_processes(bench: Bench, extras: Extras) -> str:
    rows = []
    for name in _list_proxies(bench):
        starts = extras.starts.get(name, [])
        idle = extras.idle.get(name)
        used = extras.memory.get(name, (0, 0))
        rows.append(
            [
                name,
                ", ".join(f"{start.ready:.2f}" for start in starts) or "-",
                ", ".join(f"{start.ended:.2f}" for start in starts) or "-",
                ", ".join(f"{start.memory / 2**20:.0f}" for start in starts) or "-",
                " / ".join(f"{size / 2**20:.0f}" for size in used),
                f"{idle.median * 1e3:.1f} / {idle.worst * 1e3:.1f} ms; {idle.errors} errors" if idle else "-",
                f"{idle.memory / 2**20:.0f}" if idle else "-",
            ]
        )
    head = [
        "target",
        "start, s",
        "end after SIGTERM, s",
        "memory when ready, MB",
        "RSS end / peak, MB",
        "/-/live with 300 streams, median / worst",
        "RSS then, MB",
    ]
    return "## Processes\n\n" + render_table(head, rows) if rows else ""


def _render_notes(bench: Bench) -> str:
    notes: list[str] = []
    for key, by_target in bench.samples.items():
        for name, samples in by_target.items():
            errors = sum(sample.result.errors for sample in samples)
            restless = sum(not sample.is_quiet for sample in samples)
            if errors:
                notes.append(f"{key}, {name}: {errors} calls failed")
            if restless:
                notes.append(f"{key}, {name}: still busy in the background in {restless} of {len(samples)} rounds")
    notes += _list_bound_rates(bench)
    return "## Notes\n\n" + "\n".join(f"* {note}" for note in notes) if notes else ""


def _list_bound_rates(bench: Bench) -> list[str]:
    """Rates measured while the harness had no time left: they are its own, and the target could do more."""
    notes: list[str] = []
    for cell in _measured(bench, list_body_cells(bench.is_quick) + list_stream_cells(bench.is_quick)):
        for name in _list_proxies(bench):
            share = bench.median(cell.key, name, harness_share)
            if share is not None and share > _HARNESS_SHARE and cell.job.connections > 1:
                notes.append(
                    f"{cell.key}, {name}: the harness was busy for {min(share, 1.0):.0%} of it, the rate is its own"
                )
    return notes
