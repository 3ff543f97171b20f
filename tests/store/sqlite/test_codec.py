import hashlib
import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.model.exchange import Headers
from proxy.model.manifest import BlobPiece, ChainPiece, Piece, compute_digest, encode_recipe
from proxy.store.sqlite.codec import (
    DEFLATED,
    PACKED,
    RAW,
    SMALL,
    TINY,
    decode_headers,
    digest_epoch,
    digest_summary,
    encode_changes,
    encode_headers,
    join_recipe,
    pack,
    seal_after,
    seal_node,
    split_recipe,
    unpack,
)
from tests.store.samples import make_chain, make_original

CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n'
)
STREAM = b"".join(CHUNK % i for i in range(300))
NAMES: Headers = ((b"date", b"Mon"), (b"server", b"cloudflare"), (b"x-request-id", b"1"), (b"date", b"Tue"))


@given(st.binary(max_size=4000), st.sampled_from([0, TINY, SMALL]))
@example(STREAM, SMALL)
@example(STREAM[:9000] * 9, TINY)
def test_packing_and_unpacking_give_the_content_back(content: bytes, smallest: int) -> None:
    assert unpack(*pack(content, smallest)) == content


def test_a_stream_of_events_shrinks_to_a_fraction() -> None:
    codec, stored = pack(STREAM)
    assert codec == PACKED
    assert len(stored) < len(STREAM) / 15


def test_small_content_is_kept_as_it_is_unless_asked() -> None:
    content = STREAM[: SMALL - 1]
    assert pack(content) == (RAW, content)
    assert pack(content, TINY)[0] == PACKED
    assert pack(STREAM[:SMALL])[0] == PACKED


def test_content_that_does_not_shrink_is_kept_as_it_is() -> None:
    content = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(100))
    assert pack(content) == (RAW, content)


# announces a content of 2**63 bytes
VAST = bytes.fromhex("28b52ffde0") + (2**63).to_bytes(8, "little") + bytes(4)


@pytest.mark.parametrize("damaged", [pack(STREAM)[1][:-3], pack(STREAM)[1] + b"x", b"\xff" * 9, b"", VAST])
def test_damaged_content_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="packed content is damaged"):
        unpack(PACKED, damaged)


