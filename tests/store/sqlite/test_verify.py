"""What `verify` finds in exchanges and trees."""

import sqlite3
from pathlib import Path

import pytest

from proxy.model.errors import StoreUnavailable
from proxy.model.exchange import Usage
from proxy.model.lineage import Adoption
from proxy.model.log import LogFault
from proxy.model.manifest import (
    Blob,
    BlobPiece,
    Manifest,
    compute_digest,
    encode_recipe,
    make_head_manifest,
    make_manifest,
)
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.schema import TALLIED
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_chain,
    make_key,
    make_mark,
    make_opening,
    make_outcome,
    make_reading,
    make_reply,
    make_round,
    make_step,
    make_trailer,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.disk import Disk
from tests.store.sqlite.spoiling import lose_index_entry, spoil

TURNS = make_turns(6, size=1500)
LINKS = [piece.link for piece in chain_body(TURNS).slices]
SLICE = compute_digest(TURNS[2][1]).hex()
TOOLS = Blob(compute_digest(b"the tools"), b"the tools")
STREAM = b"data: {}\n\n" * 400
CHAIN = make_chain("a", "!b", "c", "!d", "e", "!f")


@pytest.fixture
async def path(open_archive: Opener, policy: StorePolicy) -> Path:
    """A closed log with something of every kind in it."""
    archive = open_archive()
    usage = Usage(input=10, output=2)
    for i in range(4):
        exchange = f"e{i}"
        archive.append(make_opening(exchange, chain_body(TURNS[: i + 3])), make_round(exchange))
        archive.append(make_outcome(exchange, received=STREAM), make_trailer(0, b"\n", exchange))
        archive.append(make_reading(exchange, usage=usage, error="overloaded"), is_urgent=False)
    body = Manifest(encode_recipe((b"[", BlobPiece(TOOLS.digest), b"]")), (), (TOOLS,), 11)
    archive.append(
        make_opening("e4", body, key=make_key("other", OTHER_TENANT)), make_round("e4", 0, make_manifest(b"x"))
    )
    archive.append(make_opening("e6", chain_body([])))
    for i in range(3):
        archive.append(
            make_step(f"e{i}", CHAIN[2 * i : 2 * i + 1], base=2 * i, marks=[make_mark(f"call:{i}", CHAIN[0])])
        )
        archive.append(make_reply(f"e{i}", CHAIN[2 * i + 1 : 2 * i + 2]))
    archive.append(make_step("e4", make_chain("a", parent=CHAIN[5].node)), make_step("e3"))
    archive.append(Adoption(make_key("other", OTHER_TENANT).id, make_key().id, CHAIN[3].node, 7))
    archive.append(make_opening("e5", make_head_manifest(b"head", 900, compute_digest(b"all"))), make_round("e5"))
    assert await archive.append(make_outcome("e5", received=b"head", size=900, whole=compute_digest(b"all")))
    await archive.close()
    return policy.path


def find(path: Path) -> list[str]:
    return [f"{fault.where}: {fault.what}" for fault in verify_log(path).faults]


def test_a_sound_log_has_no_faults(path: Path) -> None:
    found = verify_log(path)
    assert (found.exchanges, found.rounds, found.slices, found.faults) == (7, 6, 6, ())


PAYLOAD = f"(SELECT id FROM blob WHERE digest = x'{SLICE}')"

