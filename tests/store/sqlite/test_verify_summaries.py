"""What `verify` finds wrong with summaries."""

from pathlib import Path

import pytest

from proxy.model.manifest import compute_digest
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.codec import digest_summary
from proxy.store.sqlite.verify import verify_log
from tests.store.samples import (
    OTHER_TENANT,
    chain_body,
    make_condensed,
    make_key,
    make_leaf,
    make_opening,
    make_turns,
)
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil

TURNS = make_turns(6, size=1500)
RAW = [content for _, content in TURNS]
OTHER = make_key("other", OTHER_TENANT)
POOR = make_leaf("poor", RAW[:2], level=3, text="little")
ONE, TWO = make_leaf("one", RAW[:2], supersedes=["poor"]), make_leaf("two", RAW[2:5], 2, text="of two")
BOTH = make_condensed("both", [ONE, TWO])


@pytest.fixture
async def path(open_archive: Opener, policy: StorePolicy) -> Path:
    """A closed log with four summaries: 1 and 2 of the same messages, 3 of the next, 4 of 2 and 3."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)))
    archive.append(make_opening("e2", chain_body(TURNS, tenant=OTHER_TENANT), key=OTHER))
    archive.append(POOR, ONE, TWO, BOTH)
    await archive.close()
    assert archive.health.dropped == 0
    return policy.path


def find(path: Path) -> list[str]:
    return [f"{fault.where}: {fault.what}" for fault in verify_log(path).faults]


def name_blob(content: bytes, tenant: int = 1) -> str:
    return f"(SELECT id FROM blob WHERE tenant = {tenant} AND digest = x'{compute_digest(content).hex()}')"


def write_digest(*named: list[str]) -> str:
    """The digest of a condensed summary that names these."""
    return f"x'{digest_summary([], *named).hex()}'"


TEXT, MESSAGE = name_blob(b"of two"), name_blob(RAW[3])

DAMAGE = {
    # seals
    "an id": ("UPDATE summary SET id = 'x' WHERE seq = 4", "summary 4", "was altered"),
    "an owner": ("UPDATE summary SET session = 2 WHERE seq = 4", "summary 4", "was altered"),
    "a format": ("UPDATE summary SET wire = 'w' WHERE seq = 1", "summary 1", "was altered"),
    "a beginning": ("UPDATE summary SET start = 3 WHERE seq = 3", "summary 3", "was altered"),
    "an end": ("UPDATE summary SET stop = 6 WHERE seq = 3", "summary 3", "was altered"),
    "a node": ("UPDATE summary SET last = zeroblob(16) WHERE seq = 1", "summary 1", "was altered"),
    "a kind": ("UPDATE summary SET kind = 'leaf' WHERE seq = 4", "summary 4", "was altered"),
    "a level": ("UPDATE summary SET level = 1 WHERE seq = 1", "summary 1", "was altered"),
    "what is lasting": ("UPDATE summary SET is_provisional = 0 WHERE seq = 1", "summary 1", "was altered"),
    "tokens": ("UPDATE summary SET tokens = 1 WHERE seq = 1", "summary 1", "was altered"),
    "what was covered": ("UPDATE summary SET covered = 1 WHERE seq = 1", "summary 1", "was altered"),
    "a time": ("UPDATE summary SET made_ms = 1 WHERE seq = 1", "summary 1", "was altered"),
    "a call": ("UPDATE summary SET exchange = 1 WHERE seq = 1", "summary 1", "was altered"),
    "a model": ("UPDATE summary SET model = 'm' WHERE seq = 1", "summary 1", "was altered"),
    "calls": ("UPDATE summary SET calls = '[\"e1\"]' WHERE seq = 1", "summary 1", "was altered"),
    "another text": ("UPDATE summary SET text = notes WHERE seq = 1", "summary 1", "was altered"),
    "other notes": ("UPDATE summary SET notes = text WHERE seq = 1", "summary 1", "was altered"),
    "a removed summary": ("DELETE FROM summary WHERE seq = 2", "summary 3", "is preceded by 1"),
    "the last summary": ("DELETE FROM summary WHERE seq = 4", "summary 4", "there are edges of it"),
    # what a summary names
    "messages": ("UPDATE summary SET messages = '[]' WHERE seq = 3", "summary 3", "what it names was altered"),
    "their order": (
        "UPDATE summary SET messages = (SELECT json_group_array(value) FROM"
        " (SELECT m.value FROM json_each(messages) m ORDER BY m.key DESC)) WHERE seq = 3",
        "summary 3",
        "what it names was altered",
    ),
    "no messages": ("UPDATE summary SET messages = 'x' WHERE seq = 3", "summary 3", "cannot be read"),
    "messages of others": (
        f"UPDATE summary SET messages = '[' || {name_blob(RAW[0], 2)} || ']' WHERE seq = 1",
        "summary 1",
        "not in the log",
    ),
    "a digest": ("UPDATE summary SET digest = zeroblob(32) WHERE seq = 1", "summary 1", "what it names was altered"),
    "a removed message": (f"DELETE FROM blob WHERE id = {MESSAGE}", "summary 3", "not in the log"),
    "a missing message": (f"DELETE FROM payload WHERE id = {MESSAGE}", "blob", "no erasure names it"),
    "a removed parent": (
        "DELETE FROM summary_edge WHERE summary = 4 AND i = 1",
        "summary 4",
        "what it names was altered",
    ),
    "no parent": ("UPDATE summary_edge SET other = 9 WHERE summary = 4 AND i = 1", "summary 4", "not in the log"),
    "itself": ("UPDATE summary_edge SET other = 4 WHERE summary = 4 AND i = 1", "summary 4", "not older"),
    "another parent": (
        "UPDATE summary_edge SET other = 1 WHERE summary = 4 AND i = 0",
        "summary 4",
        "what it names was altered",
    ),
    "what it stands in place of": (
        "DELETE FROM summary_edge WHERE relation = 'supersedes'",
        "summary 2",
        "what it names was altered",
    ),
    "more that it stands in place of": (
        "INSERT INTO summary_edge VALUES (4, 'supersedes', 0, 1)",
        "summary 4",
        "what it names was altered",
    ),
    "another relation": ("INSERT INTO summary_edge VALUES (4, 'uncle', 0, 1)", "summary 4", "there are edges of it"),
    # a gap, with a digest that commits to it
    "a gap": (
        f"UPDATE summary SET digest = {write_digest(['one', 'two'], [])}, start = 1 WHERE seq = 4",
        "summary 4",
        "not what it stands for",
    ),
    # content
    "a text": (f"UPDATE payload SET bytes = x'00' WHERE id = {TEXT}", "blob", "does not match its digest"),
    "a missing text": (f"DELETE FROM payload WHERE id = {TEXT}", "blob", "no erasure names it"),
    "a removed text": (f"DELETE FROM blob WHERE id = {TEXT}", "summary 3", "was altered"),
}


@pytest.mark.parametrize(("damage", "where", "what"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_found_and_named(path: Path, damage: str, where: str, what: str) -> None:
    spoil(path, damage)
    found = verify_log(path).faults
    assert any(fault.where.startswith(where) and what in fault.what for fault in found), find(path)


def test_content_may_be_missing_where_it_was_erased(path: Path) -> None:
    spoil(
        path,
        f"INSERT INTO erasure SELECT id, 0, 's', id, digest FROM blob WHERE id IN ({TEXT}, {MESSAGE})",
        f"DELETE FROM payload WHERE id IN ({TEXT}, {MESSAGE})",
    )
    assert find(path) == []
