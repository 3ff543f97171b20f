"""What `verify` finds in a log that was damaged on purpose: calls and trees, managed context, summaries."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

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
from proxy.store.sqlite.archive import SqliteArchive, open_sqlite
from proxy.store.sqlite.codec import digest_summary
from proxy.store.sqlite.schema import TALLIED
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_chain,
    make_condensed,
    make_epoch,
    make_fingerprint,
    make_key,
    make_leaf,
    make_memory_order,
    make_opening,
    make_original,
    make_outcome,
    make_pin,
    make_plan,
    make_reading,
    make_recalled,
    make_remembered,
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
RAW = [content for _, content in TURNS]
LINKS = [piece.link.hex() for piece in chain_body(TURNS).slices]
SLICE = compute_digest(RAW[2]).hex()
TOOLS = Blob(compute_digest(b"the tools"), b"the tools")
STREAM = b"data: {}\n\n" * 400
CHAIN = make_chain("a", "!b", "c", "!d", "e", "!f")
OTHER = make_key("other", OTHER_TENANT)
LEDGER = b'{"role":"user","content":"[what was done]"}'


def write_calls(archive: SqliteArchive) -> None:
    """Calls, with trees, of two sessions."""
    usage = Usage(input=10, output=2)
    for i in range(4):
        exchange = f"e{i}"
        archive.append(make_opening(exchange, chain_body(TURNS[: i + 3])), make_round(exchange))
        archive.append(make_outcome(exchange, received=STREAM), make_trailer(0, b"\n", exchange))
        archive.append(make_reading(exchange, usage=usage, error="overloaded"), is_urgent=False)
    body = Manifest(encode_recipe((b"[", BlobPiece(TOOLS.digest), b"]")), (), (TOOLS,), 11)
    archive.append(make_opening("e4", body, key=OTHER), make_round("e4", 0, make_manifest(b"x")))
    archive.append(make_opening("e6", chain_body([])))
    for i in range(3):
        marks = [make_fingerprint(f"call:{i}", CHAIN[0])]
        archive.append(make_step(f"e{i}", CHAIN[2 * i : 2 * i + 1], base=2 * i, fingerprints=marks))
        archive.append(make_reply(f"e{i}", CHAIN[2 * i + 1 : 2 * i + 2]))
    archive.append(make_step("e4", make_chain("a", parent=CHAIN[5].node)), make_step("e3"))
    archive.append(Adoption(OTHER.id, make_key().id, CHAIN[3].node, 7))
    archive.append(make_opening("e5", make_head_manifest(b"head", 900, compute_digest(b"all"))), make_round("e5"))
    archive.append(make_outcome("e5", received=b"head", size=900, whole=compute_digest(b"all")))


def write_context(archive: SqliteArchive) -> None:
    """Two managed sessions, one of which goes on from the other."""
    archive.append(make_opening("e1", chain_body(TURNS)), make_step("e1", CHAIN[:2]))
    archive.append(make_opening("e2", chain_body(TURNS, tenant=OTHER_TENANT), key=OTHER), make_step("e2", CHAIN[:2]))
    archive.append(Adoption(OTHER.id, make_key().id, CHAIN[0].node, 7))
    originals = [make_original("r1", RAW[1], RAW[2]), make_original("r2", RAW[3], place=3)]
    archive.append(make_epoch("p1", (RAW[0], LEDGER), originals, exchange="e1"))
    archive.append(make_epoch("p2", (RAW[0], RAW[5]), originals[:1], session=OTHER.id, parent="p1"))
    archive.append(make_epoch("p3", (), parent="p1"))
    archive.append(make_plan("e1", epoch="p1", owed=2.25), make_plan("e1", 1), make_plan("e2", epoch="p2"))
    archive.append(replace(make_epoch("p4"), tool=b"a tool"), make_recalled("e1", "p4"), make_recalled("e2", "p4"))
    archive.append(make_pin(CHAIN[0].node), make_pin(CHAIN[0].node, is_on=False), make_pin(CHAIN[1].node))
    archive.append(make_remembered(), make_memory_order())


def write_summaries(archive: SqliteArchive) -> None:
    """Four summaries: 1 and 2 of the same messages, 3 of the next, 4 of 2 and 3."""
    archive.append(make_opening("e1", chain_body(TURNS)))
    archive.append(make_opening("e2", chain_body(TURNS, tenant=OTHER_TENANT), key=OTHER))
    one, two = make_leaf("one", RAW[:2], supersedes=["poor"]), make_leaf("two", RAW[2:5], 2, text="of two")
    archive.append(make_leaf("poor", RAW[:2], level=3, text="little"), one, two, make_condensed("both", [one, two]))


WRITERS = {"calls": write_calls, "context": write_context, "summaries": write_summaries}


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a closed log of each kind, as nobody has touched it."""
    folder = tmp_path_factory.mktemp("sound")

    async def make(name: str) -> None:
        policy = StorePolicy(folder / f"{name}.db", durability="full")
        archive = open_sqlite(policy, asyncio.get_running_loop())
        WRITERS[name](archive)
        await archive.close()
        assert archive.health.dropped == 0

    for name in WRITERS:
        asyncio.run(make(name))
    return folder


