"""What is in the index after any interruption is what is in the log: nothing twice, nothing missing."""

import json
import math
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.model.search import EntryKind
from proxy.retrieval.postings import get_kind, get_turn
from proxy.store.search.changes import read_heads
from proxy.store.search.entries import load_text
from proxy.store.search.indexer import Indexer
from proxy.store.search.schema import LANES, VERSION, find_index
from proxy.store.search.texts import list_texts
from proxy.store.sqlite.connection import connect_reader
from proxy.wire.format import Format
from tests.support.indexing import (
    LogBuilder,
    ask_tool,
    list_entries,
    read_message,
    reply,
    return_output,
    say,
)
from tests.support.scripted import LIMIT

PROGRAM = """
import sys
from pathlib import Path
from proxy.store.search.indexer import Indexer
indexer = Indexer(Path(sys.argv[1]))
while True:
    indexer.run(0.002)
    print(indexer.health.behind, flush=True)
"""


class Looks:
    """Says that a time is over after a number of looks."""

    def __init__(self, left: int) -> None:
        self._left = left

    def is_over(self) -> bool:
        self._left -= 1
        return self._left < 0


def index_all(indexer: Indexer, seconds: float = math.inf) -> None:
    """Index until nothing is left."""
    while indexer.run(seconds):
        pass
    assert indexer.health.fault == ""
    assert indexer.health.behind == 0


def read_texts(path: Path, kind: EntryKind | None = None) -> list[str]:
    """The texts of all entries, in their order, as they are read in the log."""
    log = connect_reader(path)
    try:
        entries = list_entries(find_index(path))
        texts = [load_text(log, *entry[1:4]) for entry in entries if kind in (None, get_kind(entry[0]))]
        return [text.text if text is not None else "(erased)" for text in texts]
    finally:
        log.close()


def dump(path: Path) -> dict[str, list[Any]]:
    """All that an index holds, whatever the order in which it was written."""
    connection = sqlite3.connect(path)
    try:
        found: dict[str, list[Any]] = {}
        for table in ("meta", "session", "statistic", "entry", "tool", "place", "seen", "alias", "word"):
            found[table] = sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
        for lane in LANES:
            connection.execute(f"CREATE VIRTUAL TABLE temp.seen_{lane} USING fts5vocab(main, lane_{lane}, instance)")
            found[lane] = connection.execute(f"SELECT term, doc FROM temp.seen_{lane} ORDER BY 1, 2").fetchall()
        return found
    finally:
        connection.close()


def write_work(log: LogBuilder, steps: int = 4, session: str = "s1") -> None:
    """A session in which an agent calls tools; each call repeats the history."""
    history: list[Any] = [{"role": "system", "content": "be brief"}, say(f"Repair the parser of {session}, please.")]
    for i in range(steps):
        answer = ask_tool("bash", {"command": f"cat src/file_{i}.py"}, f"call_{i}", f"Let me look at file {i}.")
        log.call(history, answer, session=session)
        history += [read_message(answer), return_output(f"def parse_{i}(text): return {i}", f"call_{i}")]
    log.call(history, reply("The parser is repaired."), session=session)


def test_everything_said_called_and_returned_is_indexed_once(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log, steps=2)
    index_all(indexer)
    assert read_texts(log.path) == [
        "Repair the parser of s1, please.",
        "Let me look at file 0.",
        "command: cat src/file_0.py",
        "def parse_0(text): return 0",
        "Let me look at file 1.",
        "command: cat src/file_1.py",
        "def parse_1(text): return 1",
        "The parser is repaired.",
    ]


def test_notes_of_calls_are_read_again_by_a_new_process(log: LogBuilder, indexer: Indexer) -> None:
    answer = ask_tool("bash", {"command": "pytest tests"}, "call_9", "Let me run the tests.")
    log.call([say("go on")], answer)
    index_all(indexer)
    indexer.close()
    log.call([say("go on"), read_message(answer), return_output("1 passed", "call_9")])
    later = Indexer(log.path)
    index_all(later)
    later.close()
    assert "pytest" in [term for term, _ in dump(find_index(log.path))["card"]]
    assert sorted(entry[4] for entry in list_entries(find_index(log.path))) == [1, 1, 2, 2]