DAMAGE = {
    # contents
    "a slice's content": (
        f"UPDATE payload SET codec = 0, bytes = x'31' WHERE id = {PAYLOAD}",
        "blob",
        "match its digest",
    ),
    "a slice's packing": (f"UPDATE payload SET bytes = x'ffff' WHERE id = {PAYLOAD}", "blob", "cannot be unpacked"),
    "a codec": (f"UPDATE payload SET codec = 9 WHERE id = {PAYLOAD}", "blob", "no codec has the number 9"),
    "a missing content": (f"DELETE FROM payload WHERE id = {PAYLOAD}", "blob", "content is missing, and no erasure"),
    "a blob's size": (f"UPDATE blob SET size = size + 1 WHERE digest = x'{SLICE}'", "blob", "bytes in place of"),
    "a blob's digest": (f"UPDATE blob SET digest = zeroblob(32) WHERE digest = x'{SLICE}'", "blob", "match its digest"),
    "a missing blob": (f"DELETE FROM blob WHERE digest = x'{SLICE}'", "link", "its content is not in the log"),
    "an unnamed payload": ("INSERT INTO payload VALUES (9999, 0, x'00')", "payload 9999", "nothing refers to it"),
    "an answer": (
        "UPDATE payload SET codec = 0, bytes = x'00' WHERE id = (SELECT received FROM outcome WHERE seq = 2)",
        "outcome 2 (received)",
        "does not match its digest",
    ),
    "an answer's size": (
        "UPDATE outcome SET size = 7 WHERE seq = 1",
        "outcome 1 (received)",
        "4000 bytes in place of 7",
    ),
    "a trailer": (
        "UPDATE payload SET bytes = x'0a0a' WHERE id = (SELECT received FROM trailer WHERE seq = 3)",
        "trailer 3",
        "does not match its digest",
    ),
    "a reading": (
        "DELETE FROM payload WHERE id = (SELECT answer FROM reading WHERE seq = 1)",
        "reading 1 (answer)",
        "content is missing",
    ),
    "a provider's error": (
        "UPDATE payload SET bytes = x'00' WHERE id = (SELECT error FROM reading WHERE seq = 4)",
        "reading 4 (error)",
        "does not match its digest",
    ),
    # links
    "a gap": (
        f"UPDATE raw SET gap = x'20' WHERE link = x'{LINKS[3].hex()}'",
        f"link {LINKS[3].hex()}",
        "does not follow",
    ),
    "a parent": (
        f"UPDATE raw SET parent = x'{LINKS[0].hex()}' WHERE link = x'{LINKS[3].hex()}'",
        f"link {LINKS[3].hex()}",
        "does not follow",
    ),
    "a slice swapped": (
        f"UPDATE raw SET blob = (SELECT max(id) FROM blob) WHERE link = x'{LINKS[3].hex()}'",
        f"link {LINKS[3].hex()}",
        "does not follow",
    ),
    "a missing link": (
        f"DELETE FROM raw WHERE link = x'{LINKS[2].hex()}'",
        f"link {LINKS[3].hex()}",
        "its parent is neither in the log",
    ),
    "a tenant": ("UPDATE tenant SET fingerprint = x'00' WHERE id = 1", f"link {LINKS[0].hex()}", "tenant's root"),
    # recipes
    "a missing tip": (
        f"DELETE FROM raw WHERE link = x'{LINKS[5].hex()}'",
        "exchange 4",
        "content that is not in the log",
    ),
    "a missing member": (
        f"DELETE FROM blob WHERE digest = x'{TOOLS.digest.hex()}'",
        "exchange 5",
        "content that is not in the log",
    ),
    "an envelope": (
        "UPDATE payload SET codec = 0, bytes = x'ff' WHERE id = (SELECT envelope FROM round WHERE seq = 5)",
        "round 5",
        "recipe cannot be read",
    ),
    "a missing envelope": (
        "DELETE FROM payload WHERE id = (SELECT envelope FROM exchange WHERE seq = 1)",
        "blob",
        "content is missing",
    ),
    # the record
    "a model": ("UPDATE exchange SET model = 'cheaper' WHERE seq = 3", "exchange 3", "was altered"),
    "a tip": (f"UPDATE exchange SET tip = x'{LINKS[0].hex()}' WHERE seq = 3", "exchange 3", "was altered"),
    "a time": ("UPDATE exchange SET opened_ms = opened_ms + 1 WHERE seq = 1", "exchange 1", "was altered"),
    "an owner": ("UPDATE exchange SET session = 2 WHERE seq = 2", "exchange 2", "was altered"),
    "headers": ("UPDATE outcome SET changes = x'5b5d' WHERE seq = 2", "outcome 2", "was altered"),
    "whose headers": ("UPDATE outcome SET headers = headers - 1 WHERE seq = 2", "outcome 2", "was altered"),
    "a status": ("UPDATE outcome SET status = 500 WHERE seq = 4", "outcome 4", "was altered"),
    "an answer swapped": (
        "UPDATE outcome SET received = (SELECT received FROM outcome WHERE seq = 1) WHERE seq = 2",
        "outcome 2",
        "was altered",
    ),
    "what was sent": ("UPDATE round SET envelope = NULL WHERE seq = 5", "round 5", "was altered"),
    "a usage": ("UPDATE reading SET output = 0 WHERE seq = 3", "reading 3", "was altered"),
    "an order": ("UPDATE trailer SET i = 1 WHERE seq = 1", "trailer 1", "was altered"),
    "a seal": ("UPDATE exchange SET seal = zeroblob(16) WHERE seq = 2", "exchange 3", "the one before it, was altered"),
    "a removed round": ("DELETE FROM round WHERE seq = 2", "round 3", "is preceded by 1"),
    "a removed reading": ("DELETE FROM reading WHERE seq = 1", "reading 2", "is preceded by 0"),
    "a removed exchange": ("DELETE FROM exchange WHERE seq = 2", "round 2", "refers to a row of exchange"),
    "a removed session": ("DELETE FROM session WHERE id = 1", "exchange 1", "refers to a row of session"),
    "a session's name": ("UPDATE session SET key = 'mine' WHERE id = 1", "exchange 1", "was altered"),
    "a number": ("UPDATE exchange SET n = 9 WHERE seq = 4", f"session {make_key().id}", "have gaps"),
    # trees
    "a node": ("UPDATE node SET hash = zeroblob(16) WHERE session = 1 AND n = 3", "node 1/3", "was altered"),
    "the last node": ("UPDATE node SET hash = zeroblob(16) WHERE session = 1 AND n = 6", "node 1/6", "was altered"),
    "whose node": ("UPDATE node SET exchange = 1 WHERE session = 1 AND n = 3", "node 1/3", "was altered"),
    "a node's parent": ("UPDATE node SET parent = 1 WHERE session = 1 AND n = 4", "node 1/4", "was altered"),
    "a node's later parent": ("UPDATE node SET parent = 5 WHERE session = 1 AND n = 4", "node 1/4", "before it is not"),
    "an answer's flag": ("UPDATE node SET is_answer = 0 WHERE session = 1 AND n = 2", "node 1/2", "was altered"),
    "a node's seal": ("UPDATE node SET seal = zeroblob(4) WHERE session = 1 AND n = 2", "node 1/3", "was altered"),
    "a missing node": ("DELETE FROM node WHERE session = 1 AND n = 2", "node 1/3", "is preceded by 1"),
    "a missing tip of a step": ("DELETE FROM node WHERE session = 1 AND n > 4", "step 1/3", "tip is not in the log"),
    "a root": ("UPDATE node SET outer = zeroblob(16) WHERE session = 1 AND n = 1", "node 1/1", "before it is not"),
    "a node of no session": ("UPDATE node SET session = 9 WHERE session = 2", "node 9/1", "its exchange is not"),
    "a foreign parent": ("UPDATE node SET hash = x'00' WHERE session = 1 AND n = 6", "node 2/1", "before it is not"),
    "a step": ("UPDATE step SET tip = 9 WHERE n = 1 AND session = 1", "step 1/1", "tip is not in the log"),
    "a step's root": ("UPDATE step SET outer = x'00' WHERE session = 1 AND n = 4", "step 1/4", "tip is not in the log"),
    "a step's number": ("UPDATE step SET n = 9 WHERE n = 1 AND session = 1", "step 1/9", "its exchange is not"),
    "a depth": ("UPDATE step SET depth = 1 WHERE n = 2 AND session = 1", "step 1/2", "cannot have depth 1, base 2"),
    "a relation": ("UPDATE step SET relation = 9 WHERE n = 2 AND session = 1", "step 1/2", "relation 9"),
    "a name": ("UPDATE mark SET name = 'call:9' WHERE session = 1 AND n = 2", "mark 1/2", "does not follow"),
    "a mark's node": ("UPDATE mark SET node = 9 WHERE session = 1 AND n = 1", "mark 1/1", "not in the session"),
    "a missing mark": ("DELETE FROM mark WHERE session = 1 AND n = 1", "mark 1/2", "is preceded by 0"),
    "a source": ("UPDATE adoption SET source = 9", "adoption 2/1", "not in the log"),
    "an adopted node": ("UPDATE adoption SET node = 9", "adoption 2/1", "not in the log"),
    "an empty session": (
        "INSERT INTO session VALUES (7, 'empty', 1, 'openai', 'f', 0, '')",
        "session empty",
        "have gaps",
    ),
}


