"""What `verify` finds wrong with epochs, plans, references and pins."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.model.lineage import Adoption
from proxy.model.manifest import compute_digest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_chain,
    make_epoch,
    make_key,
    make_memory_order,
    make_opening,
    make_original,
    make_pin,
    make_plan,
    make_recalled,
    make_remembered,
    make_step,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil

TURNS = make_turns(6, size=1500)
RAW = [content for _, content in TURNS]
LEDGER = b'{"role":"user","content":"[what was done]"}'
CHAIN = make_chain("a", "!b")
OTHER = make_key("other", OTHER_TENANT)


@pytest.fixture
async def path(open_archive: Opener, policy: StorePolicy) -> Path:
    """A closed log with two managed sessions, one of which goes on from the other."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)), make_step("e1", CHAIN))
    archive.append(make_opening("e2", chain_body(TURNS, tenant=OTHER_TENANT), key=OTHER), make_step("e2", CHAIN))
    archive.append(Adoption(OTHER.id, make_key().id, CHAIN[0].node, 7))
    originals = [make_original("r1", RAW[1], RAW[2]), make_original("r2", RAW[3], place=3)]
    archive.append(make_epoch("p1", (RAW[0], LEDGER), originals, exchange="e1"))
    archive.append(make_epoch("p2", (RAW[0], RAW[5]), originals[:1], session=OTHER.id, parent="p1"))
    archive.append(make_epoch("p3", (), parent="p1"))
    archive.append(make_plan("e1", epoch="p1", owed=2.25), make_plan("e1", 1), make_plan("e2", epoch="p2"))
    archive.append(replace(make_epoch("p4"), tool=b"a tool"), make_recalled("e1", "p4"), make_recalled("e2", "p4"))
    archive.append(make_pin(CHAIN[0].node), make_pin(CHAIN[0].node, is_on=False), make_pin(CHAIN[1].node))
    archive.append(make_remembered(), make_memory_order())
    await archive.close()
    assert archive.health.dropped == 0
    return policy.path


def find(path: Path) -> list[str]:
    return [f"{fault.where}: {fault.what}" for fault in verify_log(path).faults]


BLOB = f"(SELECT id FROM blob WHERE tenant = 1 AND digest = x'{compute_digest(LEDGER).hex()}')"
RENDERED = "SELECT rendered FROM epoch WHERE seq = 2"

