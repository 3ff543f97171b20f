"""Finds and reads the files that may be transcripts. Nothing is written, and nothing beside them is read."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy.model.errors import StoreUnavailable
from proxy.store.table_files import read_tables
from proxy.transcripts.opencode import TABLES
from proxy.transcripts.recognition import SUFFIXES, USUAL_PLACES, read_transcripts
from proxy.transcripts.transcript import Transcript, TranscriptFile, read_json, read_map
from proxy.wire.json_values import read_text

_MAGIC = b"SQLite format 3\0"
_REQUESTS, _CHAT = ".aider.llm.history", ".aider.chat.history.md"
_STORAGE = "storage"  # the directory in which older versions of opencode keep a file for each row


class FoundTranscripts(msgspec.Struct, frozen=True):
    """What was found: sessions, the number of files they are in, and the paths that a user named in vain."""

    transcripts: tuple[Transcript, ...]
    files: int
    skipped: tuple[str, ...]


def find_transcripts(paths: Sequence[Path], home: Path, here: Path) -> FoundTranscripts:
    """Read the transcripts below these paths, or in all usual places. The newest session is the first."""
    named = [*paths]
    places = named or [*_list_usual(home, here)]
    found: dict[str, Transcript] = {}
    files, skipped = 0, []
    for place in places:
        own = [each for file in _list_files(place) if (each := _read(file))]
        files += len(own)
        found |= {f"{each.client} {each.id} {each.source}": each for sessions in own for each in sessions}
        if not own and place in named:
            skipped.append(str(place))
    newest = sorted(found.values(), key=lambda each: each.began_ms, reverse=True)
    return FoundTranscripts(tuple(newest), files, tuple(skipped))


def _list_usual(home: Path, here: Path) -> Iterator[Path]:
    for client, patterns in USUAL_PLACES.items():
        folder = here if client == "aider" else home
        for pattern in patterns:
            yield from sorted(folder.glob(pattern))


def _list_files(place: Path) -> Iterator[Path]:
    """Yield the files at a place that may be transcripts. The storage of opencode is one."""
    if place.is_file() or _is_storage(place):
        yield place
    elif place.is_dir():
        stores = [path for path in place.rglob(_STORAGE) if _is_storage(path)]
        yield from stores
        for path in sorted(place.rglob("*")):
            is_transcript = path.name.endswith(SUFFIXES) and path.is_file() and not path.is_symlink()
            if is_transcript and not any(store in path.parents for store in stores):
                yield path


def _is_storage(path: Path) -> bool:
    return path.name == _STORAGE and (path / "session").is_dir() and (path / "message").is_dir()


def _read(path: Path) -> list[Transcript]:
    """Return the sessions of a file; none if it cannot be read, or is no transcript."""
    if path.name == _CHAT and path.with_name(_REQUESTS).is_file():
        return []  # the file beside it has the same calls, whole
    try:
        return read_transcripts(_load(path))
    except (OSError, StoreUnavailable):
        return []


def _load(path: Path) -> TranscriptFile:
    if path.is_dir():
        return TranscriptFile(str(path), tables=dict(_read_storage(path)))
    with path.open("rb") as file:
        is_database = file.read(len(_MAGIC)) == _MAGIC
    if is_database:
        return TranscriptFile(str(path), tables=read_tables(path, TABLES))
    return TranscriptFile(str(path), path.read_text("utf-8", errors="replace"))


def _read_storage(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the rows of each table from the files of an older opencode."""
    for name in TABLES:
        values = [read_map(read_json(path.read_bytes())) for path in sorted((folder / name).rglob("*.json"))]
        yield name, [_make_row(value) for value in values if value]


def _make_row(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": value.get("id"),
        "session_id": value.get("sessionID"),
        "message_id": value.get("messageID"),
        "parent_id": value.get("parentID"),
        "version": value.get("version"),
        "title": read_text(value.get("title")),
        "data": value,
    }


def list_places(home: Path, here: Path) -> Iterable[str]:
    """Return where transcripts are sought, for people."""
    for client, patterns in USUAL_PLACES.items():
        for pattern in patterns:
            yield str((here if client == "aider" else home) / pattern)