@pytest.fixture
def path(sound: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one of these logs to damage: of calls, unless the test names another."""
    return Path(shutil.copy(sound / f"{getattr(request, 'param', 'calls')}.db", tmp_path / "log.db"))


def find(path: Path) -> list[str]:
    return [f"{fault.where}: {fault.what}" for fault in verify_log(path).faults]


@pytest.mark.parametrize("path", WRITERS, indirect=True)
def test_a_sound_log_has_no_faults(path: Path) -> None:
    assert find(path) == []


def test_what_was_looked_at_is_counted(path: Path) -> None:
    found = verify_log(path)
    assert (found.exchanges, found.rounds, found.slices) == (7, 6, 6)


def name_blob(content: bytes, tenant: int = 1) -> str:
    return f"(SELECT id FROM blob WHERE tenant = {tenant} AND digest = x'{compute_digest(content).hex()}')"


PAYLOAD, BLOB = f"(SELECT id FROM blob WHERE digest = x'{SLICE}')", name_blob(LEDGER)
TEXT, MESSAGE = name_blob(b"of two"), name_blob(RAW[3])
# What the statements of the table name. `GAP` is a digest that commits to the gap of its row.
NAMES = {f"LINK{i}": link for i, link in enumerate(LINKS)} | {
    "BLOB": BLOB,
    "FOREIGN": name_blob(RAW[0], 2),
    "GAP": f"x'{digest_summary([], ['one', 'two'], []).hex()}'",
    "MESSAGE": MESSAGE,
    "PAYLOAD": PAYLOAD,
    "SESSION": make_key().id,
    "SLICE": SLICE,
    "TEXT": TEXT,
    "TOOLS": TOOLS.digest.hex(),
}


def read_damage() -> Iterator[object]:
    log = ""
    for line in Path(__file__).with_name("damage.txt").read_text().splitlines()[1:]:
        if line.startswith("["):
            log = line.strip("[]")
        else:
            name, statement, where, what = line.format_map(NAMES).split(" | ")
            yield pytest.param(log, statement, where, what, id=f"{log}: {name}")


@pytest.mark.parametrize(("path", "damage", "where", "what"), list(read_damage()), indirect=["path"])
def test_damage_is_found_and_named(path: Path, damage: str, where: str, what: str) -> None:
    spoil(path, damage)
    found = verify_log(path).faults
    assert any(fault.where.startswith(where) and what in fault.what for fault in found), find(path)


SEALED = {
    "calls": ("exchange", "round", "outcome", "trailer", "reading"),
    "context": ("epoch", "decision", "pin", "recalled", "memory"),
    "summaries": ("summary",),
}


@pytest.mark.parametrize(
    ("path", "table"), [(log, table) for log, tables in SEALED.items() for table in tables], indirect=["path"]
)
def test_whatever_is_altered_of_a_sealed_row_is_noticed(path: Path, table: str, tmp_path: Path) -> None:
    row = 5 if table == "round" else 2  # the one that was not sent as it came
    connection = sqlite3.connect(path)
    columns = [(name, kind) for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()
    for name, kind in columns:
        if name in ("seq", "seal"):
            continue
        altered = Path(shutil.copy(path, tmp_path / "altered.db"))
        value = {"INTEGER": 7001, "REAL": 0.5, "TEXT": "'x'", "BLOB": "x'07'"}[kind]
        spoil(altered, f"UPDATE {table} SET {name} = {value} WHERE seq = {row}")
        assert any(fault.startswith(f"{table} {row}") or "was altered" in fault for fault in find(altered)), name


@pytest.mark.parametrize(("path", "blobs"), [("context", BLOB), ("summaries", f"{TEXT}, {MESSAGE}")], indirect=["path"])
def test_content_may_be_missing_where_it_was_erased(path: Path, blobs: str) -> None:
    spoil(
        path,
        f"INSERT INTO erasure SELECT id, 0, 's', id, digest FROM blob WHERE id IN ({blobs})",
        f"DELETE FROM payload WHERE id IN ({blobs})",
    )
    assert find(path) == []


def test_edits_may_be_missing_where_they_were_erased(sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(sound / "context.db", tmp_path / "log.db"))
    spoil(
        path,
        "INSERT INTO erasure SELECT edits + 1000, 0, 's', edits, edits_digest FROM epoch WHERE seq = 1",
        "DELETE FROM payload WHERE id = (SELECT edits FROM epoch WHERE seq = 1)",
    )
    assert find(path) == []


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
    archive.append(
        make_opening("e1"), make_step("e1", chain), make_reply("e1", chain, [make_fingerprint("call:1", chain[1])])
    )
    later = make_chain("d", parent=chain[1].node)
    archive.append(make_opening("e2", key=make_key("b")), make_step("e2", later), make_reply("e2", [], []))
    assert await archive.append(make_opening("e3", key=make_key("b")), make_step("e3", tip=chain[1].node))
    await archive.close()
    assert verify_log(policy.path).faults == ()
