"""Bodies: split without changing a byte, and decoded no further than wanted."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.body import (
    ByteRange,
    ContentDecoder,
    SplitBody,
    append_item,
    count_shared,
    decode_content,
    decode_pieces,
    encode_content,
    remove_member,
    replace_member,
    split_after,
    split_body,
)
from tests.support.examples import examples

KEY = "messages"
ODD_SCALARS = [
    *("0", "-0", "1", "12", "1.50", "1E5", "1e400", "-1e-400", "123456789012345678901234567890", "true", "null"),
    *("NaN", "-Infinity", '"\\ud800"', '"\\u00e9"', '"\\\\"', '"\\""', '"[{,:}]"', '""', '"é\u2028"', '"\\/"'),
]

gaps = st.sampled_from(["", "", "", " ", "\n\t", "\r\n  "])
strings = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(lambda s: json.dumps(s, ensure_ascii=False)),
)
scalars = st.one_of(st.sampled_from(ODD_SCALARS), strings)


def join(parts: list[str], gap: str, ends: str) -> str:
    return ends[0] + gap + (gap + "," + gap).join(parts) + gap + ends[1]


def nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.builds(lambda key, gap, value: key + gap + ":" + gap + value, strings, gaps, inner)
    return st.one_of(
        st.builds(join, st.lists(inner, max_size=4), gaps, st.just("[]")),
        st.builds(join, st.lists(members, max_size=4), gaps, st.just("{}")),
    )


values = st.recursive(scalars, nest, max_leaves=8)


@dataclass(frozen=True)
class Written:
    """A body and where the test put its parts."""

    content: bytes
    members: dict[str, ByteRange]
    items: tuple[ByteRange, ...]

    @property
    def split(self) -> SplitBody:
        return SplitBody(self.content, self.members, self.items)


class Writer:
    """Writes JSON and notes where it writes."""

    def __init__(self) -> None:
        self.content = b""

    def put(self, text: str) -> ByteRange:
        start = len(self.content)
        self.content += text.encode("utf-8", "surrogatepass")
        return ByteRange(start, len(self.content))


def write(members: list[tuple[str, str | list[str]]], gap: str) -> Written:
    writer = Writer()
    spans: dict[str, ByteRange] = {}
    items: list[ByteRange] = []
    writer.put("{" + gap)
    for place, (key, value) in enumerate(members):
        writer.put((gap + "," + gap if place else "") + key + gap + ":" + gap)
        if isinstance(value, str):
            spans[json.loads(key)] = writer.put(value)
            continue
        start = writer.put("[" + gap).start
        for number, item in enumerate(value):
            writer.put(gap + "," + gap if number else "")
            items.append(writer.put(item))
        spans[json.loads(key)] = ByteRange(start, writer.put(gap + "]").end)
    writer.put(gap + "}" + gap)
    return Written(writer.content, spans, tuple(items))


spellings = st.sampled_from(['"messages"', '"mess\\u0061ges"'])
others = st.lists(st.tuples(strings, values), max_size=4, unique_by=lambda pair: json.loads(pair[0]))
arrays = st.lists(values, max_size=6)


@st.composite
def bodies(draw: st.DrawFn, items: st.SearchStrategy[list[str]] = arrays) -> Written:
    members: list[tuple[str, str | list[str]]] = [m for m in draw(others) if json.loads(m[0]) != KEY]
    members.insert(draw(st.integers(0, len(members))), (draw(spellings), draw(items)))
    return write(members, draw(gaps))


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A body with some bytes cut, doubled or overwritten."""
    content = draw(bodies()).content
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        skip = draw(st.integers(0, 4))
        put = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"}", b"]", b",", b'"', b"{", b"[", b"\\", b" "])))
        content = content[:at] + put + content[at + skip :]
    return content


def load(content: bytes) -> object:
    """JSON with numbers as they are spelled, so that NaN equals itself."""
    return json.loads(content, parse_float=str, parse_int=str, parse_constant=str)


def check_covered(split: SplitBody) -> None:
    """What stands between the values is keys and punctuation only, and the values are the body's."""
    content, bare, at = split.content, b"", 0
    for span in split.members.values():
        bare += content[at : span.start] + b"null"
        at = span.end
    assert json.loads(bare + content[at:]) == dict.fromkeys(split.members)
    try:
        whole = load(content)
    except ValueError:
        return  # bad UTF-8 inside a string: the spans stand, but there is no value to compare with
    assert whole == {name: load(split.member(name)) for name in split.members}
    if split.items:
        assert isinstance(whole, dict)
        assert whole[KEY] == [load(content[s.start : s.end]) for s in split.items]


