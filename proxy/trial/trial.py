"""A trial from end to end: finds transcripts, replays them in a directory of its own, and returns the estimates."""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from proxy.config import Settings
from proxy.model.errors import NotFound
from proxy.transcripts.transcript import Transcript
from proxy.trial.estimate import SessionEstimate, Trial
from proxy.trial.files import find_transcripts, list_places
from proxy.trial.replay import group_by_upstream, make_settings, replay

_NO_SUMMARIES = (
    "No model is called, so no summary is written by one: what the ledger tells stands in its place. In operation "
    "summaries may cost up to {0:.0%} of a session (compaction.spend_fraction)."
)
_NO_RECALL = "The model of a transcript cannot read again what was removed; in operation it can, and pays for that."


def run_trial(
    settings: Settings, paths: Sequence[Path], limit: int, keep: Path | None, tell: Callable[[int, int], None]
) -> Trial:
    """Estimate the newest `limit` sessions of the transcripts at these paths; without paths, of all usual places.

    The logs of the replay stay in `keep`, if it is given. Raises NotFound if there is no transcript, and
    StoreUnavailable.
    """
    home, here = Path.home(), Path.cwd()
    found = find_transcripts(paths, home, here)
    if not found.transcripts:
        where = found.skipped or [*list_places(home, here)]
        raise NotFound("no transcript of a known client is at " + ", ".join(where) + "; name a file or a directory")
    chosen = found.transcripts[:limit]
    whole, done = sum(len(each.calls) for each in chosen), 0

    def note_call() -> None:
        nonlocal done
        done += 1
        tell(done, whole)

    with _open_folder(keep) as folder, _quiet():
        estimates = asyncio.run(_replay_all(settings, chosen, folder, note_call))
    estimates.sort(key=lambda each: each.began_ms, reverse=True)
    return Trial(
        tuple(estimates),
        found.files,
        found.skipped,
        sum(each.broken for each in chosen),
        sum(each.unknown for each in chosen),
        settings.strategy,
        tuple(_list_notes(settings, len(found.transcripts) - len(chosen))),
    )


async def _replay_all(
    settings: Settings, transcripts: Sequence[Transcript], folder: Path, note_call: Callable[[], None]
) -> list[SessionEstimate]:
    """Replay transcripts at the provider of each, in as many engines at a time as there are processors."""
    engines = asyncio.Semaphore(os.cpu_count() or 1)

    async def run(name: str, n: int, part: Sequence[Transcript]) -> list[SessionEstimate]:
        async with engines:
            place = folder / (f"{name or 'upstreams'}-{n}" if n else name or "upstreams")
            return await replay(make_settings(settings, name), place, part, note_call)

    parts = [
        (name, n, part)
        for name, group in group_by_upstream(transcripts, settings).items()
        for n, part in enumerate(_divide(group, os.cpu_count() or 1))
    ]
    found = await asyncio.gather(*(run(*each) for each in parts))
    return [estimate for part in found for estimate in part]


def _divide(transcripts: Sequence[Transcript], most: int) -> list[list[Transcript]]:
    """Return transcripts in at most so many parts, each with about as many calls."""
    parts: list[list[Transcript]] = [[] for _ in range(min(most, len(transcripts)))]
    for transcript in sorted(transcripts, key=lambda each: len(each.calls), reverse=True):
        min(parts, key=lambda part: sum(len(each.calls) for each in part)).append(transcript)
    return parts


def _list_notes(settings: Settings, left: int) -> Iterator[str]:
    if settings.compaction.auto:
        yield _NO_SUMMARIES.format(settings.compaction.spend_fraction)
    if settings.recall.inject:
        yield _NO_RECALL
    if left:
        yield f"{left} older sessions are left out; --limit takes in more."


@contextlib.contextmanager
def _open_folder(keep: Path | None) -> Iterator[Path]:
    """Yield the directory for the logs of a replay, which does not outlast it unless it is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="palimpsest-try-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the engine logs of replayed calls from the terminal: the estimates tell of errors."""
    log = logging.getLogger("palimpsest")
    handler, before = logging.NullHandler(), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(handler)
