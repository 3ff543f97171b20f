"""What `verify` finds in memory."""

import pytest

from proxy.model.exchange import Opening
from proxy.model.manifest import Blob, BlobPiece, Manifest, Slice, digest_of, encode_recipe, root_of
from proxy.store.memory import MemoryArchive
from tests.store.samples import TENANT, chain_body, make_opening, make_outcome, make_round, make_turns


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
