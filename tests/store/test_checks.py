"""What `verify` finds in memory."""

import pytest
from msgspec.structs import replace

from proxy.model.exchange import Opening
from proxy.model.manifest import Blob, BlobPiece, Manifest, Slice, digest_of, encode_recipe, root_of
from proxy.store.checks import verify_tables
from proxy.store.memory import MemoryArchive
from proxy.store.tables import Tables
from tests.store.samples import TENANT, chain_body, make_leaf, make_opening, make_outcome, make_round, make_turns


def false_blob() -> Opening:
    digest = digest_of(b"one thing")
    recipe = encode_recipe((BlobPiece(digest),))
    return make_opening("e1", Manifest(recipe, (), (Blob(digest, b"another"),), 7))


def false_link() -> Opening:
    slices = (Slice(b"L" * 16, root_of(TENANT), b"", digest_of(b"x"), b"x"), *chain_body(make_turns(1)).slices)
    return make_opening("e1", Manifest(b"", slices, (), 0))


@pytest.mark.parametrize(("opening", "where"), [(false_blob(), "blob"), (false_link(), "link")])
async def test_verify_finds_what_does_not_match(opening: Opening, where: str) -> None:
    archive = MemoryArchive()
    assert await archive.append(opening)
    (fault,) = (await archive.verify()).faults
    assert fault.where.startswith(where)


async def test_verify_finds_an_answer_of_the_wrong_size() -> None:
    archive = MemoryArchive()
    assert await archive.append(make_opening(), make_round(), make_outcome(received=b"abc", size=4))
    (fault,) = (await archive.verify()).faults
    assert (fault.where, fault.what) == ("outcome e1/0", "has 3 bytes in place of 4")


def test_verify_finds_a_summary_of_what_is_not_there() -> None:
    turns = make_turns(2)
    leaf = make_leaf("a", [raw for _, raw in turns])
    tables = Tables()
    assert tables.add((make_opening("e1", chain_body(turns)), leaf))
    assert verify_tables(tables).faults == ()
    for change, what in (({"stop": 3}, "not what it stands for"), ({"digests": (b"1", b"2")}, "not in the log")):
        tables.summaries["a"] = replace(leaf, **change)
        (fault,) = verify_tables(tables).faults
        assert fault.where == "summary a" and what in fault.what