@examples(60)
@given(bodies())
def test_every_part_is_found_where_it_was_written_however_it_is_spelled(written: Written) -> None:
    assert split_body(written.content, KEY) == written.split


@examples(40)
@given(bodies(), st.data())
def test_a_doubled_key_leaves_the_body_unsplit(written: Written, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(written.members)))
    value = data.draw(values).encode("utf-8", "surrogatepass")
    end = written.content.rindex(b"}")
    doubled = written.content[:end] + b"," + json.dumps(name).encode() + b":" + value + written.content[end:]
    assert split_body(doubled, KEY) is None


@examples(40)
@given(bodies(), st.sampled_from(["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]))
def test_other_encodings_of_unicode_leave_the_body_unsplit(written: Written, encoding: str) -> None:
    text = written.content.decode("utf-8", "surrogatepass")
    assert split_body(text.encode(encoding, "surrogatepass"), KEY) is None


@examples(120)
@given(st.one_of(broken(), st.binary(max_size=40)))
def test_anything_is_either_covered_exactly_or_not_split(content: bytes) -> None:
    split = split_body(content, KEY)
    if split is not None:
        assert split.content == content
        check_covered(split)


@pytest.mark.parametrize(
    "content", [b"", b" ", b"[]", b"1", b'"x"', b"null", b"{", b"}", b"{}x", b'{"a":1}}', b'{"a"}']
)
def test_what_is_no_object_is_not_split(content: bytes) -> None:
    assert split_body(content, KEY) is None


@pytest.mark.parametrize("last", [b"1", b'"\\ud800"', b"NaN"])
@pytest.mark.parametrize("first", [b"1", b"12", b'"\\ud800"', b"NaN"])
@pytest.mark.parametrize("between", [b"", b'"b":1,'])
def test_a_doubled_key_is_noticed_however_alike_the_values_are(first: bytes, between: bytes, last: bytes) -> None:
    doubled = b'{"a":' + first + b"," + between + b'"a":' + last
    assert split_body(doubled + b"}", KEY) is None
    assert split_body(doubled + b',"c":1}', KEY) is None


@pytest.mark.parametrize("value", [b"1", b'"\\ud800"'])
def test_white_space_before_the_object_does_not_keep_it_from_being_split(value: bytes) -> None:
    split = split_body(b' \r\n\t{"a":' + value + b"}", KEY)
    assert split is not None
    assert split.member("a") == value


def test_an_empty_object_has_no_parts() -> None:
    assert split_body(b"{}", KEY) == SplitBody(b"{}", {}, ())


@pytest.mark.parametrize("value", ["{}", '"[]"', "1", "null", '{"a": [1]}'])
def test_a_conversation_that_is_no_array_has_no_items(value: str) -> None:
    split = split_body(b'{"messages": %b}' % value.encode(), KEY)
    assert split is not None
    assert split.items == ()
    assert split.member(KEY) == value.encode()


@pytest.mark.parametrize("element", ["0", '{"a":[1,",,,,"]}', '"\\ud800"', "1e400"])
def test_more_elements_than_any_conversation_has_are_not_looked_at(element: str) -> None:
    def split(count: int) -> SplitBody:
        split = split_body(b'{"model":"m","messages":[%b]}' % b",".join([element.encode()] * count), KEY, most_items=3)
        assert split is not None
        return split

    assert [len(split(count).items) for count in (2, 3, 4, 5)] == [2, 3, 0, 0]
    assert split(4).member("model") == b'"m"'
    assert json.loads(split(4).member(KEY)) == [json.loads(element)] * 4


def test_an_array_of_millions_is_not_even_decoded() -> None:
    content = b'{"messages":[%b]}' % b",".join([b"0"] * 3_000_000)
    tracemalloc.start()
    try:
        split = split_body(content, KEY)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert split is not None
    assert not split.items
    assert most < 4 * len(content)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_beyond_any_stack_does_not_raise(opening: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}"}[opening]
    deep = opening * 100_000 + b"1" + closing * 100_000
    for content in (b'{"messages":[' + deep + b"]}", b'{"messages":[],"a":"\\ud800","b":' + deep + b"}", deep):
        assert split_body(content, KEY) is None


def test_a_member_is_given_raw_and_an_absent_one_is_empty() -> None:
    split = split_body(b'{"model": "m\\u0061", "messages": [1 , 2]}', KEY)
    assert split is not None
    assert split.member("model") == b'"m\\u0061"'
    assert split.member("tools") == b""


def test_the_gap_before_an_item_begins_behind_the_bracket_or_the_item_before() -> None:
    content = b'{"a": [[]], "messages": [ [1] , "[" ]}'
    split = split_body(content, KEY)
    assert split is not None
    assert [content[split.gap_before(i) : s.start] for i, s in enumerate(split.items)] == [b" ", b" , "]


def test_a_long_string_in_a_body_that_msgspec_refuses_costs_memory_in_proportion_to_its_length() -> None:
    content = b'{"a":"\\ud800","messages":["' + b"x" * 300_000 + b'"]}'
    tracemalloc.start()
    try:
        split = split_body(content, KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert split is not None
    assert peak < 20 * len(content)


def count_naively(content: bytes, known: SplitBody) -> int:
    """An item is shared if its bytes are there and it does not go on: the last one may, as `1` does in `12`."""
    ends = [s.end for s in known.items if content[: s.end] == known.content[: s.end]]
    goes_on = ends and content[ends[-1] : ends[-1] + 1] not in (b",", b"]", b" ", b"\t", b"\r", b"\n")
    return len(ends) - bool(goes_on)


@st.composite
def successions(draw: st.DrawFn) -> tuple[Written, bytes]:
    """A body, and another that begins like it: continued, edited, shortened, or cut and glued to something else."""
    first = draw(bodies(st.lists(values, min_size=1, max_size=6)))
    if draw(st.booleans()):
        kept = draw(st.integers(1, len(first.items)))
        rest = draw(st.lists(values, max_size=3))
        end = first.items[kept - 1].end
        tail = first.content[first.items[-1].end :]
        glue = draw(gaps) + draw(st.sampled_from([",", ",", ",", ""])) + draw(gaps)
        return first, first.content[:end] + (glue + ",".join(rest)).encode("utf-8", "surrogatepass") + tail
    at = draw(st.integers(0, len(first.content)))
    return first, first.content[:at] + draw(broken())[draw(st.integers(0, 40)) :]


@pytest.mark.no_cover
@examples(120)
@given(successions())
def test_what_is_shared_is_counted_as_comparing_each_item_would(succession: tuple[Written, bytes]) -> None:
    first, content = succession
    assert count_shared(content, first.split) == count_naively(content, first.split)


@pytest.mark.no_cover
@examples(150)
@given(successions())
def test_splitting_only_what_is_new_gives_what_splitting_everything_does(succession: tuple[Written, bytes]) -> None:
    first, content = succession
    whole = split_body(content, KEY)
    for count in range(1, count_shared(content, first.split) + 1):
        after = split_after(content, KEY, first.split, count)
        if whole is not None and whole.items[:count] == first.items[:count]:
            assert after == whole
        else:
            assert after is None


def test_a_number_that_goes_on_is_not_the_known_one() -> None:
    known = split_body(b'{"messages":[1,2]}', KEY)
    assert known is not None
    for content in (b'{"messages":[12]}', b'{"messages":[1.5,2]}', b'{"messages":[1e5]}', b'{"messages":[1 2]}'):
        assert split_after(content, KEY, known, 1) is None


def test_nothing_is_shared_with_a_body_without_items_or_a_shorter_one() -> None:
    empty = split_body(b'{"messages":[]}', KEY)
    known = split_body(b'{"messages":[{"a":1}]}', KEY)
    assert empty is not None
    assert known is not None
    assert count_shared(b'{"messages":[]}', empty) == 0
    assert count_shared(b'{"messages"', known) == 0


@pytest.mark.parametrize("at", [0, 1, 65_535, 65_536, 65_537, 131_071, 131_072, 150_000, 199_999])
def test_a_difference_anywhere_in_a_long_body_is_found_to_the_byte(at: int) -> None:
    items = [b"%07d" % (1_000_000 + i) for i in range(25_000)]
    content = b'{"messages":[' + b",".join(items) + b"]}"
    known = split_body(content, KEY)
    assert known is not None
    edited = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    assert count_shared(edited, known) == sum(span.end <= at for span in known.items)
    assert count_shared(content[:at], known) == sum(span.end <= at for span in known.items)


def test_a_body_that_only_grows_shares_all_its_items() -> None:
    known = split_body(b'{"messages":[{"a":1},{"b":2}],"x":1}', KEY)
    assert known is not None
    assert count_shared(b'{"messages":[{"a":1},{"b":2},{"c":3}]}', known) == 2


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=5),  # the best takes a second for a megabyte
    "zstd": zstandard.compress,
    "gzip, br": lambda content: brotli.compress(gzip.compress(content), quality=5),
}


@given(st.binary(), st.sampled_from(sorted(ENCODERS)), st.integers(1, 200))
def test_what_was_encoded_comes_back_up_to_the_cap(content: bytes, encoding: str, cap: int) -> None:
    assert decode_content(ENCODERS[encoding](content), encoding, cap) == content[:cap]


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_plain_content_is_given_as_it_is_up_to_the_cap(encoding: str) -> None:
    assert decode_content(b"plain", encoding, 3) == b"pla"
    assert decode_content(b"plain", encoding, 100) == b"plain"


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_a_cap_of_nothing_gives_nothing(encoding: str) -> None:
    assert decode_content(ENCODERS[encoding](b"x" * 100), encoding, 0) == b""


def test_names_are_read_in_any_case_and_spacing() -> None:
    assert decode_content(gzip.compress(b"x"), " GZip ", 10) == b"x"


@given(st.binary(min_size=50, max_size=400), st.data())
def test_a_cut_stream_gives_the_beginning_of_the_content(content: bytes, data: st.DataObject) -> None:
    encoded = zlib.compress(content)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    assert content.startswith(decode_content(cut, "deflate", 1000))


@pytest.mark.no_cover
@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_a_bomb_is_decoded_to_the_cap_only(encoding: str) -> None:
    bomb = ENCODERS[encoding](b"\0" * 10_000_000)
    assert len(bomb) < 20_000
    assert decode_content(bomb, encoding, 1000) == b"\0" * 1000
    assert len(next(decode_pieces(bomb, encoding))) < 1_000_000


@pytest.mark.no_cover
@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_long_content_comes_back_whole_in_pieces(encoding: str) -> None:
    content = b"".join(b"%d " % i for i in range(200_000))
    pieces = list(decode_pieces(ENCODERS[encoding](content), encoding))
    assert b"".join(pieces) == content
    assert len(pieces) > 2


@given(st.binary(), st.sampled_from(["", "identity", *sorted(ENCODERS)]))
def test_what_is_encoded_here_is_decoded_here(content: bytes, encoding: str) -> None:
    assert decode_content(encode_content(content, encoding), encoding, 10_000) == content
    assert b"".join(decode_pieces(encode_content(content, encoding), encoding)) == content


FLUSHING: dict[str, Callable[[], Any]] = {
    "gzip": lambda: _Flushing(zlib.compressobj(wbits=31), zlib.Z_SYNC_FLUSH),
    "deflate": lambda: _Flushing(zlib.compressobj(), zlib.Z_SYNC_FLUSH),
    "zstd": lambda: _Flushing(zstandard.ZstdCompressor().compressobj(), zstandard.COMPRESSOBJ_FLUSH_BLOCK),
    "br": lambda: _Brotli(brotli.Compressor()),
}


class _Flushing:
    def __init__(self, encoder: Any, mode: int) -> None:
        self.encoder = encoder
        self.mode = mode

    def encode(self, content: bytes) -> bytes:
        return bytes(self.encoder.compress(content) + self.encoder.flush(self.mode))

    def end(self) -> bytes:
        return bytes(self.encoder.flush())


class _Brotli:
    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    def encode(self, content: bytes) -> bytes:
        return bytes(self.encoder.process(content) + self.encoder.flush())

    def end(self) -> bytes:
        return bytes(self.encoder.finish())


@pytest.mark.parametrize("encoding", sorted(FLUSHING))
@given(data=st.data())
def test_of_a_body_in_pieces_all_that_has_come_is_decoded_at_once(encoding: str, data: st.DataObject) -> None:
    encoder, decoder = FLUSHING[encoding](), ContentDecoder(encoding)
    for content in data.draw(st.lists(st.binary(max_size=50), max_size=5)):
        encoded = encoder.encode(content)
        cut = data.draw(st.integers(0, len(encoded)))
        assert b"".join([*decoder.decode(encoded[:cut]), *decoder.decode(encoded[cut:])]) == content
    assert b"".join(decoder.decode(encoder.end())) == b""


@given(st.lists(st.binary(), min_size=1, max_size=3), st.sampled_from(sorted(ENCODERS)))
def test_each_byte_of_a_body_may_come_alone(contents: list[bytes], encoding: str) -> None:
    is_repeated = encoding in ("gzip", "x-gzip", "zstd")  # several bodies in a row are one
    encoded = b"".join(map(ENCODERS[encoding], contents if is_repeated else contents[:1]))
    decoder = ContentDecoder(encoding)
    pieces = [piece for at in range(len(encoded)) for piece in decoder.decode(encoded[at : at + 1])]
    assert b"".join(pieces) == b"".join(contents if is_repeated else contents[:1])


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
def test_what_comes_after_the_end_is_no_content(encoding: str) -> None:
    decoder = ContentDecoder(encoding)
    assert b"".join(decoder.decode(ENCODERS[encoding](b"abc"))) == b"abc"
    assert b"".join([*decoder.decode(b"\0"), *decoder.decode(b"\0"), *decoder.decode(ENCODERS[encoding](b"d"))]) == b""


def test_what_is_encoded_twice_is_decoded_up_to_a_limit_of_what_lies_between() -> None:
    between = gzip.compress(random.Random(1).randbytes(17_000_000), compresslevel=0)
    assert len(b"".join(decode_pieces(brotli.compress(between, quality=0), "gzip, br"))) < 17_000_000


def test_every_member_of_a_file_is_read_and_what_else_comes_is_not() -> None:
    assert decode_content(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", "gzip", 10) == b"ab"


def test_deflate_is_read_without_its_frame_too() -> None:
    assert decode_content(zlib.compress(b"abc" * 100)[2:-4], "deflate", 1000) == b"abc" * 100


@pytest.mark.parametrize("encoding", ["compress", "gzip, none", "none"])
def test_an_encoding_that_is_not_read_here_is_named_in_the_error(encoding: str) -> None:
    with pytest.raises(ValueError, match=encoding):
        decode_content(b"x", encoding, 10)


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
def test_content_that_is_not_in_the_encoding_it_claims_is_an_error(encoding: str) -> None:
    with pytest.raises(ValueError, match=f"not {encoding}"):
        decode_content(b"this is plain text", encoding, 10)


@pytest.mark.parametrize(
    ("body", "name", "left"),
    [
        (b'{"a": 1, "messages": [1, 2], "b": 2}', "a", b'{"messages": [1, 2], "b": 2}'),
        (b'{ "a" : 1 ,"messages": [1, 2]}', "a", b'{"messages": [1, 2]}'),
        (b'{"x": 0, "a": [1], "messages": [1, 2]}', "a", b'{"x": 0, "messages": [1, 2]}'),
        (b'{"messages": [1, 2], "a": {}, "b": 2}', "a", b'{"messages": [1, 2], "b": 2}'),
        (b'{"messages": [1, 2], "a": {}}', "a", b'{"messages": [1, 2]}'),
        (b'{"messages": [], "\\u0061": {} }', "a", b'{"messages": [] }'),
        (b'{"b": 1, "a": {}}', "a", b'{"b": 1}'),
        (b'{"a": {}}', "a", b"{}"),
        (b'{"messages": [1, 2]}', "a", b'{"messages": [1, 2]}'),
    ],
)
def test_a_member_is_removed_and_the_rest_stays_where_it_is(body: bytes, name: str, left: bytes) -> None:
    split = split_body(body, "messages")
    assert split is not None
    removed = remove_member(split, name)
    assert removed.content == left
    assert removed == split_body(left, "messages")
    if body.startswith(b'{"messages"'):
        assert removed.items is split.items


@pytest.mark.parametrize(
    ("body", "longer"),
    [
        (b'{"messages":[1, 2 ],"n":3}', b'{"messages":[1, 2,{"a":4} ],"n":3}'),
        (b'{"n": 3 ,"messages": [{"b":[]}] } ', b'{"n": 3 ,"messages": [{"b":[]},{"a":4}] } '),
    ],
)
def test_an_item_is_appended_and_the_rest_stays_as_it_is(body: bytes, longer: bytes) -> None:
    split = split_body(body, "messages")
    assert split is not None
    appended = append_item(split, b'{"a":4}')
    assert appended.content == longer
    expected = split_body(longer, "messages")
    assert expected is not None
    assert (appended.members, list(appended.items)) == (expected.members, list(expected.items))


@pytest.mark.parametrize("raw", [b'"b"', b'"a longer one"', b"1"])
@pytest.mark.parametrize(
    "content", [b'{"id": "abc", "input": [1, {"x": 2}]}', b'{"input": [1, 2], "id": "abc", "n": 3}']
)
def test_a_replaced_member_leaves_the_others_in_their_places(content: bytes, raw: bytes) -> None:
    split = split_body(content, "input")
    assert split is not None
    replaced = replace_member(split, "id", raw)
    assert replaced == split_body(content.replace(b'"abc"', raw), "input")
