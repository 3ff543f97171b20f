"""Keeps index.db up to date with the log: reads what is new, a little at a time, and writes it with its position.

The position is committed together with what was read up to it, so that nothing is doubled or missed after a kill in any
place. An index that is damaged, of another version or of another log is made anew. Sessions with erased content are
taken out first (`erasing`), and indexed as they are now.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from proxy.context.user_rules import find_rules
from proxy.model.epoch import Written, decode_edits
from proxy.model.errors import StoreUnavailable
from proxy.model.lru import LruCache
from proxy.model.search import SAID, IndexHealth
from proxy.retrieval.dates import find_stated_time
from proxy.retrieval.postings import SESSION_SHIFT, IndexedText
from proxy.retrieval.vectors import PassageBatch, VectorBatch
from proxy.store.search import changes, erasing, schema, vectors
from proxy.store.search.changes import NewMessage
from proxy.store.search.entries import EPOCH, SUMMARY, Address, load_text, read_edit
from proxy.store.search.texts import MessageText, address_text, list_texts
from proxy.store.search.writer import EntryOrigin, IndexedSession, IndexWriter
from proxy.store.sqlite.connection import FILE_ERRORS, advise, connect_reader
from proxy.store.sqlite.schema import read_salt

_CALLS_AT_ONCE = 64
"""Calls after which a position is stored, so that little is looked at again after a kill."""
_WORTH_ALIAS = 300
"""Bytes from which a message that comes again is not indexed again. A shorter one costs little, and has neighbours."""
_LONGEST_CARD = 2_000
_KNOWN_CALLS, _KNOWN_SESSIONS = 4_096, 256
_RECALLED = 64
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_GROWTH = 1.15
"""Passages for each that was there when postings were last merged, from which on they are merged again."""
_REST_SECONDS = 2.0
"""For how long nothing was new before the index is tidied."""

_log = logging.getLogger("palimpsest.index")

_LAST_ENTRIES = """
    SELECT id, address, holder, exchange FROM entry WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?"""


class _CallNote(NamedTuple):
    """The tool of a call, and what led to it: thought and arguments."""

    tool: str
    card: str


class _CallNotes:
    """What led to the calls that were indexed last, for these and their outputs."""

    def __init__(self) -> None:
        self._calls: LruCache[tuple[int, str], _CallNote] = LruCache(_KNOWN_CALLS)
        self._thoughts: LruCache[int, str] = LruCache(_KNOWN_SESSIONS)

    def clear(self) -> None:
        """Forget all."""
        self._calls.clear()
        self._thoughts.clear()

    def knows(self, session: int) -> bool:
        """Return whether memory has the newest thought of a session."""
        return self._thoughts.get(session) is not None

    def note(self, session: int, text: MessageText) -> _CallNote:
        """Keep what leads to a call, and return it for a call and its output."""
        if text.kind == "arguments":
            thought = self._thoughts.get(session) or ""
            note = _CallNote(text.tool, f"{thought}\n{text.text}"[:_LONGEST_CARD])
            self._calls.put((session, text.call), note)
            return note
        if text.kind == "output":  # what comes next leads to another call
            self._thoughts.put(session, " ")
            return self._calls.get((session, text.call)) or _CallNote("", "")
        if text.role == "assistant":
            before = self._thoughts.get(session) or ""
            self._thoughts.put(session, f"{before}\n{text.text}".strip()[-_LONGEST_CARD:])
        else:
            self._thoughts.put(session, " ")
        return _CallNote("", "")

    def load(self, log: sqlite3.Connection, index: sqlite3.Connection, session: int) -> None:
        """Read again what the last calls of a session were."""
        self._thoughts.put(session, " ")
        bounds = (session << SESSION_SHIFT, session + 1 << SESSION_SHIFT, _RECALLED)
        for _, *where in reversed(index.execute(_LAST_ENTRIES, bounds).fetchall()):
            text = load_text(log, *where)
            if text is not None and text.kind in ("message", "broadcast", "reasoning", "arguments", "output"):
                self.note(session, text)


class Indexer:
    """Writes the index of one log. Not thread-safe; only one process may have an open one (`schema.IndexLock`)."""

    def __init__(self, log: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._log_path = log
        self._path = schema.find_index(log)
        self._now = now
        self._log: sqlite3.Connection | None = None
        self._index: sqlite3.Connection | None = None
        self._lock: schema.IndexLock | None = None
        self._writer: IndexWriter | None = None
        self._work: Iterator[None] | None = None
        self._began = 0.0
        self._changed = -math.inf  # when the index was last written, if it has not been tidied since
        self._merging: Iterator[None] | None = None
        self._removing: Iterator[None] | None = None
        self._fault = ""
        self._notes = _CallNotes()

    def run(self, seconds: float, is_wanted: Callable[[], bool] = lambda: False) -> bool:
        """Index for about `seconds`, or until the process `is_wanted` elsewhere. Return whether anything is left.

        What was begun is kept for the next run, and committed after `seconds` of work. Never raises: a problem is told
        by `health`, and tried again by the next run.
        """
        try:
            self._open()
            is_left = self._advance(seconds, is_wanted)
            self._fault = ""
            return is_left
        except (*FILE_ERRORS, OSError, StoreUnavailable) as error:
            self._give_up(error)
            return False

    def rebuild(self) -> None:
        """Make the index anew; the next runs fill it.

        Raises StoreUnavailable if another process writes it, OSError and sqlite3.Error.
        """
        self._lock = self._lock or schema.IndexLock(self._path)
        self._start_over()
        self._open()

    def list_passages(self, session: str, model: str) -> PassageBatch:
        """Return the next passages of a session, given by its id, that need a vector. Raises what `rebuild` does."""
        self._open()
        self._commit()
        assert self._log is not None
        assert self._index is not None
        batch = vectors.list_passages(self._log, self._index, session, model)
        return replace(batch, is_current=self._is_current())

    def keep_vectors(self, session: str, model: str, batch: VectorBatch) -> str:
        """Store vectors of these passages. Return why they cannot be kept, if so. Raises what `rebuild` does."""
        self._open()
        self._commit()
        assert self._log is not None
        assert self._index is not None
        return vectors.keep(self._log, self._index, session, model, batch)

    @property
    def health(self) -> IndexHealth:
        """How current the index is."""
        if self._log is None or self._index is None:
            return IndexHealth(fault=self._fault)
        try:
            return measure(self._log, self._index, self._path, fault=self._fault)
        except (*FILE_ERRORS, OSError) as error:
            return IndexHealth(fault=advise(error) if isinstance(error, sqlite3.Error) else str(error))

    def close(self) -> None:
        """Commit what is indexed, and let another process write."""
        with suppress(*FILE_ERRORS, OSError):
            self._commit()
        self._disconnect()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> None:
        if self._log is None:
            self._log = connect_reader(self._log_path)
        if self._index is None:
            self._lock = self._lock or schema.IndexLock(self._path)
            self._index, is_new = schema.open_writer(self._path, read_salt(self._log))
            if is_new:
                heads = changes.read_heads(self._log)
                schema.write_meta(self._index, {"erasure": heads["erasure"]})
        self._writer = self._writer or IndexWriter(self._index, read_salt(self._log))

    def _advance(self, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        assert self._index is not None
        if self._work is None:
            if not self._is_of_this_log() or not self._follow_erasures():
                self._start_over()
                self._open()
            if self._is_left(self._removing, seconds, is_wanted):
                return True
            self._removing = None
            if schema.read_meta(self._index).get(erasing.ERASING) and self._overwrite_erased(seconds, is_wanted):
                return True
            if self._is_current():
                return self._changed < self._now() - _REST_SECONDS and self._tidy(seconds, is_wanted)
            self._work = self._follow()
        if not self._index.in_transaction:
            self._index.execute("BEGIN IMMEDIATE")
            self._began = self._now()
        for _ in self._work:
            if self._now() - self._began >= seconds:
                self._commit()
                return True
            if is_wanted():
                return True
        self._work = None
        self._commit()
        return False

    def _follow_erasures(self) -> bool:
        """Begin to remove what was erased, if anything was. Return False if making all anew takes less."""
        assert self._log is not None
        assert self._index is not None
        since, until = (schema.read_meta(self._index).get("erasure", 0), changes.read_heads(self._log)["erasure"])
        if self._removing is not None or since == until:
            return True
        sessions = erasing.find_sessions(self._log, since, until)
        self._removing = self._remove(sessions, until)
        return erasing.are_few(self._index, sessions)

    def _remove(self, sessions: Sequence[int], erasure: int) -> Iterator[None]:
        """Take out the sessions of which something was erased, and what is kept in memory of them."""
        assert self._log is not None
        assert self._index is not None
        yield from erasing.remove_sessions(self._index, sessions, erasure)
        self._writer = IndexWriter(self._index, read_salt(self._log))  # it knows words and tools
        self._merging = None
        self._notes.clear()

    def _overwrite_erased(self, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Merge all postings, so that what was erased is in no file. Return whether anything is left.

        While a reader prevents it, the next run tries again.
        """
        assert self._index is not None
        if self._merging is None:
            self._merging = _list_merges(self._index, schema.count_passages(self._index))
        if self._is_left(self._merging, seconds, is_wanted):
            return True
        self._merging = None
        if schema.shrink(self._index):
            schema.write_meta(self._index, {erasing.ERASING: 0})
        return False

    def _tidy(self, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Merge postings and return free pages to the disk. Return whether anything is left.

        Merging all writes all anew, so this waits until enough has been added.
        """
        assert self._index is not None
        if self._changed == -math.inf:
            return False
        if self._merging is None:
            passages = schema.count_passages(self._index)
            is_due = passages > _GROWTH * schema.read_meta(self._index).get("merged", 0)
            self._merging = _list_merges(self._index, passages) if is_due else iter(())
        if self._is_left(self._merging, seconds, is_wanted):
            return True
        self._merging = None
        schema.shrink(self._index)
        self._changed = -math.inf
        return False

    def _is_left(self, steps: Iterator[None] | None, seconds: float, is_wanted: Callable[[], bool]) -> bool:
        """Take steps for about `seconds`. Return whether any is left."""
        end = self._now() + seconds
        return any(self._now() >= end or is_wanted() for _ in steps or ())

    def _commit(self) -> None:
        if self._index is not None and self._index.in_transaction:
            if self._writer is not None:
                self._writer.flush()
            self._index.execute("COMMIT")
            self._changed = self._now()

    def _is_of_this_log(self) -> bool:
        """Return False if the log lacks what was indexed, or is another one."""
        assert self._log is not None
        assert self._index is not None
        heads, position = changes.read_heads(self._log), schema.read_meta(self._index)
        if any(position.get(table, 0) > heads[table] for table in changes.TABLES):
            return False
        return changes.read_seal(self._log, position.get("exchange", 0)) == position.get("seal", 0)

    def _is_current(self) -> bool:
        assert self._log is not None
        assert self._index is not None
        position = schema.read_meta(self._index)
        return bool(position.get("is_complete")) and not count_behind(changes.read_heads(self._log), position)

    def _start_over(self) -> None:
        self._disconnect()
        schema.remove(self._path)

    def _give_up(self, error: Exception) -> None:
        """Drop what was begun. An index that is damaged is made anew by the next run."""
        text = advise(error) if isinstance(error, sqlite3.Error) else str(error)
        if text != self._fault and not isinstance(error, StoreUnavailable):  # else it is another process that fails
            _log.warning("the index for search cannot be written now, calls go on; see /-/ready: %s", text)
        self._fault = text
        is_damaged = str(getattr(error, "sqlite_errorname", "")).startswith(_DAMAGED)
        self._disconnect()
        if is_damaged and self._lock is not None:
            with suppress(OSError):
                schema.remove(self._path)

    def _disconnect(self) -> None:
        for connection in (self._log, self._index):
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
        self._log = self._index = self._writer = self._work = self._merging = self._removing = None
        self._notes.clear()

    def _follow(self) -> Iterator[None]:
        """Index everything that is new in the log now; yield after each message."""
        log, index = self._log, self._index
        assert log is not None
        assert index is not None
        position = {table: schema.read_meta(index).get(table, 0) for table in changes.TABLES}
        heads = changes.read_heads(log) | {"erasure": position["erasure"]}  # one that is newer is not done yet
        while position != heads:
            until = {table: min(heads[table], position[table] + _CALLS_AT_ONCE) for table in changes.TABLES}
            for session in changes.list_changed(log, position, until):
                yield from self._index_session(session)
            yield from self._index_epochs(position["epoch"], until["epoch"])
            yield from self._index_summaries(position["summary"], until["summary"])
            position = until
            schema.write_meta(index, {**position, "seal": changes.read_seal(log, position["exchange"])})
            yield
        schema.write_meta(index, {"is_complete": 1})

    def _index_session(self, id: int) -> Iterator[None]:
        assert self._log is not None
        assert self._index is not None
        session = self._open_session(id)
        turn, part = 0, 0
        for each in changes.read_new_messages(self._log, id, session.nodes):
            if isinstance(each, NewMessage):
                if session.nodes and not self._notes.knows(id):
                    self._notes.load(self._log, self._index, id)
                turn, part = each.turn, part if each.turn == turn else 0
                part = self._try_message(session, each, part)
                continue
            session.nodes = each
            self._save(session)
            yield

    def _try_message(self, session: IndexedSession, message: NewMessage, part: int) -> int:
        try:
            return self._index_message(session, message, part)
        except (*FILE_ERRORS, OSError):
            raise
        except Exception:  # noqa: BLE001 - a boundary: a message that cannot be read must not end the index
            _log.exception(
                "a message cannot be found by search. Please report this line", extra={"exchange": message.call.id}
            )
            return part

    def _index_message(self, session: IndexedSession, message: NewMessage, part: int) -> int:
        """Add the texts of a message, from this part of its turn on. Return the next part."""
        assert self._log is not None
        texts = list_texts(message.call.form, message.raw)
        is_new = len(message.raw) < _WORTH_ALIAS or self._expect_writer().note_seen(
            session, message.digest, message.turn
        )
        told = changes.read_source(self._log, session.id, message.node) if texts and texts[0].role == "user" else ""
        for number, text in enumerate(texts if not told else [address_text(text, told) for text in texts]):
            note = self._notes.note(session.id, text)
            if is_new:
                address = Address(message.holder_kind, number, message.item).pack()
                where = EntryOrigin(message.turn, part, message.node, address, message.holder, message.call.seq)
                indexed = _make_text(text, note, message.call.at_ms, session.stated_ms)
                self._expect_writer().add(session, indexed, where)
                part += 1
            if text.kind in SAID and (stated := find_stated_time(text.text)) is not None:
                session.stated_ms = stated
        return part

    def _index_epochs(self, since: int, until: int) -> Iterator[None]:
        assert self._log is not None
        for seq, id, through, depth, exchange, at_ms, content in changes.list_epochs(self._log, since, until):
            session = self._open_session(id)
            end = changes.find_turn(self._log, id, through)
            chain = changes.list_chain(self._log, id, end, depth) if end else []
            for item, edit in enumerate(decode_edits(content)):
                text = read_edit(edit)
                if text is None or not chain:
                    continue
                # a ledger stands for the messages before its end, an outline for one
                place = edit.stop - 1 if isinstance(edit, Written) else edit.place
                turn = chain[place - (depth - len(chain))] if 0 <= place - (depth - len(chain)) < len(chain) else end
                call = exchange or changes.find_latest_call(self._log, id, at_ms)
                where = EntryOrigin(turn, 0, b"%d:%d" % (seq, item), Address(EPOCH, 0, item).pack(), seq, call)
                self._index_own(session, text, where, at_ms)
            self._save(session)
            yield

    def _index_summaries(self, since: int, until: int) -> Iterator[None]:
        assert self._log is not None
        for seq, id, name, last, exchange, at_ms, text in changes.list_summaries(self._log, since, until):
            session = self._open_session(id)
            if text and (turn := changes.find_turn(self._log, id, last)):
                call = exchange or changes.find_latest_call(self._log, id, at_ms)
                where = EntryOrigin(turn, 0, b"", Address(SUMMARY, 0, 0).pack(), seq, call, name)
                self._index_own(session, MessageText("summary", "other", text), where, at_ms)
            self._save(session)
            yield

    def _index_own(self, session: IndexedSession, text: MessageText, where: EntryOrigin, at_ms: int) -> None:
        """Add a text that the proxy wrote, unless its session has the same already."""
        writer = self._expect_writer()
        if writer.note_seen(session, changes.digest_text(text.text), where.turn):
            part = writer.find_part(session, where.turn, text)
            writer.add(session, _make_text(text, _CallNote("", ""), at_ms, None), where._replace(part=part))

    def _open_session(self, id: int) -> IndexedSession:
        assert self._log is not None
        key, _ = changes.read_session_key(self._log, id)
        return self._expect_writer().open_session(id, key)

    def _save(self, session: IndexedSession) -> None:
        self._expect_writer().save_session(session)

    def _expect_writer(self) -> IndexWriter:
        assert self._writer is not None, "the index is open"
        return self._writer


def _list_merges(index: sqlite3.Connection, passages: int) -> Iterator[None]:
    """Merge the postings of all lanes into one piece each, a little at each step."""
    for lane in schema.LANES:
        is_left = schema.merge(index, lane, is_first=True)
        while is_left:
            yield
            is_left = schema.merge(index, lane, is_first=False)
    schema.write_meta(index, {"merged": passages})


def measure(
    log: sqlite3.Connection, index: sqlite3.Connection, path: Path, *, fault: str = "", schema_name: str = "main"
) -> IndexHealth:
    """Return how current an index is. Raises sqlite3.Error and OSError."""
    heads, position = changes.read_heads(log), schema.read_meta(index, schema_name)
    behind = count_behind(heads, position)
    oldest = changes.read_opened(log, position.get("exchange", 0) + 1)
    counted = vectors.count(index, schema_name)
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal")]
    return IndexHealth(
        behind=behind,
        behind_seconds=round(max(0.0, time.time() - oldest / 1000), 3) if behind and oldest else 0.0,
        size=sum(file.stat().st_size for file in files if file.exists()),
        is_rebuilding=not position.get("is_complete", 0),
        fault=fault,
        vectors=counted.made,
        without_vectors=counted.left,
    )


def count_behind(heads: Mapping[str, int], position: Mapping[str, int]) -> int:
    """Return how many records of the log the index does not have yet."""
    return sum(max(0, heads[table] - position.get(table, 0)) for table in changes.TABLES)


def _make_text(text: MessageText, note: _CallNote, at_ms: int, stated_ms: int | None) -> IndexedText:
    return IndexedText(
        text=text.text,
        role=text.role,
        kind=text.kind,
        sender=text.sender,
        tool=note.tool,
        at_ms=at_ms,
        stated_ms=stated_ms,
        card=note.card if text.kind == "output" else "",
        rules=find_rules(text.text) if text.kind in SAID and text.role == "user" else (),
    )