def test_small_steps_make_the_same_index_as_one(log: LogBuilder, tmp_path: Path, indexer: Indexer) -> None:
    write_work(log)
    write_work(log, 3, "s2")
    index_all(indexer)
    copy = copy_log(log, tmp_path / "copy")
    stepwise = Indexer(copy)
    index_all(stepwise, 0.0)
    stepwise.close()
    assert dump(find_index(copy)) == dump(find_index(log.path))


def test_after_a_kill_in_any_place_nothing_is_doubled_or_missed(
    log: LogBuilder, tmp_path: Path, indexer: Indexer
) -> None:
    write_work(log, 3)
    write_work(log, 2, "s2")
    index_all(indexer)
    expected = dump(find_index(log.path))
    for place in range(1, 24):
        copy = copy_log(log, tmp_path / f"copy{place}")
        killed, looks = Indexer(copy), Looks(place)
        while killed.run(math.inf if place % 2 else 0.0, looks.is_over) and not looks.is_over():
            pass
        left = tmp_path / f"left{place}"
        shutil.copytree(copy.parent, left)  # as the file system has it when the process is killed
        killed.close()
        later = Indexer(left / "log.db")
        index_all(later)
        later.close()
        assert dump(find_index(left / "log.db")) == expected


def test_processes_that_are_killed_again_and_again_make_the_same_index(
    log: LogBuilder, tmp_path: Path, indexer: Indexer
) -> None:
    for i in range(6):
        write_work(log, 12, f"s{i}")
    index_all(indexer)
    copy = copy_log(log, tmp_path / "copy")
    for reports in (1, 2, 3, 5, 8):
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(copy)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(reports):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    last = Indexer(copy)
    end = time.monotonic() + LIMIT
    while last.run(1.0) and time.monotonic() < end:
        pass
    last.close()
    assert dump(find_index(copy)) == dump(find_index(log.path))


def test_it_goes_on_after_it_was_wanted_elsewhere(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log)
    assert indexer.run(math.inf, lambda: True)
    assert list_entries(find_index(log.path)) == []  # what was begun is not committed yet
    index_all(indexer)
    assert len(read_texts(log.path)) == 14


def test_only_one_process_writes(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log)
    index_all(indexer)
    second = Indexer(log.path)
    assert second.run(1.0) is False
    assert "is being written by another process" in second.health.fault
    indexer.close()
    index_all(second)
    second.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"no database at all, but long enough to be one" * 100),
        lambda path: path.write_bytes(b""),
        lambda path: change(path, f"PRAGMA user_version = {VERSION + 1}"),
        lambda path: change(path, "UPDATE meta SET value = x'00' WHERE key = 'salt'"),
        lambda path: change(path, "DROP TABLE entry"),
        lambda path: overwrite(path, 4096, 64),
    ],
)
def test_an_index_that_cannot_be_used_is_made_anew(
    log: LogBuilder, indexer: Indexer, spoil: Callable[[Path], None]
) -> None:
    write_work(log)
    index_all(indexer)
    indexer.close()
    expected = read_texts(log.path)
    spoil(find_index(log.path))
    again = Indexer(log.path)
    for _ in range(3):  # damage shows when it is read
        while again.run(1.0):
            pass
    again.close()
    assert read_texts(log.path) == expected


def test_an_older_log_in_its_place_is_seen(log: LogBuilder, tmp_path: Path, indexer: Indexer) -> None:
    write_work(log, 1)
    old = copy_log(log, tmp_path / "old")
    write_work(log, 4)
    index_all(indexer)
    indexer.close()
    log.close()
    for suffix in ("-wal", "-shm"):
        log.path.with_name(log.path.name + suffix).unlink(missing_ok=True)
    shutil.copy(old, log.path)
    again = Indexer(log.path)
    index_all(again)
    again.close()
    assert len(read_texts(log.path)) == 5


