"""Encodings of content, headers, recipes, lists and seals as bytes. All that were ever written stay readable.

Codec 0 is the content itself, codec 2 Zstandard at level 1 with a preset dictionary of phrases that the wires repeat.
Codec 1, which is no longer written, is raw deflate with the same dictionary: 2.4 times the time for the same size. A
codec never changes; a new kind of compression gets a new number. Compression takes 10 ns a byte. Calls wait for their
bodies, so these are compressed from `SMALL` bytes on, and content that is not urgent from `TINY` bytes on.

A recipe (see `model/manifest`) is stored as an envelope and a tip. All calls with equal parameters share one envelope,
which is a blob: the position of the chain piece in decimal (empty if there is none), a line feed, and a recipe of the
other pieces. The tip is the link of the chain. A recipe with several chains is stored unchanged.
"""

import threading
import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import get_args

import msgspec
import orjson
import zstandard

from proxy.model.epoch import HiddenRound, Original
from proxy.model.exchange import Headers
from proxy.model.lineage import Relation
from proxy.model.manifest import ChainPiece, Piece, compute_digest, decode_recipe, encode_recipe
from proxy.model.memory import Remembered

RAW, DEFLATED, PACKED = 0, 1, 2

TINY, SMALL = 128, 1024

# How a request continues its session. The table stores the index in this tuple.
RELATIONS: tuple[Relation, ...] = get_args(Relation)

_LEVEL = 1
_SEAL_SIZE = 16
_NODE_SEAL_SIZE = 4
_MARK_KEY_SIZE = 6

# The most frequent phrases are last: the end of a dictionary has the shortest distances in both codecs.
_DICTIONARY = b"".join(
    (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_01","type":"message","role":',
        b'"assistant","model":"claude-","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,',
        b'"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",',
        b'"text":" "}}\n\nevent: message_stop\n{"type":"tool_use","id":"toolu_01","name":"","input":{"},',
        b'{"type":"tool_result","tool_use_id":"toolu_01","content":[{"type":"text","text":"',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":1,',
        b'"item_id":"msg_","output_index":0,"content_index":0,"delta":" "}\n\n{"id":"resp_","object":"response",',
        b'"created_at":17,"status":"completed","instructions":null,"output":[{"type":"message","content":[{"type":',
        b'"output_text","annotations":[],"text":"{"type":"function_call","call_id":"call_","name":"',
        b',"temperature":0.7,"max_tokens":4096,"stream":true,"stream_options":{"include_usage":true},',
        b'"tool_choice":"auto","tools":[{"type":"function","function":{"name":"","description":"","parameters":',
        b'{"type":"object","properties":{"":{"type":"string","description":""}},"required":["',
        b'{"id": "chatcmpl-", "object": "chat.completion", "created": 17, "model": "gpt-", "choices": [{"index": 0, ',
        b'"message": {"role": "assistant", "content": null, "refusal": null, "annotations": [], "tool_calls": [{"id": ',
        b'"call_", "type": "function", "function": {"name": "", "arguments": "{\\"\\"}"}}]}, "logprobs": null, ',
        b'"finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 1, ',
        b'"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}, "completion_tokens_details": ',
        b'{"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, ',
        b'"rejected_prediction_tokens": 0}}, "service_tier": "default", "system_fingerprint": "fp_"}',
        b'{"id":"chatcmpl-","object":"chat.completion","created":17,"model":"","choices":[{"index":0,"message":',
        b'{"role":"assistant","content":"","tool_calls":[{"id":"call_","type":"function","function":{"name":"",',
        b'"arguments":"{\\"\\"}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":1,',
        b'"total_tokens":1,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":',
        b'{"reasoning_tokens":0}}}{"model":"gpt-","messages":[{"role":"system","content":"{"role":"tool",',
        b'"tool_call_id":"call_","content":"{"role":"assistant","content":"{"role":"user","content":"data: [DONE]\n\n',
        b'data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":17,"model":"gpt-","service_tier":',
        b'"default","system_fingerprint":"fp_","choices":[{"index":0,"delta":{"role":"assistant","content":"",',
        b'"refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"',
        b'data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":17,"model":"","choices":[{"index":0,',
        b'"delta":{"content":" "},"logprobs":null,"finish_reason":null}]}\n\n',
    )
)

_PHRASES = zstandard.ZstdCompressionDict(_DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_PHRASES.precompute_compress(level=_LEVEL)


class _Packers(threading.local):
    """The compressor and decompressor of one thread. They must not be shared between threads."""

    def __init__(self) -> None:
        packer = zstandard.ZstdCompressor(_LEVEL, _PHRASES, write_checksum=False, write_dict_id=False)
        self.pack = packer.compress
        self.unpack = zstandard.ZstdDecompressor(_PHRASES).decompress


_packers = _Packers()


def pack(content: bytes, smallest: int = SMALL) -> tuple[int, bytes]:
    """Return codec and bytes to store. Content below `smallest` bytes, or that saves less than an eighth, stays raw."""
    size = len(content)
    if size < smallest:
        return RAW, content
    packed = _packers.pack(content)
    return (PACKED, packed) if len(packed) < size - size // 8 else (RAW, content)


def unpack(codec: int, stored: bytes) -> bytes:
    """Reverse `pack`. Raises ValueError for damaged content or an unknown codec."""
    if codec == RAW:
        return stored
    if codec == PACKED:
        return _unpack(stored)
    if codec == DEFLATED:
        return _inflate(stored)
    raise ValueError(f"no codec has the number {codec}")


def _unpack(stored: bytes) -> bytes:
    try:
        return _packers.unpack(stored, read_across_frames=False, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:  # a damaged header may announce any size
        raise ValueError("packed content is damaged") from error


def _inflate(stored: bytes) -> bytes:
    inflate = zlib.decompressobj(-15, zdict=_DICTIONARY)
    try:
        content = inflate.decompress(stored)
    except zlib.error as error:
        raise ValueError("deflated content is damaged") from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError("deflated content is cut short or overlong")
    return content


def encode_headers(headers: Headers) -> bytes:
    """Return headers as JSON pairs, in order. Latin-1 preserves every byte."""
    return orjson.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])


