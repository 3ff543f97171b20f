"""Which conversation a request belongs to: the order of names, their reach, and who is who."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.lineage import Lineage, read_text
from proxy.model.exchange import Headers
from proxy.wire.body import SplitBody, split_body

LINEAGE = Lineage(b"salt", ("X-Grok-Conv-Id",))

IN_ORDER: list[tuple[bytes, str]] = [
    (b"x-palimpsest-session", "v"),
    (b"x-grok-conv-id", "x-grok-conv-id:v"),
    (b"x-session-id", "x-session-id:v"),
    (b"x-dynamo-session-id", "x-dynamo-session-id:v"),
    (b"helicone-session-id", "helicone-session-id:v"),
    (b"x-litellm-session-id", "x-litellm-session-id:v"),
    (b"body", "litellm_session_id:v"),
    (b"thread-id", "codex:v"),
    (b"x-claude-code-session-id", "claude-code:v:main"),
]


def split(content: bytes) -> SplitBody:
    body = split_body(content, "messages")
    assert body is not None
    return body


NAMED = split(b'{"litellm_session_id":"v","session_id":"w"}')


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_first_name_in_the_order_of_the_protocol_counts(first: int) -> None:
    left = IN_ORDER[first:]
    headers: Headers = tuple((name, b"v") for name, _ in reversed(left) if name != b"body")
    body = NAMED if any(name == b"body" for name, _ in left) else None
    assert LINEAGE.name_family(headers, body) == left[0][1]


def test_a_body_names_its_session_by_either_member() -> None:
    assert LINEAGE.name_family((), split(b'{"session_id":"w"}')) == "session_id:w"
    assert LINEAGE.name_family((), split(b'{"litellm_session_id":"","session_id":"w"}')) == "session_id:w"


@pytest.mark.parametrize("value", [b"null", b"7", b'""', b"{}", b'"\\ud800"', b'["w"]', b'"\xff"'])
def test_what_is_no_text_names_nothing_and_harms_nothing(value: bytes) -> None:
    assert LINEAGE.name_family((), split(b'{"session_id":' + value + b"}")) == ""
    assert read_text(value) == ""


def test_an_agent_of_claude_code_is_a_family_of_its_own() -> None:
    headers: Headers = ((b"x-claude-code-session-id", b"s"), (b"x-claude-code-agent-id", b"a"))
    assert LINEAGE.name_family(headers, None) == "claude-code:s:a"


@pytest.mark.parametrize("name", [b"user", b"prompt-cache-key", b"x-request-id", b"x-session"])
def test_other_fields_name_no_conversation(name: bytes) -> None:
    body = split(b'{"user":"u","safety_identifier":"s","prompt_cache_key":"k"}')
    assert LINEAGE.name_family(((name, b"v"),), body) == ""


def test_an_empty_name_is_none() -> None:
    assert LINEAGE.name_family(((b"x-palimpsest-session", b""), (b"thread-id", b"t")), None) == "codex:t"


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300))
def test_ids_of_any_length_and_alphabet_name_families_and_different_ids_different_ones(one: bytes, two: bytes) -> None:
    families = [LINEAGE.name_family(((b"x-session-id", value),), None) for value in (one, two)]
    assert all(0 < len(family) <= 200 for family in families)
    assert (families[0] == families[1]) == (one == two)
    sessions = [LINEAGE.name_session(b"t" * 16, "main", family, "x1") for family in families]
    assert (sessions[0].id == sessions[1].id) == (one == two)


def test_a_long_name_in_a_body_is_known_by_its_digest() -> None:
    long = "é" * 201
    family = LINEAGE.name_family((), split(b'{"session_id":"%b"}' % long.encode()))
    assert family.startswith("sha256:")
    assert len(family) == 71


def test_a_session_is_named_by_tenant_upstream_and_family_the_same_in_every_process() -> None:
    key = LINEAGE.name_session(b"t" * 16, "main", "f", "x1")
    assert key == Lineage(b"other salt").name_session(b"t" * 16, "main", "f", "x2")
    assert (key.tenant, key.upstream, key.family) == (b"t" * 16, "main", "f")
    others = [(b"u" * 16, "main", "f"), (b"t" * 16, "other", "f"), (b"t" * 16, "main", "g")]
    assert len({key.id, *(LINEAGE.name_session(*other, "x1").id for other in others)}) == 4


def test_a_call_without_a_family_has_a_session_that_no_family_can_name() -> None:
    key = LINEAGE.name_session(b"t" * 16, "main", "", "x1")
    assert key.family == ""
    others = [("", "x2"), ("x1", "x1"), ("x1", "x2")]
    assert len({key.id, *(LINEAGE.name_session(b"t" * 16, "main", *other).id for other in others)}) == 3


def test_a_tenant_is_its_credential_seen_through_the_salt() -> None:
    headers: Headers = ((b"authorization", b"Bearer sk-secret"),)
    tenant = LINEAGE.find_tenant(headers)
    assert len(tenant) == 16
    assert tenant == Lineage(b"salt").find_tenant(((b"accept", b"x"), *headers))
    assert tenant != Lineage(b"pepper").find_tenant(headers)
    assert tenant != LINEAGE.find_tenant(((b"authorization", b"Bearer sk-other"),))
    assert tenant != LINEAGE.find_tenant(())


def test_a_fingerprint_does_not_show_the_credential() -> None:
    secret = b"Bearer sk-secret"
    tenant = LINEAGE.find_tenant(((b"authorization", secret),))
    assert not any(secret[i : i + 4] in tenant for i in range(len(secret) - 3))