DAMAGE = {
    # seals
    "a view": ("UPDATE epoch SET view = 'cheaper' WHERE seq = 1", "epoch 1", "was altered"),
    "an id": ("UPDATE epoch SET id = 'p9' WHERE seq = 3", "epoch 3", "was altered"),
    "an owner": ("UPDATE epoch SET session = 2 WHERE seq = 3", "epoch 3", "was altered"),
    "a parent": ("UPDATE epoch SET parent = NULL WHERE seq = 2", "epoch 2", "was altered"),
    "a depth": ("UPDATE epoch SET depth = 5 WHERE seq = 2", "epoch 2", "was altered"),
    "a node": ("UPDATE epoch SET through = zeroblob(16) WHERE seq = 2", "epoch 2", "was altered"),
    "a reason": ("UPDATE epoch SET why = 'cold' WHERE seq = 1", "epoch 1", "was altered"),
    "a call": ("UPDATE epoch SET exchange = 2 WHERE seq = 1", "epoch 1", "was altered"),
    "tokens": ("UPDATE epoch SET tokens_before = 1 WHERE seq = 1", "epoch 1", "was altered"),
    "what is sent": (f"UPDATE epoch SET rendered = ({RENDERED}) WHERE seq = 1", "epoch 1", "was altered"),
    "what is meant": ("UPDATE epoch SET originals = '[]' WHERE seq = 2", "epoch 2", "was altered"),
    "a digest": ("UPDATE epoch SET digest = zeroblob(32) WHERE seq = 1", "epoch 1", "its digest does not match"),
    "a removed epoch": ("DELETE FROM epoch WHERE seq = 2", "epoch 3", "is preceded by 1"),
    "the last epoch": ("DELETE FROM epoch WHERE seq >= 2", "decision 3", "refers to a row of epoch"),
    "a tool": ("UPDATE epoch SET tool = x'00' WHERE seq = 4", "epoch 4", "was altered"),
    "no tool": ("UPDATE epoch SET tool = NULL WHERE seq = 4", "epoch 4", "was altered"),
    "what was recalled": ("UPDATE recalled SET node = x'00' WHERE seq = 1", "recalled 1", "was altered"),
    "memory": ("UPDATE memory SET stop = 9 WHERE seq = 1", "memory 1", "was altered"),
    "memory's content": (
        "DELETE FROM payload WHERE id = (SELECT content FROM memory WHERE seq = 1)",
        "memory 1 (content)",
        "no erasure names it",
    ),
    "removed recalling": ("DELETE FROM recalled WHERE seq = 1", "recalled 2", "is preceded by 0"),
    "rounds": (
        "UPDATE payload SET codec = 0, bytes = x'90' WHERE id = (SELECT rounds FROM recalled WHERE seq = 2)",
        "recalled 2 (rounds)",
        "does not match its digest",
    ),
    "missing rounds": (
        "DELETE FROM payload WHERE id = (SELECT rounds FROM recalled WHERE seq = 2)",
        "recalled 2 (rounds)",
        "content is missing, and no erasure",
    ),
    "a rung": ("UPDATE decision SET rung = 'minimal' WHERE seq = 2", "decision 2", "was altered"),
    "an account": ("UPDATE decision SET owed = 2.5 WHERE seq = 1", "decision 1", "was altered"),
    "a saving": ("UPDATE decision SET saving = NULL WHERE seq = 1", "decision 1", "was altered"),
    "its epoch": ("UPDATE decision SET epoch = 2 WHERE seq = 1", "decision 1", "was altered"),
    "its session": ("UPDATE decision SET session = 2 WHERE seq = 1", "decision 1", "was altered"),
    "a removed decision": ("DELETE FROM decision WHERE seq = 1", "decision 2", "is preceded by 0"),
    "a pin": ("UPDATE pin SET is_on = 1 WHERE seq = 2", "pin 2", "was altered"),
    "its node": ("UPDATE pin SET node = x'00' WHERE seq = 2", "pin 2", "was altered"),
    "a removed pin": ("DELETE FROM pin WHERE seq = 2", "pin 3", "is preceded by 1"),
    # what an epoch names
    "a reference's name": ("UPDATE original SET name = 'r9' WHERE id = 1", "epoch 2", "what it names was altered"),
    "a reference's place": ("UPDATE original SET place = 2 WHERE id = 2", "epoch 1", "what it names was altered"),
    "a reference's start": ("UPDATE original SET start = 2 WHERE id = 1", "epoch 1", "what it names was altered"),
    "a reference's wire": ("UPDATE original SET wire = 'w' WHERE id = 1", "epoch 2", "what it names was altered"),
    "a reference's target": (
        "UPDATE original SET messages = (SELECT messages FROM original WHERE id = 2) WHERE id = 1",
        "epoch 1",
        "what it names was altered",
    ),
    "a reference's end": ("UPDATE original SET messages = '[]' WHERE id = 1", "epoch 1", "what it names was altered"),
    "a reference's owner": (
        "UPDATE original SET session = 2 WHERE id = 1",
        "epoch 1",
        "is not in the log",
    ),
    "no reference": ("UPDATE original SET messages = 'x' WHERE id = 1", "epoch 1", "cannot be read"),
    "a removed reference": ("DELETE FROM original WHERE id = 1", "epoch 2", "is not in the log"),
    "a reference of nobody": (
        "UPDATE original SET session = 9 WHERE id = 2",
        "epoch 1",
        "is not in the log",
    ),
    "a reference too many": (
        "INSERT INTO original VALUES (9, 'r9', 1, 'w', 0, 0, '[]')",
        "original 9",
        "no epoch names it",
    ),
    "a removed message": (f"DELETE FROM blob WHERE id = {BLOB}", "epoch 1", "is not in the log"),
    "a message of others": (
        f"UPDATE blob SET tenant = 2 WHERE id = {BLOB}",
        "epoch 1",
        "is not in the log",
    ),
    "a message": (f"UPDATE payload SET bytes = x'00' WHERE id = {BLOB}", "blob", "does not match its digest"),
    "a missing message": (f"DELETE FROM payload WHERE id = {BLOB}", "blob", "content is missing, and no erasure"),
    # edits
    "edits": (
        "UPDATE payload SET codec = 0, bytes = x'5b5d' WHERE id = (SELECT edits FROM epoch WHERE seq = 2)",
        "epoch 2 (edits)",
        "does not match its digest",
    ),
    "missing edits": (
        "DELETE FROM payload WHERE id = (SELECT edits FROM epoch WHERE seq = 3)",
        "epoch 3 (edits)",
        "content is missing, and no erasure",
    ),
}


@pytest.mark.parametrize(("damage", "where", "what"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_found_and_named(path: Path, damage: str, where: str, what: str) -> None:
    spoil(path, damage)
    found = verify_log(path).faults
    assert any(fault.where.startswith(where) and what in fault.what for fault in found), find(path)


def test_content_may_be_missing_where_it_was_erased(path: Path) -> None:
    spoil(
        path,
        f"INSERT INTO erasure SELECT id, 0, 's', id, digest FROM blob WHERE id = {BLOB}",
        "INSERT INTO erasure SELECT edits + 1000, 0, 's', edits, edits_digest FROM epoch WHERE seq = 1",
        f"DELETE FROM payload WHERE id = {BLOB} OR id = (SELECT edits FROM epoch WHERE seq = 1)",
    )
    assert find(path) == []
