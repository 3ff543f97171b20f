"""Who may use `/-/mcp`: the administrator, and clients by the credential with which they call."""

import sys
from functools import partial

import pytest

from proxy.engine.lineage.identity import Tenants
from proxy.engine.policy import Principal
from proxy.engine.recall.policy import RecallPolicy
from proxy.engine.recall.recall import Recall
from proxy.model.exchange import Headers
from proxy.server.access import AccessRules
from proxy.server.errors import Refused
from proxy.server.mcp.endpoint import McpEndpoint, load_sdk
from proxy.server.mcp.tools import McpTools, Reader, ToolResult
from proxy.server.policy import ServerPolicy
from tests.support.recalling import MadeIndex, StoppedClock, make_log

TOKEN = "test-admin-token"
HOST = (b"host", b"127.0.0.1:8484")
# A token without a signature, of the issuer `i` and the subject `s`.
JWT = b"Bearer eyJhbGciOiJub25lIn0.eyJpc3MiOiJpIiwic3ViIjoicyJ9.x"


def make_tenants() -> Tenants:
    principals = {"team": Principal(keys=("sk-team",)), "people": Principal(header="x-user")}
    return Tenants(b"salt" * 8, StoppedClock(), principals)


def make_endpoint(tenants: Tenants, *, is_open: bool = False) -> McpEndpoint:
    policy = ServerPolicy(port=0, admin_token=TOKEN)
    log, clock, recall = make_log(), StoppedClock(), RecallPolicy()
    tools = McpTools(log, Recall(log, MadeIndex(), clock, recall), clock, recall)
    return McpEndpoint(tools, AccessRules(policy), partial(tenants.find_reader, is_open=is_open), policy)


def bear(token: bytes, *more: tuple[bytes, bytes]) -> Headers:
    return (HOST, (b"authorization", b"Bearer " + token), *more)


def test_the_admin_token_sees_everything() -> None:
    assert make_endpoint(make_tenants()).find_reader(bear(TOKEN.encode())) == Reader(None)


def test_a_key_of_the_settings_sees_what_its_principal_s_calls_recorded() -> None:
    tenants = make_tenants()
    assert make_endpoint(tenants).find_reader(bear(b"sk-team")) == Reader(tenants.identify(bear(b"sk-team")).tenant)


@pytest.mark.parametrize(
    "headers",
    [
        bear(b"sk-one"),
        (HOST, (b"x-api-key", b"sk-two")),
        (HOST, (b"authorization", JWT)),
        bear(b"sk-one", (b"x-user", b"ann")),
    ],
)
async def test_another_credential_sees_its_own_once_the_upstream_has_accepted_it(headers: Headers) -> None:
    tenants = make_tenants()
    endpoint = make_endpoint(tenants)
    before = endpoint.find_reader(headers)
    assert before.tenant == b"" and "one that an upstream has accepted in the last half hour" in before.refusal
    result = await endpoint.tools.call(before, "list_sessions", {})
    assert result == ToolResult(before.refusal, True)
    tenants.prove(tenants.identify(headers).token)
    assert endpoint.find_reader(headers) == Reader(tenants.identify(headers).tenant)
    assert make_endpoint(tenants, is_open=True).find_reader(headers) == before


def test_without_a_credential_nobody_sees_anything() -> None:
    """Not even what was recorded of calls without one, which an upstream with a key of ours takes."""
    tenants = make_tenants()
    tenants.prove(tenants.identify((HOST,)).token)
    for headers in ((HOST,), (HOST, (b"x-user", b"ann")), (HOST, (b"cookie", b"palimpsest=x"))):
        with pytest.raises(Refused, match="send the admin token as") as refused:
            make_endpoint(tenants).find_reader(headers)
        assert refused.value.status == 401


@pytest.mark.parametrize(
    "headers",
    [
        ((b"host", b"evil.example"), (b"authorization", b"Bearer " + TOKEN.encode())),
        bear(TOKEN.encode(), (b"origin", b"https://evil.example")),
        bear(TOKEN.encode(), (b"origin", b"http://localhost:1")),
        bear(b"sk-one", (b"sec-fetch-site", b"cross-site")),
    ],
)
def test_pages_of_others_are_refused_whatever_they_know(headers: Headers) -> None:
    with pytest.raises(Refused) as refused:
        make_endpoint(make_tenants()).find_reader(headers)
    assert refused.value.status == 403


def test_without_the_extra_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "proxy.server.mcp.sdk", raising=False)
    for name in [name for name in sys.modules if name == "mcp" or name.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(Refused, match="needs the extra mcp: make install EXTRAS=mcp, or pip") as refused:
        load_sdk()
    assert refused.value.status == 501
