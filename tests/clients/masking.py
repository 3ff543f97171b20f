"""What is taken out of a request before two runs are compared: only what a client makes up anew each time.

Rule: pure; a mask is as narrow as its reason. Random ids are numbered, not blanked: where one stands for another, it
shows.
"""

import json
import re

from proxy.wire.body import split_body

_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def number_ids(body: bytes, pattern: re.Pattern[bytes] = _UUID) -> bytes:
    """Every id by its place: the first one, the second one; the same id has the same number."""
    numbers: dict[bytes, int] = {}
    return pattern.sub(lambda found: b"id-%d" % numbers.setdefault(found[0], len(numbers) + 1), body)


def blank(body: bytes, *patterns: str) -> bytes:
    """What the first group of each pattern matches, made zeros."""
    for pattern in patterns:
        body = re.sub(pattern.encode(), lambda found: found[0].replace(found[1], b"0"), body)
    return body


def sort_member(body: bytes, name: str) -> bytes:
    """One member of the body, an object, with its keys in order."""
    split = split_body(body, "")
    member = split.member(name) if split else b""
    return body.replace(member, json.dumps(json.loads(member), sort_keys=True).encode()) if member else body
