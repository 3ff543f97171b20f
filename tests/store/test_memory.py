import pytest

from proxy.model.exchange import Opening
from proxy.model.manifest import Blob, BlobPiece, Manifest, Slice, digest_of, encode_recipe, keep_whole, root_of
from proxy.store.memory import MemoryArchive
from tests.store.context_contract import ContextContract
from tests.store.contract import ArchiveContract
from tests.store.listing_contract import ListingContract
from tests.store.samples import TENANT, chain_body, make_opening, make_outcome, make_round, make_turns
from tests.store.tree_contract import TreeArchive, TreeContract
from tests.store.unread_contract import UnreadContract


class TestMemoryArchive(ArchiveContract, ContextContract, ListingContract, TreeContract, UnreadContract):
    @pytest.fixture
    def archive(self) -> TreeArchive:
        return MemoryArchive()


async def test_a_future_is_done_at_once() -> None:
    archive = MemoryArchive()
    assert archive.append(make_opening()).result() is True
    assert archive.append(make_opening()).result() is False


async def test_what_was_taken_can_be_read_after_close() -> None:
    archive = MemoryArchive()
    archive.append(make_opening(body=keep_whole(b"x")))
    await archive.close()
    assert await archive.load_request("e1") == b"x"


async def test_a_salt_is_random_and_stays() -> None:
    archive = MemoryArchive()
    assert len(archive.salt) == 32
    assert archive.salt == archive.salt != MemoryArchive().salt


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
