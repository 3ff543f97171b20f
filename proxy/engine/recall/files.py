"""The files of a conversation: which calls read and wrote each, as far as the arguments of calls tell."""

import msgspec

from proxy.context.memory.traces import fit_text
from proxy.engine.recall.history import AnsweredCall, History
from proxy.engine.recall.versions import find_versions, list_changes_after, list_known_files, pick_version


class FileDocument(msgspec.Struct, frozen=True):
    """A file that calls of tools name. Steps are counted from 1, as in the ledger and in the tools of MCP.

    `reads` and `writes` count calls that showed and that changed it; `first_step` and `last_step` are those of such
    calls, null where none is known to have done either. `shown_step` is that of the newest call that showed or wrote
    it, `is_part` whether perhaps not all of it, `characters` how much; `changed_since` counts changes after that.
    """

    path: str
    reads: int
    writes: int
    first_step: int | None
    last_step: int | None
    shown_step: int | None
    is_part: bool
    characters: int | None
    changed_since: int


def list_files(history: History, start: int, stop: int) -> tuple[list[FileDocument], int]:
    """Return the files from one place of the list up to another, the newest first, and how many there are. Blocks."""
    paths = list_known_files(history)
    return [_describe(history, path) for path in paths[start:stop]], len(paths)


def _describe(history: History, path: str) -> FileDocument:
    found = find_versions(history, path)
    reads = [version.act for version in found.shown if not version.is_written]
    steps = sorted(_find_step(history, act) for act in (*reads, *found.changes))
    newest = pick_version(found)
    return FileDocument(
        path=fit_text(path),
        reads=len(reads),
        writes=len(found.changes),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        shown_step=None if newest is None else _find_step(history, newest.act),
        is_part=newest is not None and newest.is_part,
        characters=None if newest is None else len(newest.text),
        changed_since=0 if newest is None else len(list_changes_after(found, newest)),
    )


def _find_step(history: History, act: AnsweredCall) -> int:
    return history.find_step(act.place)
