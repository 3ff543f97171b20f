from collections.abc import AsyncIterator

import pytest

from proxy.model.errors import NotFound, ProxyError, StoreUnavailable
from proxy.model.manifest import Blob, BlobPiece, Manifest, digest_of, encode_recipe, root_of
from proxy.store.policy import StorePolicy
from proxy.store.sqlite.reader import SqliteReader
from tests.store.samples import TENANT, chain_body, make_opening, make_turns
from tests.store.sqlite.conftest import Opener
from tests.store.sqlite.spoiling import spoil

TURNS = make_turns(5)
LINKS = [piece.link for piece in chain_body(TURNS).slices]
TOOLS = Blob(digest_of(b"the tools"), b"the tools")


@pytest.fixture
async def reader(open_archive: Opener, policy: StorePolicy) -> AsyncIterator[SqliteReader]:
    """A log with a body in a chain (e1) and one in a blob (e2), no server writing it, nothing read yet."""
    archive = open_archive()
    archive.append(make_opening("e1", chain_body(TURNS)))
    await archive.append(make_opening("e2", Manifest(encode_recipe((BlobPiece(TOOLS.digest),)), (), (TOOLS,), 9)))
    await archive.close()
    reader = SqliteReader(policy.path)
    yield reader
    await reader.close()


def payload_of(content: bytes) -> str:
    return f"(SELECT id FROM blob WHERE digest = x'{digest_of(content).hex()}')"


@pytest.mark.parametrize(
    ("damage", "exchange", "error", "text"),
    [
        (f"DELETE FROM payload WHERE id = {payload_of(TURNS[2][1])}", "e1", NotFound, "part of this body was erased"),
        (f"DELETE FROM payload WHERE id = {payload_of(TOOLS.content)}", "e2", NotFound, "content was erased"),
        (f"DELETE FROM blob WHERE digest = x'{TOOLS.digest.hex()}'", "e2", NotFound, "content was erased"),
        ("DELETE FROM payload WHERE id = (SELECT envelope FROM exchange)", "e1", NotFound, "content was erased"),
        (f"DELETE FROM raw WHERE link = x'{LINKS[4].hex()}'", "e1", StoreUnavailable, "does not reach its root"),
        (f"DELETE FROM raw WHERE link = x'{LINKS[1].hex()}'", "e1", StoreUnavailable, "does not reach its root"),
        ("UPDATE tenant SET fingerprint = x'00'", "e1", StoreUnavailable, "does not reach its root"),
        ("UPDATE payload SET bytes = x'0a07'", "e2", StoreUnavailable, "recipe in the log is damaged"),
    ],
)
async def test_a_body_that_cannot_be_had_whole_is_an_error_that_says_why(
    reader: SqliteReader, policy: StorePolicy, damage: str, exchange: str, error: type[ProxyError], text: str
) -> None:
    spoil(policy.path, damage)
    with pytest.raises(error, match=text):
        await reader.load_request(exchange)


async def test_an_empty_chain_is_no_bytes(open_archive: Opener) -> None:
    archive = open_archive()
    await archive.append(make_opening("e1", chain_body([])))
    assert await archive.load_request("e1") == b'{"messages":[]}'


async def test_the_gap_before_the_first_element_and_between_others_is_kept(open_archive: Opener) -> None:
    archive = open_archive()
    await archive.append(make_opening("e1", chain_body([(b"\n  ", b"1"), (b" ,\t", b"2"), (b",", b"")])))
    assert await archive.load_request("e1") == b'{"messages":[\n  1 ,\t2,]}'


def test_the_samples_begin_at_the_root() -> None:
    assert chain_body(TURNS).slices[0].parent == root_of(TENANT)
