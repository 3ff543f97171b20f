"""Which files are read, and that nothing is written beside them."""

import json
import sqlite3
from pathlib import Path

from proxy.trial.files import find_transcripts
from tests.support.transcribing import find_own_title

CALL = {
    "request": {"messages": [{"role": "user", "content": "Read."}]},
    "response": {"choices": [{"message": {"role": "assistant", "content": "x"}}]},
}
CLINE = [{"role": "user", "content": "Read."}, {"role": "assistant", "content": "Done."}]
CHAT = "# aider chat started at 2026-11-26 11:09:07\n\n#### Fix a.\n\nDone.\n\n> Tokens: 10 sent, 3 received.\n"
REQUESTS = "TO LLM 2026-11-26T11:09:07\n-------\nUSER Fix a.\nLLM RESPONSE 2026-11-26T11:09:09\nASSISTANT Done.\n"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_path_is_a_file_or_a_directory_of_any_clients(tmp_path: Path) -> None:
    calls = put(tmp_path / "a" / "calls.jsonl", json.dumps(CALL))
    put(tmp_path / "a" / "deep" / "api_conversation_history.json", json.dumps(CLINE))
    put(tmp_path / "a" / "package.json", "{}")
    put(tmp_path / "a" / "notes.txt", json.dumps(CALL))
    odd = put(tmp_path / "b.jsonl", "{}\n")
    found = find_transcripts([tmp_path / "a", calls, odd, tmp_path / "none"], tmp_path, tmp_path)
    assert sorted(each.client for each in found.transcripts) == ["calls", "cline"]
    assert found.skipped == (str(odd), str(tmp_path / "none")) and found.files == 3


def test_without_a_path_the_usual_places_are_searched(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    put(home / ".cline/data/tasks/7/api_conversation_history.json", json.dumps(CLINE))
    put(home / "elsewhere.jsonl", json.dumps(CALL))
    put(here / ".aider.chat.history.md", CHAT)
    found = find_transcripts([], home, here)
    assert sorted(each.client for each in found.transcripts) == ["aider", "cline"] and found.skipped == ()
    put(here / ".aider.llm.history", REQUESTS)
    again = find_transcripts([], home, here)
    assert [each.missing for each in again.transcripts if each.client == "aider"] == [("its model",)]


def test_a_database_is_read_from_a_copy_with_what_was_written_last(tmp_path: Path) -> None:
    folder = tmp_path / "home/.local/share/opencode"
    folder.mkdir(parents=True)
    connection = sqlite3.connect(folder / "opencode.db")
    connection.execute("PRAGMA journal_mode = wal")
    for table in ("session (id, version)", "message (id, session_id, data)", "part (id, message_id, data)"):
        connection.execute(f"CREATE TABLE {table}")
    tokens = {"input": 9, "output": 1}
    messages = [("m1", {"role": "user"}), ("m2", {"role": "assistant", "modelID": "m", "tokens": tokens})]
    connection.execute("INSERT INTO session VALUES ('o1', '1')")
    connection.executemany("INSERT INTO message VALUES (?, 'o1', ?)", [(id, json.dumps(data)) for id, data in messages])
    text = json.dumps({"type": "text", "text": "Read."})
    connection.executemany("INSERT INTO part VALUES (?, ?, ?)", [("p1", "m1", text), ("p2", "m2", text)])
    connection.commit()  # and stays in the write-ahead log, for the client is still running
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    [found] = find_transcripts([], tmp_path / "home", tmp_path).transcripts
    assert (found.client, find_own_title(found), len(found.calls)) == ("opencode", "Read.", 1)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    connection.close()
    (folder / "opencode.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    (folder / "opencode.db-wal").unlink(missing_ok=True)
    assert find_transcripts([], tmp_path / "home", tmp_path).transcripts == ()


def test_the_files_of_an_older_opencode_are_one_store(tmp_path: Path) -> None:
    store = tmp_path / "home/.local/share/opencode/storage"
    put(store / "session/project/o1.json", json.dumps({"id": "o1", "version": "0.4"}))
    put(store / "message/o1/m1.json", json.dumps({"id": "m1", "sessionID": "o1", "role": "user"}))
    named = {"role": "assistant", "modelID": "m", "providerID": "anthropic", "tokens": {"input": 9}}
    put(store / "message/o1/m2.json", json.dumps({"id": "m2", "sessionID": "o1", **named}))
    for n in (1, 2):
        put(
            store / f"part/m{n}/p{n}.json",
            json.dumps({"id": f"p{n}", "messageID": f"m{n}", "type": "text", "text": "Read."}),
        )
    for paths in ([], [tmp_path / "home"]):
        [found] = find_transcripts(paths, tmp_path / "home", tmp_path).transcripts
        assert (found.client, found.version, found.provider, len(found.calls)) == ("opencode", "0.4", "anthropic", 1)