def deflate(content: bytes) -> bytes:
    """As it was packed under codec 1."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 5, zlib.Z_DEFAULT_STRATEGY, unpack(DEFLATED, WHOLE_DICTIONARY))
    return packer.compress(content) + packer.flush()


@given(st.binary(max_size=4000))
@example(STREAM)
def test_what_was_deflated_is_read_for_ever(content: bytes) -> None:
    assert unpack(DEFLATED, deflate(content)) == content


# what the first version with codec 2 made of a dozen chunks
OLDEST = bytes.fromhex(
    "28b52ffd601204550200a031303132333435363738393131227d7d5d7d0a0a12008a879c0a02e9219032045241203d045286402a08a48740"
    "ca10a4b26f4041860010600a87f248a49e0260fd73c64b06935e0804"
)


def test_what_was_packed_once_is_read_for_ever() -> None:
    assert unpack(PACKED, OLDEST) == b"".join(CHUNK % i for i in range(12))


@pytest.mark.parametrize("make", [lambda: deflate(STREAM)[:-3], lambda: deflate(STREAM) + b"x", lambda: b"\xff" * 9])
def test_damaged_deflated_content_is_a_value_error(make: Callable[[], bytes]) -> None:
    with pytest.raises(ValueError, match="deflated content is"):
        unpack(DEFLATED, make())


def test_an_unknown_codec_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no codec has the number 7"):
        unpack(7, b"x")


# all of the dictionary, told by references into it
WHOLE_DICTIONARY = bytes.fromhex("edd6c1000000000321daf92b9cc55e45d1345cc3355cc3355cc3355cc3355cc335fcddf000")


def test_the_dictionary_of_both_codecs_is_fixed_for_good() -> None:
    """With one byte changed every log there is becomes unreadable: add a codec in its place."""
    digest = hashlib.sha256(unpack(DEFLATED, WHOLE_DICTIONARY)).hexdigest()
    assert digest == "dadaed7bf9778a943249b81e6dddab1f251a085c9de3c4ef5954e52df08ffc95"


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=20), st.binary(max_size=20))))
def test_headers_come_back_from_those_of_another_call(fields: list[tuple[bytes, bytes, bytes]]) -> None:
    base = tuple((name, before) for name, before, _ in fields)
    headers = tuple((name, value) for name, _, value in fields)
    assert decode_headers(encode_headers(base), encode_changes(headers, base)) == headers


def test_changes_name_the_position_so_that_repeated_names_are_told_apart() -> None:
    later = (*NAMES[:3], (b"date", b"Wed"))
    assert encode_changes(later, NAMES) == b'[[3,"Wed"]]'


def test_a_seal_commits_to_the_row_and_to_the_seal_before() -> None:
    row = (1, "exchange", b"\x00\xff", None, 2.5)
    seal = seal_after(b"", row)
    assert seal == hashlib.sha256(b'[1,"exchange","00ff",null,2.5]').digest()[:16]
    assert seal_after(seal, row) == hashlib.sha256(seal + b'[1,"exchange","00ff",null,2.5]').digest()[:16]
    assert seal_after(b"", (1, "exchange", b"\x00\xfe", None, 2.5)) != seal


A, B = make_chain("a", "!b")
CONTENTS = [b"%d" % n for n in range(4)]
pieces = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.binary(min_size=32, max_size=32).map(BlobPiece),
        st.binary(min_size=16, max_size=16).map(ChainPiece),
    ),
    max_size=6,
)


@given(pieces)
def test_any_recipe_comes_back_from_envelope_and_tip(parts: list[Piece]) -> None:
    envelope, tip, seen = split_recipe(encode_recipe(parts))
    assert list(seen) == parts
    assert list(join_recipe(envelope, tip)) == parts


def test_a_literal_that_looks_like_the_link_is_left_alone() -> None:
    link = b"a" * 16
    parts = (link, encode_recipe((ChainPiece(link),)), ChainPiece(link), link)
    envelope, tip, _ = split_recipe(encode_recipe(parts))
    assert join_recipe(envelope, tip) == parts


@pytest.mark.parametrize("damaged", [b"\x05\x00\x00\x00\x00", b"\x00\x00\x00\x00\x09abc"])
def test_what_is_no_recipe_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError):
        split_recipe(damaged)
    with pytest.raises(ValueError):
        join_recipe(b"\n" + damaged, b"")


def test_an_envelope_without_its_position_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        join_recipe(b"x\n", b"a" * 16)


def test_a_seal_commits_to_all_of_a_node() -> None:
    seals = {
        seal_node(b"", 1, A.node, A.parent, is_answer=False, exchange=1),
        seal_node(b"s", 1, A.node, A.parent, is_answer=False, exchange=1),
        seal_node(b"", 2, A.node, A.parent, is_answer=False, exchange=1),
        seal_node(b"", 1, B.node, A.parent, is_answer=False, exchange=1),
        seal_node(b"", 1, A.node, B.parent, is_answer=False, exchange=1),
        seal_node(b"", 1, A.node, A.parent, is_answer=True, exchange=1),
        seal_node(b"", 1, A.node, A.parent, is_answer=False, exchange=2),
    }
    assert len(seals) == 7


def test_a_digest_commits_to_all_that_an_epoch_names() -> None:
    original = make_original("r1", CONTENTS[1])
    digests = {
        digest_epoch([], []),
        digest_epoch([compute_digest(CONTENTS[1])], []),
        digest_epoch([compute_digest(CONTENTS[2])], []),
        digest_epoch([compute_digest(CONTENTS[1]), compute_digest(CONTENTS[2])], []),
        digest_epoch([compute_digest(CONTENTS[2]), compute_digest(CONTENTS[1])], []),
        digest_epoch([], [("s", original)]),
        digest_epoch([], [("t", original)]),
        digest_epoch([], [("s", original), ("s", original)]),
        digest_epoch([], [("s", replace(original, id="r2"))]),
        digest_epoch([], [("s", replace(original, wire="responses"))]),
        digest_epoch([], [("s", replace(original, place=2))]),
        digest_epoch([], [("s", replace(original, offset=1))]),
        digest_epoch([], [("s", make_original("r1", CONTENTS[2]))]),
        digest_epoch([], [("s", make_original("r1", CONTENTS[1], CONTENTS[2]))]),
    }
    assert len(digests) == 14


def test_a_digest_commits_to_all_that_a_summary_names() -> None:
    one, two = compute_digest(CONTENTS[0]), compute_digest(CONTENTS[1])
    digests = {
        digest_summary([], [], []),
        digest_summary([one], [], []),
        digest_summary([one, two], [], []),
        digest_summary([two, one], [], []),
        digest_summary([], ["a"], []),
        digest_summary([], [], ["a"]),
        digest_summary([], ["a", "b"], []),
        digest_summary([], ["b", "a"], []),
        digest_summary([], ["a"], ["b"]),
    }
    assert len(digests) == 9