@pytest.mark.parametrize(("damage", "where", "what"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_found_and_named(path: Path, damage: str, where: str, what: str) -> None:
    spoil(path, damage)
    found = verify_log(path).faults
    assert any(fault.where.startswith(where) and what in fault.what for fault in found), find(path)


def test_a_row_removed_at_the_end_is_missed_by_what_refers_to_it(path: Path) -> None:
    spoil(path, "DELETE FROM exchange WHERE seq = 7")
    assert "round 6: refers to a row of exchange that is not in the log" in find(path)


@pytest.mark.parametrize("table", ["reading", "trailer"])
def test_rows_taken_from_the_end_are_missed(path: Path, table: str) -> None:
    spoil(path, f"DELETE FROM {table} WHERE seq > 2")
    assert f"{table} 2: is the last, where there were 4: what stood behind is missing" in find(path)


def test_a_hole_is_accepted_with_its_erasure_only(path: Path) -> None:
    connection = sqlite3.connect(path)
    (payload,) = connection.execute(f"SELECT {PAYLOAD}").fetchone()
    connection.close()
    spoil(
        path, f"DELETE FROM payload WHERE id = {payload}", f"INSERT INTO erasure VALUES (1, 0, 's', {payload}, x'00')"
    )
    assert find(path) == [f"blob {payload}: its content is missing, and no erasure names it"]
    spoil(path, f"INSERT INTO erasure VALUES (2, 0, 's', {payload}, x'{SLICE}')")
    assert find(path) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE step SET base = 0 WHERE base > 0 AND n = 2",
        "UPDATE step SET is_side = 1 WHERE n = 1",
        "UPDATE step SET relation = 2 WHERE n = 2",
        "DELETE FROM step WHERE n = (SELECT max(n) FROM step)",
        "UPDATE mark SET form = x'00' WHERE n = 1",
        "UPDATE mark SET node = 2 WHERE n = 1",
        "DELETE FROM mark WHERE n = (SELECT max(n) FROM mark)",
        "UPDATE session SET family = 'mine' WHERE id = 1",
        "UPDATE session SET parent = 's' WHERE id = 1",
        "UPDATE session SET created_ms = created_ms + 1 WHERE id = 2",
        "DELETE FROM session WHERE id = 2",
        "UPDATE adoption SET at_ms = 8",
        "INSERT INTO step VALUES (1, 7, 1, NULL, 1, 0, 0, 0, NULL)",
    ],
)
def test_a_row_of_lineage_or_of_a_session_that_was_altered_or_removed_is_missed(path: Path, damage: str) -> None:
    spoil(path, damage)
    table = next(word for word in damage.split() if word in TALLIED)
    assert f"{table}: its rows are not those that were written: one was altered, removed or put in" in find(path)