def encode_changes(headers: Headers, base: Headers) -> bytes:
    """Return the values that differ from those of `base`, by position. `base` has the same names. Empty for none."""
    if headers == base:
        return b""
    changes = [
        (at, field[1].decode("latin-1"))
        for at, (field, before) in enumerate(zip(headers, base, strict=True))
        if field != before
    ]
    return orjson.dumps(changes) if changes else b""


def decode_headers(base: bytes, changes: bytes) -> Headers:
    """Reverse `encode_headers` and `encode_changes`."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in orjson.loads(base)]
    for at, value in orjson.loads(changes) if changes else ():
        headers[at] = (headers[at][0], value.encode("latin-1"))
    return tuple(headers)


def seal_after(seal: bytes, row: tuple[object, ...]) -> bytes:
    """Return the seal of a row after the previous seal: H(seal, row as JSON with digests in hex), 16 bytes."""
    return sha256(seal + orjson.dumps(row, default=bytes.hex)).digest()[:_SEAL_SIZE]


def drop_unset(values: Sequence[object], added: int) -> tuple[object, ...]:
    """Return a row's values without those that are None among the last `added` ones, from the end on."""
    kept = len(values)
    while added and kept and values[kept - 1] is None:
        kept, added = kept - 1, added - 1
    return tuple(values[:kept])


def seal_node(seal: bytes, n: int, node: bytes, parent: bytes, *, is_answer: bool, exchange: int) -> bytes:
    """Return the seal of a node after the previous one of its session: 4 bytes of SHA-256."""
    return sha256(b"%b%d:%b%b%d:%d" % (seal, n, node, parent, is_answer, exchange)).digest()[:_NODE_SEAL_SIZE]


def compute_fingerprint_key(name: str) -> bytes:
    """Return the key by which a fingerprint is looked up: the first bytes of the SHA-256 of its name."""
    return sha256(name.encode()).digest()[:_MARK_KEY_SIZE]


def digest_epoch(rendered: Sequence[bytes], originals: Sequence[tuple[str, Original]]) -> bytes:
    """Return the digest of an epoch's content: the digests of its messages, its originals with session keys."""
    named = [(key, each.id, each.wire, each.place, each.offset, each.digests) for key, each in originals]
    return compute_digest(orjson.dumps((rendered, named), default=bytes.hex))


def digest_summary(messages: Sequence[bytes | None], parents: Sequence[str], superseded: Sequence[str]) -> bytes:
    """Return the digest of what a summary was made of and supersedes: digests of messages, ids of summaries."""
    return compute_digest(orjson.dumps((messages, parents, superseded), default=bytes.hex))


def digest_erasure(rows: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of what was erased: the ids of payloads with the digests of their content, in order."""
    return compute_digest(orjson.dumps([list(row) for row in rows], default=bytes.hex))


_hidden = msgspec.msgpack.Decoder(tuple[HiddenRound, ...])


def encode_hidden(rounds: Sequence[HiddenRound]) -> bytes:
    """Return rounds as MessagePack, which holds any bytes as they are."""
    return msgspec.msgpack.encode(rounds)


def decode_hidden(content: bytes) -> tuple[HiddenRound, ...]:
    """Reverse `encode_hidden`. Raises ValueError for other content."""
    return _hidden.decode(content)


REPORT = "report"
"""The kind of a row of `memory` that is no order."""

_remembered = msgspec.msgpack.Decoder(Remembered)


def encode_remembered(remembered: Remembered) -> bytes:
    """Return a report with its facts as MessagePack, which holds nodes as they are."""
    return msgspec.msgpack.encode(remembered)


def decode_remembered(content: bytes) -> Remembered:
    """Reverse `encode_remembered`. Raises ValueError for other content."""
    return _remembered.decode(content)


def encode_ids(ids: Iterable[int]) -> str:
    """Return row ids as JSON, for a column or a parameter."""
    return orjson.dumps(list(ids)).decode()


def split_recipe(recipe: bytes) -> tuple[bytes, bytes, tuple[Piece, ...]]:
    """Return envelope, tip and all pieces of a recipe. The tip is empty unless there is exactly one chain.

    Raises ValueError if it is not a recipe.
    """
    pieces = decode_recipe(recipe)
    chains = [(at, piece.link) for at, piece in enumerate(pieces) if isinstance(piece, ChainPiece)]
    if len(chains) != 1:
        return b"\n" + recipe, b"", pieces
    ((at, tip),) = chains
    return b"%d\n%b" % (at, encode_recipe(pieces[:at] + pieces[at + 1 :])), tip, pieces


def join_recipe(envelope: bytes, tip: bytes) -> tuple[Piece, ...]:
    """Reverse `split_recipe`: return the pieces of a recipe. Raises ValueError for other content."""
    at, _, rest = envelope.partition(b"\n")
    pieces = decode_recipe(rest)
    return (*pieces[: int(at)], ChainPiece(tip), *pieces[int(at) :]) if at else pieces
