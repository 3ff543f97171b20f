"""Rows as JSON."""

import json

import pytest

from proxy.engine.reports.sessions import Overview, describe_body, describe_overview, find_forks, is_json, write_json
from tests.support.fake_log import SESSION, branch


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


def test_of_very_many_exchanges_the_later_branches_have_only_their_own() -> None:
    """Of a thousand turns with as many edits at their end, each has all that is before."""
    trunk = branch("a", 1, range(1, 1001), depths=range(1, 1001))
    edits = [branch(str(n), 1, (n,), trunk=trunk, shared=999) for n in range(1001, 2001)]
    described = describe_overview(Overview(SESSION, find_forks([trunk, *edits]), ()))["branches"]
    assert [each["own"] for each in described[1:]] == [(n,) for n in range(1001, 2001)]
    whole = [each["exchanges"] for each in described if each["exchanges"] is not None]
    assert (len(whole), {len(numbers) for numbers in whole}) == (100, {1000})
    assert {each["after"] for each in described[1:]} == {999}