def test_a_tally_that_is_gone_is_a_fault(path: Path) -> None:
    spoil(path, "DELETE FROM meta WHERE key = 'tally:mark'")
    assert [fault.split(":")[0] for fault in find(path)] == ["mark"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DROP TRIGGER payload_hold", "trigger payload_hold: is missing: rows may have"),
        ("DROP INDEX mark_key", "index mark_key: is missing: rows may have"),
        ("CREATE TRIGGER mine AFTER INSERT ON meta BEGIN SELECT 1; END", "trigger mine: is no part of a log"),
        ("ALTER TABLE permit ADD COLUMN more TEXT", "table permit: differs from the schema of this version"),
    ],
)
def test_a_schema_that_was_altered_is_told(path: Path, damage: str, told: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(damage)
    connection.close()
    (found,) = find(path)
    assert found.startswith(told)


def test_a_damaged_page_is_a_fault_and_the_rest_is_still_looked_at(path: Path) -> None:
    spoil(path, "UPDATE payload SET codec = 9 WHERE codec = 2")
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trailer'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    found = find(path)
    assert any(fault.startswith("file: ") for fault in found)
    assert any(fault.startswith("blob ") and "no codec has the number 9" in fault for fault in found)
    assert any(fault.startswith("round ") or "malformed" in fault for fault in found)


def zero_table(path: Path, name: str) -> None:
    """Write zeros over the first page of a table or an index."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))


@pytest.mark.parametrize(
    "name", ["raw", "sqlite_autoindex_exchange_2", "sqlite_autoindex_round_1", "sqlite_autoindex_blob_1"]
)
def test_what_cannot_be_counted_is_a_fault_beside_those_found_before(path: Path, name: str) -> None:
    spoil(path, "UPDATE payload SET codec = 9 WHERE codec = 2")
    zero_table(path, name)
    found = find(path)
    assert any("cannot be counted: database disk image is malformed" in fault for fault in found)
    assert any(fault.startswith("blob ") or "cannot be read on" in fault for fault in found)


def test_what_can_be_counted_is_beside_what_cannot(path: Path) -> None:
    zero_table(path, "raw")
    found = verify_log(path)
    assert (found.exchanges, found.rounds, found.slices) == (7, 6, 0)


def test_an_index_that_lost_an_entry_is_found(path: Path) -> None:
    lose_index_entry(path)
    assert any("index erasure_payload" in fault for fault in find(path))


def test_many_faults_are_listed_up_to_a_bound(path: Path) -> None:
    spoil(
        path,
        "WITH RECURSIVE n(i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 13000)"
        " INSERT INTO payload SELECT i, 0, x'00' FROM n",
    )
    spoil(path, "UPDATE outcome SET status = 1")
    found = verify_log(path).faults
    assert len(found) == 1001
    assert found[-1] == LogFault("log", "more faults than are listed here")


async def test_a_log_is_verified_while_it_is_written(open_archive: Opener, disk: Disk) -> None:
    archive = open_archive()
    await archive.append(make_opening("e1"), make_round("e1"))
    commit = disk.hold("COMMIT")
    late = archive.append(make_opening("e2"), make_round("e2"))
    await disk.arrived("COMMIT")
    found = await archive.verify()
    assert (found.exchanges, found.faults) == (1, ())
    commit.set()
    assert await late


def test_where_there_is_no_log_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no log"):
        verify_log(tmp_path / "log.db")


async def test_trees_that_hang_on_each_other_are_sound(open_archive: Opener, policy: StorePolicy) -> None:
    archive = open_archive()
    chain = make_chain("a", "!b", "c")
    archive.append(make_opening("e1"), make_step("e1", chain), make_reply("e1", chain, [make_mark("call:1", chain[1])]))
    later = make_chain("d", parent=chain[1].node)
    archive.append(make_opening("e2", key=make_key("b")), make_step("e2", later), make_reply("e2", [], []))
    assert await archive.append(make_opening("e3", key=make_key("b")), make_step("e3", tip=chain[1].node))
    await archive.close()
    assert verify_log(policy.path).faults == ()
