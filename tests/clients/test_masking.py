"""Masks: what differs by chance is gone, what a proxy could break is still there."""

import re

import pytest

from tests.clients.agents import AGENTS
from tests.clients.client import Client
from tests.clients.masking import blank, number_ids, sort_member

ONE, TWO = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def test_ids_are_numbered_by_their_place() -> None:
    assert number_ids(f"{TWO} {ONE} {TWO}".encode()) == b"id-1 id-2 id-1"
    assert number_ids(f"{ONE} {ONE} {TWO}".encode()) != number_ids(f"{ONE} {TWO} {TWO}".encode())
    assert number_ids(b"x7 x9 x7", re.compile(rb"x\d")) == b"id-1 id-2 id-1"


def test_only_the_group_is_blanked() -> None:
    assert blank(b"took 1.25 s, 3 calls", r"took ([\d.]+) s", r"never (.)") == b"took 0 s, 3 calls"


def test_a_member_gets_its_keys_in_order_and_nothing_else_changes() -> None:
    assert sort_member(b'{"b" : 1,"m":{"z":1,"a":"\xc3\xa9"}}', "m") == b'{"b" : 1,"m":{"a": "\\u00e9", "z": 1}}'
    assert sort_member(b'{"b":1}', "m") == b'{"b":1}'
    assert sort_member(b"no JSON", "m") == b"no JSON"


def codex(thread: str, first: str, second: str) -> bytes:
    return f'{{"input":[{{"id":"msg_{thread}"}}],"client_metadata":{{"{first}":"{thread}","{second}":"1"}}}}'.encode()


def claude(device: str, session: str) -> bytes:
    return rf'{{"metadata":{{"user_id":"{{\"device_id\":\"{device}\",\"session_id\":\"{session}\"}}"}}}}'.encode()


def find(name: str) -> Client:
    return next(client for client in AGENTS if client.name == name)


@pytest.mark.parametrize(
    ("name", "one", "same", "other"),
    [
        ("codex", codex(ONE, "a", "thread_id"), codex(TWO, "a", "thread_id"), codex(ONE, "b", "thread_id")),
        ("codex", b"Chunk ID: a1b2\\nWall time: 0.01 s", b"Chunk ID: ffff\\nWall time: 2.5 s", b"Chunk IDs"),
        ("opencode", b"ses_" + b"a" * 26, b"ses_" + b"b" * 26, b"ses_" + b"b" * 25),
        (
            "claude-code",
            b"agentId: a1234567890abcdef\nduration_ms: 17",
            b"agentId: afedcba0987654321\nduration_ms: 9",
            b"agentId: a123\nduration_ms: 17",
        ),
        (
            "gemini-cli",
            b'{"id":"read_file_1795647296408_0"} Process Group PGID: 30743',
            b'{"id":"read_file_1795647310327_0"} Process Group PGID: 7',
            b'{"id":"read_file_17_0"} Process Group PGID: 30743',
        ),
        ("claude-code", claude("a" * 64, ONE), claude("b" * 64, TWO), claude("a" * 63, ONE)),
    ],
)
def test_a_client_differs_by_chance_in_this_only(name: str, one: bytes, same: bytes, other: bytes) -> None:
    normal = find(name).normal
    assert one != same
    assert normal(one) == normal(same)
    assert normal(one) != normal(other)


def test_the_order_of_codexs_metadata_does_not_count() -> None:
    normal = find("codex").normal
    body = b'{"client_metadata":{"a":"1","b":"2"}}'
    assert normal(body) == normal(b'{"client_metadata":{"b":"2","a":"1"}}') != normal(body.replace(b"2", b"3"))
