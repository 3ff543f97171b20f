"""How content, headers and seals become bytes. Rule: what is written is read for ever; add a codec, never edit one.

Codec 0 is the content itself, codec 2 Zstandard at level 1 with a preset dictionary of phrases that the wires repeat.
Codec 1, which was written before, is raw deflate with the same dictionary: 2.4 times the time for the same size.
Packing costs 10 ns a byte: somebody waits for a request or an answer of 1 KB, so that is kept as it is; nobody waits
for what is not urgent, so that is packed from `TINY` bytes on.
"""

import threading
import zlib
from hashlib import sha256

import orjson
import zstandard

from proxy.model.exchange import Headers

RAW, DEFLATED, PACKED = 0, 1, 2

TINY, SMALL = 128, 1024

_LEVEL = 1
_SEAL_SIZE = 16

# Most frequent phrases last: both codecs reach the end of a dictionary with the shortest distances.
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
    """What packs and unpacks; the library's objects are for one thread each."""

    def __init__(self) -> None:
        packer = zstandard.ZstdCompressor(_LEVEL, _PHRASES, write_checksum=False, write_dict_id=False)
        self.pack = packer.compress
        self.unpack = zstandard.ZstdDecompressor(_PHRASES).decompress


_packers = _Packers()


def pack(content: bytes, smallest: int = SMALL) -> tuple[int, bytes]:
    """Codec and bytes to store; the content itself below `smallest` bytes, or where an eighth cannot be saved."""
    size = len(content)
    if size < smallest:
        return RAW, content
    packed = _packers.pack(content)
    return (PACKED, packed) if len(packed) < size - size // 8 else (RAW, content)


def unpack(codec: int, stored: bytes) -> bytes:
    """The inverse of `pack`. Raises ValueError for what it did not make."""
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
    except (zstandard.ZstdError, MemoryError) as error:  # damage may announce any size
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
    """Headers as JSON pairs, in order; Latin-1 keeps any byte."""
    return orjson.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])


def encode_changes(headers: Headers, base: Headers) -> bytes:
    """The values that differ from those of `base`, which has the same names, by position; empty where none does."""
    if headers == base:
        return b""
    changes = [
        (at, field[1].decode("latin-1"))
        for at, (field, before) in enumerate(zip(headers, base, strict=True))
        if field != before
    ]
    return orjson.dumps(changes) if changes else b""


def decode_headers(base: bytes, changes: bytes) -> Headers:
    """The inverse of `encode_headers` and `encode_changes`."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in orjson.loads(base)]
    for at, value in orjson.loads(changes) if changes else ():
        headers[at] = (headers[at][0], value.encode("latin-1"))
    return tuple(headers)


def seal_after(seal: bytes, row: tuple[object, ...]) -> bytes:
    """The seal of a row behind the one sealed before: H(seal, row as JSON with digests in hex), 16 bytes."""
    return sha256(seal + orjson.dumps(row, default=bytes.hex)).digest()[:_SEAL_SIZE]
