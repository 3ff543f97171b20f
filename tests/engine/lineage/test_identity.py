"""Who calls, and what a client calls its conversation: the order of ids, their reach, and whose children they are."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.lineage.identity import (
    ClientId,
    ClientIdReader,
    Tenants,
    make_session,
    parse_json_string,
    read_body_id,
)
from proxy.engine.policy import Principal
from proxy.model.exchange import Headers
from proxy.wire.body import ByteRange, SplitBody, split_body
from tests.support.engine import FixedClock

NAMING = ClientIdReader(("X-Grok-Conv-Id",))

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
    assert read_body_id(NAMING.read(headers), body).family == left[0][1]


def test_a_body_names_its_session_by_either_member() -> None:
    assert read_body_id(ClientId(), split(b'{"session_id":"w"}')).family == "session_id:w"
    assert read_body_id(ClientId(), split(b'{"litellm_session_id":"","session_id":"w"}')).family == "session_id:w"


@pytest.mark.parametrize("value", [b"null", b"7", b'""', b"{}", b'"\\ud800"', b'["w"]', b'"\xff"'])
def test_what_is_no_text_names_nothing_and_harms_nothing(value: bytes) -> None:
    assert read_body_id(ClientId(), split(b'{"session_id":' + value + b"}")).family == ""
    assert parse_json_string(value) == ""


def test_an_agent_of_claude_code_is_a_family_of_its_own() -> None:
    headers: Headers = ((b"x-claude-code-session-id", b"s"), (b"x-claude-code-agent-id", b"a"))
    assert NAMING.read(headers).family == "claude-code:s:a"


@pytest.mark.parametrize("name", [b"user", b"prompt-cache-key", b"x-request-id", b"x-session"])
def test_other_fields_name_no_conversation(name: bytes) -> None:
    body = split(b'{"user":"u","safety_identifier":"s","prompt_cache_key":"k"}')
    assert read_body_id(NAMING.read(((name, b"v"),)), body).family == ""


def test_an_empty_name_is_none() -> None:
    assert NAMING.read(((b"x-palimpsest-session", b""), (b"thread-id", b"t"))).family == "codex:t"


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300))
def test_ids_of_any_length_and_alphabet_name_families_and_different_ids_different_ones(one: bytes, two: bytes) -> None:
    families = [NAMING.read(((b"x-session-id", value),)).family for value in (one, two)]
    assert all(0 < len(family) <= 200 for family in families)
    assert (families[0] == families[1]) == (one == two)
    sessions = [make_session(b"t" * 16, "main", ClientId(family), "x1") for family in families]
    assert (sessions[0].id == sessions[1].id) == (one == two)


def test_a_long_name_in_a_body_is_known_by_its_digest() -> None:
    long = "é" * 201
    family = read_body_id(ClientId(), split(b'{"session_id":"%b"}' % long.encode())).family
    assert family.startswith("sha256:")
    assert len(family) == 71


def test_a_session_is_named_by_tenant_upstream_and_family_the_same_in_every_process() -> None:
    key = make_session(b"t" * 16, "main", ClientId("f"), "x1")
    assert key == make_session(b"t" * 16, "main", ClientId("f"), "x2")
    assert (key.tenant, key.upstream, key.family, key.parent) == (b"t" * 16, "main", "f", "")
    others = [(b"u" * 16, "main", "f"), (b"t" * 16, "other", "f"), (b"t" * 16, "main", "g")]
    ids = {key.id, *(make_session(tenant, upstream, ClientId(family), "x1").id for tenant, upstream, family in others)}
    assert len(ids) == 4


def test_a_call_without_a_family_has_a_session_that_no_family_can_name() -> None:
    key = make_session(b"t" * 16, "main", ClientId(), "x1")
    assert key.family == ""
    others = [("", "x2"), ("x1", "x1"), ("x1", "x2")]
    assert len({key.id, *(make_session(b"t" * 16, "main", ClientId(family), x).id for family, x in others)}) == 3


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
    assert read_body_id(ClientId(), body).family == family


HALF_AN_HOUR = 1800.0


def make(salt: bytes = b"salt", clock: FixedClock | None = None, **principals: Principal) -> Tenants:
    return Tenants(salt, clock or FixedClock(), principals)


def bear(token: str) -> Headers:
    return ((b"accept", b"x"), (b"authorization", b"Bearer " + token.encode()))


def forge(**claims: object) -> str:
    """A JWT with these claims, and a signature that nobody checks here."""
    parts = [{"alg": "none"}, claims]
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "s"]
    )


def test_a_tenant_is_its_credential_seen_through_the_salt() -> None:
    caller = make().identify(bear("sk-secret"))
    assert len(caller.tenant) == 16
    assert caller.tenant == caller.token
    assert caller == make().identify(bear("sk-secret"))
    assert caller.tenant != make(b"pepper").identify(bear("sk-secret")).tenant
    assert caller.tenant != make().identify(bear("sk-other")).tenant
    assert caller.tenant != make().identify(()).tenant


def test_a_fingerprint_does_not_show_the_credential() -> None:
    secret = b"Bearer sk-secret"
    tenant = make().identify(((b"authorization", secret),)).tenant
    assert not any(secret[i : i + 4] in tenant for i in range(len(secret) - 3))


def test_the_keys_of_a_principal_are_one_tenant_and_other_keys_are_not() -> None:
    tenants = make(team=Principal(keys=("sk-1", "sk-2")), other=Principal(keys=("sk-3",)))
    one, two, three, stranger = (tenants.identify(bear(key)) for key in ("sk-1", "sk-2", "sk-3", "sk-4"))
    assert one.tenant == two.tenant
    assert one.token != two.token
    assert len({one.tenant, three.tenant, stranger.tenant}) == 3
    assert tenants.identify(((b"x-api-key", b"sk-1"),)).tenant == one.tenant


def test_a_principal_by_header_is_a_tenant_for_each_value() -> None:
    tenants = make(team=Principal(header="X-Team"))
    red = tenants.identify((*bear("sk-1"), (b"x-team", b"red")))
    assert red.tenant == tenants.identify((*bear("sk-2"), (b"x-team", b"red"))).tenant
    assert red.tenant != tenants.identify((*bear("sk-1"), (b"x-team", b"blue"))).tenant
    assert tenants.identify(bear("sk-1")).tenant == tenants.identify(bear("sk-1")).token


def test_a_renewed_token_of_the_same_subject_is_the_same_tenant() -> None:
    one, two = (make().identify(bear(forge(iss="i", sub="s", aud="a", exp=exp))) for exp in (1, 2))
    assert one.tenant == two.tenant
    assert one.token != two.token


@pytest.mark.parametrize("change", [{"iss": "j"}, {"sub": "t"}, {"aud": "b"}, {"aud": ["a"]}])
def test_another_subject_is_another_tenant(change: dict[str, object]) -> None:
    claims: dict[str, object] = {"iss": "i", "sub": "s", "aud": "a"}
    assert make().identify(bear(forge(**claims))).tenant != make().identify(bear(forge(**claims | change))).tenant


@pytest.mark.parametrize("token", ["eyJ.eyJ.x", "a.b.c", forge(sub="s"), forge(iss="i"), "a.ey=.c", "..", "e.eyWw.s"])
def test_what_is_no_token_of_a_subject_is_its_own_tenant(token: str) -> None:
    caller = make().identify(bear(token))
    assert caller.tenant == caller.token


@pytest.mark.parametrize("unsaid", [{"iss": None}, {"sub": None}, {"iss": ""}, {"sub": ""}])
def test_a_token_that_leaves_open_whose_it_is_is_its_own_tenant(unsaid: dict[str, object]) -> None:
    caller = make().identify(bear(forge(**{"iss": "i", "sub": "s"} | unsaid)))
    assert caller.tenant == caller.token


def test_no_credential_is_a_principal() -> None:
    tenants = make(acme=Principal(keys=("sk-1",)), team=Principal(header="x-team"))
    taken = {tenants.identify(headers).tenant for headers in (bear("sk-1"), ((b"x-team", b"red"),))}
    presented = [b"acme", b"principal\0acme", b"team\0red", b"header\0team\0red"]
    assert not taken & {tenants.identify(((b"x-api-key", value),)).tenant for value in presented}


@given(st.binary(max_size=100))
def test_no_credential_of_any_kind_does_harm(value: bytes) -> None:
    assert len(make().identify(((b"authorization", value),)).tenant) == 16


def test_a_credential_has_proven_itself_until_it_has_been_idle_for_half_an_hour() -> None:
    clock = FixedClock()
    tenants = make(clock=clock)
    token = tenants.identify(bear("sk-1")).token
    assert not tenants.is_proven(token)
    tenants.prove(token)
    clock.advance(HALF_AN_HOUR)
    assert tenants.is_proven(token)
    tenants.prove(token)
    clock.advance(HALF_AN_HOUR - 1)
    tenants.prove(token)
    clock.advance(2)
    assert tenants.is_proven(token)
    clock.advance(HALF_AN_HOUR)
    assert not tenants.is_proven(token)


def test_what_credentials_have_proven_takes_bounded_memory() -> None:
    tenants = make()
    for number in range(5000):
        tenants.prove(number.to_bytes(16, "big"))
    assert not tenants.is_proven((0).to_bytes(16, "big"))
    assert tenants.is_proven((4999).to_bytes(16, "big"))


def test_who_may_read_has_proven_whose_sessions_they_are() -> None:
    tenants = Tenants(b"s" * 32, FixedClock(), {"team": Principal(keys=("secret",)), "who": Principal(header="x-who")})
    known, other = ((b"authorization", b"Bearer secret"),), ((b"authorization", b"Bearer sk-1"),)
    claimed = (*other, (b"x-who", b"maria"))
    assert tenants.find_reader(known) == tenants.identify(known).tenant
    for headers in ((), other, claimed, ((b"authorization", b""),)):
        assert tenants.find_reader(headers) is None
    tenants.prove(tenants.identify(other).token)
    assert tenants.find_reader(other) == tenants.identify(other).tenant
    assert tenants.find_reader(claimed) == tenants.identify(claimed).tenant
    assert tenants.find_reader(known, is_open=True) == tenants.identify(known).tenant
    assert tenants.find_reader(other, is_open=True) is None  # with a key of ours, every credential is accepted
