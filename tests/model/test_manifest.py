"""The byte manifest: recipes are read back as written, links commit to everything before them."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.manifest import (
    DIGEST_SIZE,
    LINK_SIZE,
    Blob,
    BlobPiece,
    ChainPiece,
    Manifest,
    Piece,
    Slice,
    chain_slices,
    compute_digest,
    compute_link,
    compute_root_link,
    decode_recipe,
    encode_recipe,
    make_capped_manifest,
    make_encoded_manifest,
    make_head_manifest,
    make_manifest,
)

ROOT = compute_root_link(b"tenant")

digests = st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE)
links = st.binary(min_size=LINK_SIZE, max_size=LINK_SIZE)
pieces = st.lists(st.one_of(st.binary(), st.builds(BlobPiece, digests), st.builds(ChainPiece, links)))
elements = st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)))


@given(pieces)
def test_a_recipe_is_read_back_as_it_was_written(written: list[Piece]) -> None:
    assert decode_recipe(encode_recipe(written)) == tuple(written)


@given(pieces, st.data())
def test_a_recipe_cut_inside_a_piece_is_refused(written: list[Piece], data: st.DataObject) -> None:
    recipe = encode_recipe([*written, b"last"])
    cut = data.draw(st.integers(len(encode_recipe(written)) + 1, len(recipe) - 1))
    with pytest.raises(ValueError, match="cut short"):
        decode_recipe(recipe[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_recipe_spelled_in_one_way_or_none_at_all(recipe: bytes) -> None:
    try:
        read = decode_recipe(recipe)
    except ValueError:
        return
    assert encode_recipe(read) == recipe


@pytest.mark.parametrize(
    "recipe",
    [
        b"\x03\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x01x",
        b"\x02\x00\x00\x00\x20" + b"x" * DIGEST_SIZE,
        b"\x01\x00\x00\x00\x10" + b"x" * LINK_SIZE,
    ],
)
def test_an_unknown_tag_or_a_digest_of_the_wrong_size_is_refused(recipe: bytes) -> None:
    with pytest.raises(ValueError, match="no recipe piece"):
        decode_recipe(recipe)


@given(st.binary(min_size=1))
def test_a_body_kept_whole_is_one_blob_named_by_its_digest(content: bytes) -> None:
    manifest = make_manifest(content)
    digest = hashlib.sha256(content).digest()
    assert decode_recipe(manifest.recipe) == (BlobPiece(digest),)
    assert manifest.blobs == (Blob(digest, content),)
    assert (manifest.slices, manifest.size, manifest.whole_digest) == ((), len(content), b"")


def test_an_empty_body_needs_nothing() -> None:
    assert make_manifest(b"") == Manifest(b"", (), (), 0, b"")


def test_a_capped_body_says_how_large_it_was_and_what_its_whole_digest_is() -> None:
    whole = b"head and the rest"
    manifest = make_head_manifest(whole[:4], len(whole), compute_digest(whole))
    assert decode_recipe(manifest.recipe) == (BlobPiece(compute_digest(b"head")),)
    assert [blob.content for blob in manifest.blobs] == [b"head"]
    assert (manifest.size, manifest.whole_digest) == (len(whole), compute_digest(whole))


def test_a_body_that_is_not_split_is_kept_to_the_cap() -> None:
    assert make_capped_manifest(b"0123", 4) == make_manifest(b"0123")
    assert make_capped_manifest(b"01234", 4) == make_head_manifest(b"0123", 5, compute_digest(b"01234"))


def test_content_that_is_in_the_log_already_has_no_weight() -> None:
    (piece,) = chain_slices(ROOT, [(b"", b"x" * 1000)])
    lent = Slice(piece.link, piece.parent, piece.gap, piece.digest, None)
    assert Manifest(b"", (piece,), (), 0).weight == Manifest(b"", (lent,), (), 0).weight + 1000


@given(elements)
def test_each_slice_hangs_on_the_one_before_and_names_its_own_content(parts: list[tuple[bytes, bytes]]) -> None:
    slices = list(chain_slices(ROOT, parts))
    assert [(s.gap, s.content) for s in slices] == parts
    assert [s.parent for s in slices] == [ROOT, *(s.link for s in slices)][: len(slices)]
    assert all(
        s.digest == compute_digest(s.content or b"") and s.link == compute_link(s.parent, s.gap, s.digest)
        for s in slices
    )
    assert all(len(s.link) == LINK_SIZE for s in slices)


@given(elements, elements)
def test_two_chains_end_in_one_link_only_if_they_are_the_same(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    def last(parts: list[tuple[bytes, bytes]]) -> bytes:
        return [ROOT, *(s.link for s in chain_slices(ROOT, parts))][-1]

    assert (last(one) == last(other)) == (one == other)


@given(elements, st.integers(0, 5))
def test_a_chain_goes_on_from_any_of_its_links(parts: list[tuple[bytes, bytes]], count: int) -> None:
    whole = list(chain_slices(ROOT, parts))
    parent = ([ROOT, *(s.link for s in whole)])[min(count, len(parts))]
    assert list(chain_slices(parent, parts[count:])) == whole[count:]


def test_moving_bytes_between_gap_and_digest_changes_the_link() -> None:
    assert compute_link(ROOT, b"1", b"2" * 32) != compute_link(ROOT, b"12", b"2" * 31)


def test_chains_of_two_tenants_have_different_roots() -> None:
    assert compute_root_link(b"a") != compute_root_link(b"b")
    assert len(compute_root_link(b"a")) == LINK_SIZE


def test_a_manifest_weighs_its_recipe_its_slices_and_its_blobs() -> None:
    (one,) = chain_slices(ROOT, [(b"", b"c" * 1000)])
    bare = Manifest(b"r" * 10, (), (), 0)
    assert bare.weight == 10
    assert Manifest(b"r" * 10, (), (Blob(b"", b"b" * 300),), 0).weight == 310
    assert 1010 <= Manifest(b"r" * 10, (one,), (), 0).weight <= 1200
    assert isinstance(one, Slice)


def join_encoded(manifest: Manifest) -> bytes:
    """The body that a manifest of one chain describes."""
    head, *tail = decode_recipe(manifest.recipe)
    assert isinstance(head, bytes)
    assert tail == [ChainPiece(manifest.slices[-1].link)] if manifest.slices else not tail
    return head + b"".join(each.content or b"" for each in manifest.slices)


@pytest.mark.parametrize("size", [1, 16, 17, 4112, 4113, 30_000])
def test_an_encoded_body_is_a_chain_of_its_pieces(size: int) -> None:
    content = random.Random(size).randbytes(size)
    manifest = make_encoded_manifest(b"tenant", content, size)
    assert (join_encoded(manifest), manifest.size, manifest.whole_digest) == (content, size, b"")
    assert make_encoded_manifest(b"tenant", content, size - 1) == make_capped_manifest(content, size - 1)


def test_encoded_bodies_that_begin_alike_have_their_first_pieces_in_common() -> None:
    rest = random.Random(1).randbytes(40_000)
    first, second = (
        make_encoded_manifest(b"tenant", b"\x1f\x8b\x08\x00" + time + rest[:size], 100_000)
        for time, size in ((b"1234", 20_000), (b"5678", 40_000))
    )
    shared = {each.link for each in first.slices} & {each.link for each in second.slices}
    assert len(shared) == len(first.slices) - 1
    other = make_encoded_manifest(b"another", b"\x1f\x8b\x08\x001234" + rest[:20_000], 100_000)
    assert not {each.link for each in first.slices} & {each.link for each in other.slices}