def test_a_log_that_went_on_differently_is_seen(log: LogBuilder, tmp_path: Path, indexer: Indexer) -> None:
    write_work(log, 1)
    old = copy_log(log, tmp_path / "old")
    log.call([say("what was lost")], session="s3")
    index_all(indexer)
    indexer.close()
    shutil.copy(find_index(log.path), find_index(old))
    other = LogBuilder(old, 100)
    other.call([say("what came instead")], session="s4")
    again = Indexer(old)
    index_all(again)
    again.close()
    other.close()
    words = [word for (word,) in dump(find_index(old))["word"]]
    assert "instead" in words
    assert "lost" not in words


def test_what_is_indexed_is_not_read_again(log: LogBuilder, indexer: Indexer, monkeypatch: pytest.MonkeyPatch) -> None:
    read = note_reads(monkeypatch)
    log.call([say("first"), say("second")], reply("third"))
    index_all(indexer)
    assert len(read) == 3
    log.call([say("first"), say("second"), read_message(reply("third")), say("fourth")])
    index_all(indexer)
    assert len(read) == 4


def test_erased_content_is_in_no_file_of_the_index(log: LogBuilder, indexer: Indexer) -> None:
    log.call([say("the password is xylophone, keep it")], reply("I keep xylophone."))
    log.call([say("something else entirely")], session="s2")
    index_all(indexer)
    assert b"xylophon" in read_bytes(log.path)
    log.erase("xylophone")
    index_all(indexer)
    indexer.close()
    assert b"xylophon" not in read_bytes(log.path)
    assert read_texts(log.path) == ["something else entirely"]


def write_secret(log: LogBuilder) -> None:
    """Three sessions; in the second one, a thought with a secret and a date leads to an output that stays."""
    write_work(log, 12, "s1")
    history = [say("Where is the key? It is 2024-03-05 now."), say("Look for it.")]
    call = ask_tool("find", {"name": "key"}, "call_9", "On 2021-07-09 xylophone was the key, so I look.")
    log.call(history, call, session="s2")
    history += [read_message(call), return_output("nothing is here", "call_9"), say("Then yesterday was the last day.")]
    log.call(history, session="s2")
    write_work(log, 12, "s3")


def index_anew(log: LogBuilder, folder: Path) -> dict[str, list[Any]]:
    """What an index of the log has that is made now."""
    copy = copy_log(log, folder)
    fresh = Indexer(copy)
    index_all(fresh)
    fresh.close()
    return dump(find_index(copy)) | {"meta": []}


