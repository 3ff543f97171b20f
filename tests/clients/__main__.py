"""`make journeys`: real clients, direct and through the proxy. Rule: a line for each client, and one for all."""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.clients.agents import AGENTS
from tests.clients.client import Client
from tests.clients.environment import Broken, Missing, prepare
from tests.clients.journey import run_journey
from tests.clients.long_journey import Figures, run_long_journey
from tests.clients.long_tasks import LONG_TASKS
from tests.clients.sdks import SDKS

_MOST_REASONS = 12
CLIENTS = {client.name: client for client in (*SDKS, *AGENTS)}


def main(arguments: list[str]) -> int:
    """Run journeys; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"the clients: {', '.join(CLIENTS)}")
    parser.add_argument("--all", action="store_true", help="the agents too, and not the SDKs only")
    parser.add_argument("--keep", action="store_true", help="keep the folders of each run, and print where they are")
    parser.add_argument("--run", action="store_true", help="start them by `palimpsest run`")
    parser.add_argument("--long", action="store_true", help="the tasks of 60 steps, with a small ceiling")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(CLIENTS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    names = options.names or [client.name for client in (SDKS if not options.all else CLIENTS.values())]
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for name in names:
        began = time.monotonic()
        end, reasons = _try(CLIENTS[name], options)
        counts[end] += 1
        print(
            f"{name:<18} {end:<7} {time.monotonic() - began:4.0f} s  {reasons[0] if reasons else ''}".rstrip(),
            flush=True,
        )
        for reason in reasons[1:_MOST_REASONS]:
            print(f"{'':<18} {reason}", flush=True)
        if len(reasons) > _MOST_REASONS:
            print(f"{'':<18} and {len(reasons) - _MOST_REASONS} more", flush=True)
    summary = ", ".join(f"{counts[end]} {end}" for end in ("ok", "FAILED", "skipped"))
    print(f"journeys: {summary} in {time.monotonic() - start:.0f} s")
    return 1 if counts["FAILED"] else 0


def _try(client: Client, options: argparse.Namespace) -> tuple[str, list[str]]:
    """How a journey ended, and why; of a long one also what it came to."""
    if options.long and client.name not in LONG_TASKS:
        return "skipped", ["its calls are not shortened"]
    try:
        programs = prepare(client)
    except (Missing, Broken) as why:
        return "skipped", [str(why)]
    root = Path(tempfile.mkdtemp(prefix=f"journey-{client.name}-"))
    figures: list[Figures] = []
    try:
        if options.long:
            faults, figures = run_long_journey(client, LONG_TASKS[client.name], programs, root)
        else:
            faults = run_journey(client, programs, root, by_run=options.run)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    told = [*map(str, figures), *faults] + ([f"kept in {root}"] if options.keep else [])
    return ("FAILED" if faults else "ok"), told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
