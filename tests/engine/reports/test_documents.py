"""Rows as JSON."""

import json

import pytest

from proxy.engine.reports.documents import describe_body, is_json, write_json


@pytest.mark.parametrize("content", [b"{}", b' [1e400, "\\ud800"] ', b'"x"', b"12345678901234567890123"])
def test_json_goes_out_as_it_came(content: bytes) -> None:
    assert write_json(describe_body(content)) == b'{"request":' + content + b"}\n"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"NaN", b"[Infinity]", b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_json_goes_out_in_base64(content: bytes) -> None:
    assert not is_json(content)
    assert set(describe_body(content)) == {"request_base64"}


def test_a_document_is_one_line_whatever_its_parts_look_like() -> None:
    written = write_json(describe_body(b'{\r\n"a":\n1}'))
    assert written.count(b"\n") == 1
    assert json.loads(written) == {"request": {"a": 1}}