def test_a_session_with_erased_content_is_indexed_again_as_it_is_now(
    log: LogBuilder, tmp_path: Path, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_secret(log)
    index_all(indexer)
    before = dump(find_index(log.path))
    assert "xylophon" in [term for term, _ in before["card"]]
    log.erase("xylophone")
    read = note_reads(monkeypatch)
    index_all(indexer)
    assert len(read) == 4
    after = dump(find_index(log.path)) | {"meta": []}
    assert after == index_anew(log, tmp_path / "anew")
    assert after["text"] != before["text"]
    assert [name for _, name in after["tool"]] == ["", "bash"]
    indexer.close()
    assert b"xylophon" not in read_bytes(log.path)


def test_an_erasure_that_is_cut_short_anywhere_is_done_by_the_next_process(
    log: LogBuilder, tmp_path: Path, indexer: Indexer
) -> None:
    write_secret(log)
    index_all(indexer)
    log.erase("xylophone")
    expected = index_anew(log, tmp_path / "anew")
    indexer.close()
    for place in range(1, 230, 9):
        folder = tmp_path / f"copy{place}"
        copy = copy_log(log, folder)
        shutil.copy(find_index(log.path), find_index(copy))
        killed, looks = Indexer(copy), Looks(place)
        while killed.run(math.inf if place % 2 else 0.0, looks.is_over) and not looks.is_over():
            pass
        left = tmp_path / f"left{place}"
        shutil.copytree(folder, left)  # as the file system has it when the process is killed
        killed.close()
        later = Indexer(left / "log.db")
        index_all(later)
        later.close()
        assert dump(find_index(left / "log.db")) | {"meta": []} == expected
        assert b"xylophon" not in read_bytes(left / "log.db")


def test_erased_content_is_overwritten_once_no_reader_has_it(log: LogBuilder, indexer: Indexer) -> None:
    write_secret(log)
    index_all(indexer)
    reader = sqlite3.connect(find_index(log.path))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entry").fetchone()
    log.erase("xylophone")
    index_all(indexer)
    assert b"xylophon" in read_bytes(log.path)
    reader.close()
    index_all(indexer)
    assert b"xylophon" not in read_bytes(log.path)


def test_where_most_is_erased_the_index_is_made_anew(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log, 3)
    log.call([say("elsewhere")], session="s2")
    index_all(indexer)
    before = find_index(log.path).stat().st_ino
    held = find_index(log.path).open("rb")  # so that its number is not used again
    log.erase("parse_1")
    index_all(indexer)
    assert find_index(log.path).stat().st_ino != before
    held.close()
    assert "elsewhere" in read_texts(log.path)


def test_a_rebuilt_index_has_the_same_references(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log)
    index_all(indexer)
    before = list_entries(find_index(log.path))
    indexer.rebuild()
    assert indexer.health.is_rebuilding
    index_all(indexer)
    assert not indexer.health.is_rebuilding
    assert list_entries(find_index(log.path)) == before


def test_what_comes_again_under_other_nodes_is_indexed_once(log: LogBuilder, indexer: Indexer) -> None:
    long = "A rule that holds for all of this work. " * 12
    log.call([say("one"), read_message(reply("1")), say(long)])
    log.call([say(long), say("after the client compacted its history")])
    index_all(indexer)
    assert read_texts(log.path).count(long) == 1
    assert len(dump(find_index(log.path))["alias"]) == 1


def test_a_message_that_is_seen_first_in_a_request_is_not_repeated_by_its_answer(
    log: LogBuilder, indexer: Indexer
) -> None:
    answer = reply("an answer that was read late")
    log.call([say("asked"), read_message(answer), say("replied")])
    log.call([say("asked")], answer)
    index_all(indexer)
    assert read_texts(log.path) == ["asked", "an answer that was read late", "replied"]


def test_reasoning_of_all_wires_is_indexed(log: LogBuilder, indexer: Indexer) -> None:
    log.call([say("q1")], reply("a1", reasoning_content="thinking of chat"), session="chat")
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thinking of items"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a2"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"path": "x.py"}'},
    ]
    log.call("q2", {"id": "r1", "object": "response", "output": items}, session="items", wire="responses")
    blocks = [
        {"type": "thinking", "thinking": "thinking of blocks", "signature": "s"},
        {"type": "text", "text": "a3"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "y.py"}},
        {"type": "tool_use", "id": "t2", "name": "read", "input": {"path": "z.py"}},
    ]
    message = {"role": "assistant", "content": blocks}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "of y"},
        {"type": "tool_result", "tool_use_id": "t2", "content": "of z"},
        {"type": "text", "text": "and go on"},
    ]
    history = [say("q3")]
    log.call(history, {"id": "m1", "type": "message", **message}, session="blocks", wire="anthropic_messages")
    history += [message, {"role": "user", "content": results}]
    log.call(history, session="blocks", wire="anthropic_messages")
    index_all(indexer)
    assert read_texts(log.path, "reasoning") == ["thinking of chat", "thinking of items", "thinking of blocks"]
    assert sorted(read_texts(log.path, "message")) == ["a1", "a2", "a3", "and go on", "q1", "q2", "q3"]
    assert read_texts(log.path, "arguments") == ["path: x.py", "path: y.py", "path: z.py"]
    assert read_texts(log.path, "output") == ["of y", "of z"]


def test_reasoning_of_an_item_without_a_node_belongs_to_the_next_one(log: LogBuilder, indexer: Indexer) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a thought"}]}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "words"}]}
    asked = {"type": "message", "role": "user", "content": "asked"}
    log.call([asked, thought, words], wire="responses")
    index_all(indexer)
    turns = {get_kind(entry[0]): get_turn(entry[0]) for entry in list_entries(find_index(log.path))}
    assert turns == {"message": 2, "reasoning": 2}
    assert read_texts(log.path) == ["asked", "a thought", "words"]


