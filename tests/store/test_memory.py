import pytest

from proxy.model.manifest import make_manifest
from tests.store.context_contract import ContextContract
from tests.store.contract import ArchiveContract
from tests.store.listing_contract import ListingContract
from tests.store.memory_contract import MemoryContract
from tests.store.samples import make_opening
from tests.store.summary_contract import SummaryContract
from tests.store.tree_contract import TreeArchive, TreeContract
from tests.store.unread_contract import UnreadContract
from tests.support.memory_store.archive import MemoryArchive


class TestMemoryArchive(
    ArchiveContract, ContextContract, ListingContract, MemoryContract, SummaryContract, TreeContract, UnreadContract
):
    @pytest.fixture
    def archive(self) -> TreeArchive:
        return MemoryArchive()


async def test_a_future_is_done_at_once() -> None:
    archive = MemoryArchive()
    assert archive.append(make_opening()).result() is True
    assert archive.append(make_opening()).result() is False


async def test_what_was_taken_can_be_read_after_close() -> None:
    archive = MemoryArchive()
    archive.append(make_opening(body=make_manifest(b"x")))
    await archive.close()
    assert await archive.load_request("e1") == b"x"


async def test_a_salt_is_random_and_stays() -> None:
    archive = MemoryArchive()
    assert len(archive.salt) == 32
    assert archive.salt == archive.salt != MemoryArchive().salt
