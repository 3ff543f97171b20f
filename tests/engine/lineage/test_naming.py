"""What a client calls its conversation: the order of names, their reach, and whose children they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.lineage.naming import Name, Naming, make_session, read_body, read_text
from proxy.model.exchange import Headers
from proxy.wire.body import ByteRange, SplitBody, split_body

NAMING = Naming(("X-Grok-Conv-Id",))

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
UNNAMED = split(b'{"model":"m"}')


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_first_name_in_the_order_of_the_protocol_counts(first: int) -> None:
    left = IN_ORDER[first:]
    headers: Headers = tuple((name, b"v") for name, _ in reversed(left) if name != b"body")
    body = NAMED if any(name == b"body" for name, _ in left) else UNNAMED
    assert read_body(NAMING.read(headers), body).family == left[0][1]


def test_a_body_names_its_session_by_either_member() -> None:
    assert read_body(Name(), split(b'{"session_id":"w"}')).family == "session_id:w"
    assert read_body(Name(), split(b'{"litellm_session_id":"","session_id":"w"}')).family == "session_id:w"


@pytest.mark.parametrize("value", [b"null", b"7", b'""', b"{}", b'"\\ud800"', b'["w"]', b'"\xff"'])
def test_what_is_no_text_names_nothing_and_harms_nothing(value: bytes) -> None:
    assert read_body(Name(), split(b'{"session_id":' + value + b"}")).family == ""
    assert read_text(value) == ""


def test_an_agent_of_claude_code_is_a_family_of_its_own() -> None:
    headers: Headers = ((b"x-claude-code-session-id", b"s"), (b"x-claude-code-agent-id", b"a"))
    assert NAMING.read(headers).family == "claude-code:s:a"


@pytest.mark.parametrize("name", [b"user", b"prompt-cache-key", b"x-request-id", b"x-session"])
def test_other_fields_name_no_conversation(name: bytes) -> None:
    body = split(b'{"user":"u","safety_identifier":"s","prompt_cache_key":"k"}')
    assert read_body(NAMING.read(((name, b"v"),)), body).family == ""


def test_an_empty_name_is_none() -> None:
    assert NAMING.read(((b"x-palimpsest-session", b""), (b"thread-id", b"t"))).family == "codex:t"


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300))
def test_ids_of_any_length_and_alphabet_name_families_and_different_ids_different_ones(one: bytes, two: bytes) -> None:
    families = [NAMING.read(((b"x-session-id", value),)).family for value in (one, two)]
    assert all(0 < len(family) <= 200 for family in families)
    assert (families[0] == families[1]) == (one == two)
    sessions = [make_session(b"t" * 16, "main", Name(family), "x1") for family in families]
    assert (sessions[0].id == sessions[1].id) == (one == two)


def test_a_long_name_in_a_body_is_known_by_its_digest() -> None:
    long = "é" * 201
    family = read_body(Name(), split(b'{"session_id":"%b"}' % long.encode())).family
    assert family.startswith("sha256:")
    assert len(family) == 71


def test_a_session_is_named_by_tenant_upstream_and_family_the_same_in_every_process() -> None:
    key = make_session(b"t" * 16, "main", Name("f"), "x1")
    assert key == make_session(b"t" * 16, "main", Name("f"), "x2")
    assert (key.tenant, key.upstream, key.family, key.parent) == (b"t" * 16, "main", "f", "")
    others = [(b"u" * 16, "main", "f"), (b"t" * 16, "other", "f"), (b"t" * 16, "main", "g")]
    ids = {key.id, *(make_session(tenant, upstream, Name(family), "x1").id for tenant, upstream, family in others)}
    assert len(ids) == 4


def test_a_call_without_a_family_has_a_session_that_no_family_can_name() -> None:
    key = make_session(b"t" * 16, "main", Name(), "x1")
    assert key.family == ""
    others = [("", "x2"), ("x1", "x1"), ("x1", "x2")]
    assert len({key.id, *(make_session(b"t" * 16, "main", Name(family), x).id for family, x in others)}) == 3


CHILDREN: list[tuple[Headers, Headers]] = [
    (((b"x-session-id", b"c"), (b"x-parent-session-id", b"p")), ((b"x-session-id", b"p"),)),
    (((b"thread-id", b"c"), (b"x-codex-parent-thread-id", b"p")), ((b"thread-id", b"p"),)),
    (
        ((b"x-claude-code-session-id", b"p"), (b"x-claude-code-agent-id", b"c")),
        ((b"x-claude-code-session-id", b"p"),),
    ),
]


@pytest.mark.parametrize(("child", "parent"), CHILDREN)
def test_a_session_knows_the_one_whose_agent_started_it(child: Headers, parent: Headers) -> None:
    started = make_session(b"t" * 16, "main", NAMING.read(child), "x1")
    starter = make_session(b"t" * 16, "main", NAMING.read(parent), "x2")
    assert started.parent == starter.id
    assert starter.parent == ""


@pytest.mark.parametrize("name", [b"x-session-id", b"thread-id"])
def test_nobody_is_their_own_parent(name: bytes) -> None:
    headers: Headers = ((name, b"a"), (b"x-parent-session-id", b"a"), (b"x-codex-parent-thread-id", b"a"))
    assert NAMING.read(headers).parent == ""


@pytest.mark.parametrize(
    ("raw", "family"),
    [
        (b'"conv_1"', "conversation:conv_1"),
        (b'{"id":"conv_1"}', "conversation:conv_1"),
        (b'{"id":7}', ""),
        (b"{}", ""),
        (b'{"id":', ""),
        (b"null", ""),
    ],
)
def test_a_history_that_the_upstream_holds_names_its_conversation(raw: bytes, family: str) -> None:
    body = SplitBody(raw, {"conversation": ByteRange(0, len(raw))}, ())
    assert read_body(Name(), body).family == family