def test_ledgers_outlines_and_summaries_are_indexed_once_each(log: LogBuilder, indexer: Indexer) -> None:
    write_work(log, 3)
    ledger = ["Written", "[a ledger: step 1 repaired the tokenizer]", 1, 5, ""]
    outline = ["Replaced", 2, "[FILE: big.py] class Outlined", "file", []]
    kept = ["Kept", 6]
    edits = json.dumps([ledger, outline, ["Replaced", 3, "pruned", "tombstone", []], kept]).encode()
    log.add_epoch(edits, depth=7, through=log.last)
    more = json.dumps([ledger, ["Written", "[a ledger: step 2]", 5, 6, ""], outline, kept, kept]).encode()
    log.add_epoch(more, depth=7, through=log.last)
    log.add_summary(
        "aaaaaaaaaa",
        "the whole story in short",
        [json.dumps(say("Repair the parser of s1, please.")).encode()],
        last=log.last,
    )
    index_all(indexer)
    assert read_texts(log.path, "ledger") == ["[a ledger: step 1 repaired the tokenizer]", "[a ledger: step 2]"]
    assert read_texts(log.path, "outline") == ["[FILE: big.py] class Outlined"]
    assert read_texts(log.path, "summary") == ["the whole story in short"]


def test_many_calls_in_one_message_are_all_indexed(log: LogBuilder, indexer: Indexer) -> None:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": json.dumps({"n": f"value{i}"})}}
        for i in range(30)
    ]
    log.call([say("q")], reply("", tool_calls=calls))
    index_all(indexer)
    assert all(f"value{i}" in "\n".join(read_texts(log.path)) for i in range(30))


def test_a_message_that_nobody_can_index_is_left_out(
    log: LogBuilder, indexer: Indexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(form: Format, raw: bytes) -> Sequence[Any]:
        if b"poison" in raw:
            raise RecursionError("too deep")
        return list_texts(form, raw)

    monkeypatch.setattr("proxy.store.search.indexer.list_texts", fail)
    log.call([say("early"), say("poison"), say("behind")])
    index_all(indexer)
    assert read_texts(log.path) == ["early", "behind"]


def test_it_waits_for_a_log(tmp_path: Path) -> None:
    indexer = Indexer(tmp_path / "log.db")
    assert indexer.run(1.0) is False
    assert "there is no log" in indexer.health.fault
    log = LogBuilder(tmp_path / "log.db")
    log.call([say("at last")])
    index_all(indexer)
    indexer.close()
    log.close()


def test_it_is_tidied_once_nothing_is_new(log: LogBuilder) -> None:
    now = [0.0]
    indexer = Indexer(log.path, now=lambda: now[0])
    for i in range(30):
        write_work(log, 1, f"s{i}")
        while indexer.run(0.0):
            now[0] += 0.001
    before = dump(find_index(log.path))
    indexer.run(1.0)
    assert count_segments(log.path) > 1
    now[0] += 10.0
    while indexer.run(0.0):
        now[0] += 0.001
    assert count_segments(log.path) == 1
    assert dump(find_index(log.path)) == before | {"meta": dump(find_index(log.path))["meta"]}
    indexer.close()


def note_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages whose texts are read from now on."""
    read: list[bytes] = []

    def note(form: Format, raw: bytes) -> Sequence[Any]:
        read.append(raw)
        return list_texts(form, raw)

    monkeypatch.setattr("proxy.store.search.indexer.list_texts", note)
    return read


def copy_log(log: LogBuilder, folder: Path) -> Path:
    """A copy of a log without its index."""
    folder.mkdir()
    log.connection.execute("VACUUM INTO ?", (str(folder / "log.db"),))
    assert read_heads(connect_reader(folder / "log.db"))["exchange"]
    return folder / "log.db"


def read_bytes(log: Path) -> bytes:
    """All files of an index."""
    return b"".join(path.read_bytes() for path in log.parent.glob("index.db*"))


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def overwrite(path: Path, at: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * count)


def count_segments(log: Path) -> int:
    """Segments of the postings of texts: the second byte of an averages record is not it, so they are counted."""
    connection = sqlite3.connect(find_index(log))
    try:
        rows = connection.execute("SELECT DISTINCT segid FROM lane_text_idx").fetchall()
        return len(rows)
    finally:
        connection.close()
