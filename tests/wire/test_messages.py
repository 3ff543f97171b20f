"""What of a message costs tokens: its text, and its images, documents and audio."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model.messages import CountedContent, Medium
from proxy.wire import FORMATS
from proxy.wire.messages import (
    count_pages,
    format_medium,
    read_counted_tools,
    read_image_size,
    read_medium,
    read_seconds,
)
from tests.wire.cases import load_cases

CHAT = FORMATS["chat_completions"]
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def read(value: object) -> CountedContent:
    return CHAT.decode_message(json.dumps(value).encode()).content


@pytest.mark.parametrize(("message", "text"), load_cases("counted_messages.jsonl"))
def test_what_a_model_reads_is_counted_and_nothing_else(message: object, text: str) -> None:
    assert read(message) == CountedContent(text, (), 3)


def test_a_name_costs_a_token_more() -> None:
    assert read({"role": "user", "name": "ann", "content": "x"}) == CountedContent("user\nann\nx", (), 4)


REFERRED = Medium("image", reference="https://x/y.png")


def test_media_are_no_text() -> None:
    found = read({"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE, IMAGE]})
    assert found == CountedContent("user\nsee", (REFERRED, REFERRED), 3)


@pytest.mark.parametrize("raw", [b"no json", b'{"a":' * 500 + b"1" + b"}" * 500, b"\xff"])
def test_what_is_no_json_or_too_deep_counts_as_it_stands(raw: bytes) -> None:
    assert CHAT.decode_message(raw).content.text == raw.decode(errors="replace")
    assert read_counted_tools(raw) == CountedContent("")


def test_numbers_no_float_holds_are_counted() -> None:
    assert "1e400" in CHAT.decode_message(b'{"content":1e400}').content.text.lower()


NAMES = st.text(max_size=8) | st.sampled_from(["type", "input", "properties"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_reading_is_total(value: object) -> None:
    read(value)
    read_counted_tools(json.dumps(value).encode())
    read_counted_tools(json.dumps([{"type": "function", "function": {"name": value, "parameters": value}}]).encode())


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where"},
                "unit": {"type": ["string", "null"], "enum": ["c", "f", None]},
            },
        },
    },
}


def test_tools_cost_by_openais_rule() -> None:
    found = read_counted_tools(json.dumps([WEATHER]).encode())
    assert found.text.splitlines() == [
        "get_weather:Get the weather",
        "place:string:Where",
        'unit:["string","null"]:',
        *("c", "f", "null"),
    ]
    assert found.frame == 7 + 3 + 3 + 3 + (-3 + 3 * 3) + 12


def test_schemas_inside_schemas_count_too() -> None:
    inner = {"properties": {"x": {"type": "number"}}}
    schema = {
        "properties": {"list": {"type": "array", "items": inner}, "any": True},
        "$defs": {"d": inner},
        "anyOf": [inner],
    }
    found = read_counted_tools(json.dumps([{"name": "f", "description": "d", "input_schema": schema}]).encode())
    assert found.text.count("x:number:") == 3
    assert "any:true" in found.text
    assert found.frame == 7 + 3 + 2 * 3 + 3 * (3 + 3) + 12


def test_a_tool_without_a_schema_counts_as_its_json() -> None:
    assert read_counted_tools(b'[{"type":"web_search"}]') == CountedContent('{"type":"web_search"}', (), 19)


def test_no_tools_cost_nothing() -> None:
    assert read_counted_tools(b"[]") == CountedContent("")


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big") + bytes(9)
SOF = b"\xff\xc0\0\x11\x08" + (480).to_bytes(2, "big") + (640).to_bytes(2, "big") + bytes(9)
JPEG = b"\xff\xd8" + b"\xff\xe0\0\x10" + bytes(14) + b"\xff\xc4\0\x04\0\0" + SOF
GIF = b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little")
LOSSY = b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + (640).to_bytes(2, "little") + (480).to_bytes(2, "little")
LOSSLESS = b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + (639 | 479 << 14).to_bytes(4, "little") + bytes(5)
EXTENDED = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")
PDF = b"%PDF-1.7\n1 0 obj <</Type /Pages /Kids [] /Count 3>>\n<</Type/Page>> <</Type /Page /X 1>>"
WAV = b"RIFF" + (64_000).to_bytes(4, "little") + b"WAVEfmt " + bytes(12) + (32_000).to_bytes(4, "little") + bytes(12)


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("head", [PNG, JPEG, GIF, LOSSY, LOSSLESS, EXTENDED])
def test_every_format_tells_its_size(head: bytes) -> None:
    assert read_image_size(head) == (640, 480)


@pytest.mark.parametrize(
    "head", [b"", b"BM", PNG[:20], JPEG[:12], GIF[:8], LOSSY[:20], b"\xff\xd8\xff\xc4\0\x04\0\0\0\0\0"]
)
def test_what_is_cut_or_unknown_has_no_size(head: bytes) -> None:
    assert read_image_size(head) == (0, 0)


def test_a_size_no_picture_has_is_none() -> None:
    assert read_image_size(PNG[:16] + b"\xff\xff\xff\xff" + PNG[20:]) == (0, 0)


@given(
    st.binary(max_size=64), st.sampled_from([PNG, JPEG, GIF, LOSSY, LOSSLESS, EXTENDED, PDF, WAV]), st.integers(0, 40)
)
def test_garbage_raises_nothing(garbage: bytes, head: bytes, kept: int) -> None:
    content = head[:kept] + garbage
    assert min(*read_image_size(content), count_pages(content), read_seconds(content)) >= 0


@pytest.mark.parametrize(
    ("content", "pages"),
    [
        (PDF, 3),
        (b"%PDF <</Count 7 /Type /Pages>>", 7),
        (b"%PDF <</Type /Page>><</Type/Page/A 1>>", 2),
        (b"%PDF-1.7 all compressed", 0),
        (b"no pdf /Type /Page", 0),
    ],
)
def test_the_pages_of_a_document_are_those_listed_or_counted(content: bytes, pages: int) -> None:
    assert count_pages(content) == pages


@pytest.mark.parametrize(("content", "seconds"), [(WAV, 2.0), (b"ID3", 0.0), (WAV[:28] + bytes(16), 0.0)])
def test_a_wav_tells_how_long_it_is(content: bytes, seconds: float) -> None:
    assert read_seconds(content) == seconds


DATA = f"data:image/png;base64,{encode(PNG)}"
PICTURE = Medium("image", 640, 480, size=len(PNG))


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image_url", "image_url": {"url": DATA}}, PICTURE),
        ({"type": "image_url", "image_url": DATA}, PICTURE),
        ({"type": "input_image", "image_url": DATA}, PICTURE),
        ({"type": "image", "source": {"type": "base64", "data": encode(PNG)}}, PICTURE),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            Medium("image", reference="https://x/y.png"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}},
            Medium("image", is_low=True, reference="http://x"),
        ),
        ({"type": "input_image", "file_id": "file-1"}, Medium("image", reference="file-1")),
        ({"type": "input_file", "file_id": "file-2"}, Medium("document", reference="file-2")),
        ({"type": "file", "file": {"file_id": "file-3"}}, Medium("document", reference="file-3")),
        ({"type": "document", "source": {"type": "file", "file_id": "f4"}}, Medium("document", reference="f4")),
        ({"type": "document"}, Medium("document")),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,éééé"}}, Medium("image", size=3)),
        ({"type": "file", "file": {"file_data": encode(PDF)}}, Medium("document", pages=3, size=-(-len(PDF) // 3) * 3)),
        ({"type": "input_file", "file_url": "https://x"}, Medium("document", reference="https://x")),
        ({"type": "document", "source": {"type": "text", "data": "words"}}, None),
        ({"type": "input_audio", "input_audio": {"data": encode(WAV)}}, Medium("audio", seconds=2.0, size=45)),
        ({"type": "text", "text": DATA}, None),
        ({"type": 5}, None),
    ],
)
def test_every_wire_spells_media_in_its_own_way(part: dict[str, object], medium: Medium | None) -> None:
    assert read_medium(part) == medium


@pytest.mark.parametrize(
    ("medium", "words"),
    [
        (Medium("image", width=640, height=480, size=9), "image 640x480"),
        (Medium("document", pages=3), "PDF, 3 pages"),
        (Medium("document", pages=1), "PDF, 1 page"),
        (Medium("document", size=12_345), "document, 12,345 bytes"),
        (Medium("audio", seconds=1.6), "audio, 2 seconds"),
        (Medium("image"), "image"),
    ],
)
def test_a_medium_in_words(medium: Medium, words: str) -> None:
    assert format_medium(medium) == words
