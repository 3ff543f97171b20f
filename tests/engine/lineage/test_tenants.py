"""Whose a request is: principals, subjects, fingerprints, and what a credential has proven."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.lineage.tenants import Tenants
from proxy.engine.policy import Principal
from proxy.model.exchange import Headers
from tests.support.engine import FixedClock

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
    caller = make().find(bear("sk-secret"))
    assert len(caller.tenant) == 16
    assert caller.tenant == caller.token
    assert caller == make().find(bear("sk-secret"))
    assert caller.tenant != make(b"pepper").find(bear("sk-secret")).tenant
    assert caller.tenant != make().find(bear("sk-other")).tenant
    assert caller.tenant != make().find(()).tenant


def test_a_fingerprint_does_not_show_the_credential() -> None:
    secret = b"Bearer sk-secret"
    tenant = make().find(((b"authorization", secret),)).tenant
    assert not any(secret[i : i + 4] in tenant for i in range(len(secret) - 3))


def test_the_keys_of_a_principal_are_one_tenant_and_other_keys_are_not() -> None:
    tenants = make(team=Principal(keys=("sk-1", "sk-2")), other=Principal(keys=("sk-3",)))
    one, two, three, stranger = (tenants.find(bear(key)) for key in ("sk-1", "sk-2", "sk-3", "sk-4"))
    assert one.tenant == two.tenant
    assert one.token != two.token
    assert len({one.tenant, three.tenant, stranger.tenant}) == 3
    assert tenants.find(((b"x-api-key", b"sk-1"),)).tenant == one.tenant


def test_a_principal_by_header_is_a_tenant_for_each_value() -> None:
    tenants = make(team=Principal(header="X-Team"))
    red = tenants.find((*bear("sk-1"), (b"x-team", b"red")))
    assert red.tenant == tenants.find((*bear("sk-2"), (b"x-team", b"red"))).tenant
    assert red.tenant != tenants.find((*bear("sk-1"), (b"x-team", b"blue"))).tenant
    assert tenants.find(bear("sk-1")).tenant == tenants.find(bear("sk-1")).token


def test_a_renewed_token_of_the_same_subject_is_the_same_tenant() -> None:
    one, two = (make().find(bear(forge(iss="i", sub="s", aud="a", exp=exp))) for exp in (1, 2))
    assert one.tenant == two.tenant
    assert one.token != two.token


@pytest.mark.parametrize("change", [{"iss": "j"}, {"sub": "t"}, {"aud": "b"}, {"aud": ["a"]}])
def test_another_subject_is_another_tenant(change: dict[str, object]) -> None:
    claims: dict[str, object] = {"iss": "i", "sub": "s", "aud": "a"}
    assert make().find(bear(forge(**claims))).tenant != make().find(bear(forge(**claims | change))).tenant


@pytest.mark.parametrize("token", ["eyJ.eyJ.x", "a.b.c", forge(sub="s"), forge(iss="i"), "a.ey=.c", "..", "e.eyWw.s"])
def test_what_is_no_token_of_a_subject_is_its_own_tenant(token: str) -> None:
    caller = make().find(bear(token))
    assert caller.tenant == caller.token


@pytest.mark.parametrize("unsaid", [{"iss": None}, {"sub": None}, {"iss": ""}, {"sub": ""}])
def test_a_token_that_leaves_open_whose_it_is_is_its_own_tenant(unsaid: dict[str, object]) -> None:
    caller = make().find(bear(forge(**{"iss": "i", "sub": "s"} | unsaid)))
    assert caller.tenant == caller.token


def test_no_credential_is_a_principal() -> None:
    tenants = make(acme=Principal(keys=("sk-1",)), team=Principal(header="x-team"))
    taken = {tenants.find(headers).tenant for headers in (bear("sk-1"), ((b"x-team", b"red"),))}
    presented = [b"acme", b"principal\0acme", b"team\0red", b"header\0team\0red"]
    assert not taken & {tenants.find(((b"x-api-key", value),)).tenant for value in presented}


@given(st.binary(max_size=100))
def test_no_credential_of_any_kind_does_harm(value: bytes) -> None:
    assert len(make().find(((b"authorization", value),)).tenant) == 16


def test_a_credential_has_proven_itself_until_it_has_been_idle_for_half_an_hour() -> None:
    clock = FixedClock()
    tenants = make(clock=clock)
    token = tenants.find(bear("sk-1")).token
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
