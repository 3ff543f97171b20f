"""Who may see our own pages, and whose page may spend our key."""

import json

import pytest

from proxy.server.access import AccessRules
from proxy.server.errors import Refused
from proxy.server.policy import ServerPolicy
from tests.support.scripted import ScriptedUpstream, answer, request
from tests.support.serving import TOKEN, Plan, Served, serving, with_server

BEARER = f"Authorization: Bearer {TOKEN}"
PAGES = pytest.mark.parametrize("path", ["/-/", "/-/metrics", "/-/unknown", "/-/api/sessions"])


@PAGES
@pytest.mark.parametrize(
    "field",
    [
        "X: 1",
        "Authorization: Bearer wrong",
        f"Authorization: Basic {TOKEN}",
        f"Authorization: Bearer {TOKEN}x",
        "Authorization: Bearer",
        "Cookie: palimpsest_admin=wrong",
        f"Cookie: other={TOKEN}",
        f"X-Api-Key: {TOKEN}",
    ],
)
async def test_our_pages_are_closed_without_the_token(
    served: Served, upstream: ScriptedUpstream, path: str, field: str
) -> None:
    got = await served.ask(request("GET", path, field))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (401, "unauthorized")
    assert TOKEN.encode() not in got.body
    assert upstream.accepted == 0


@pytest.mark.parametrize("field", [BEARER, f"authorization: bearer  {TOKEN}", f"Cookie: a=b; palimpsest_admin={TOKEN}"])
async def test_the_token_opens_them(served: Served, field: str) -> None:
    assert (await served.ask(request("GET", "/-/metrics", field))).status == 200


async def test_without_a_token_of_our_own_nobody_gets_in(plan: Plan) -> None:
    async with serving(with_server(plan, admin_token="")) as served:
        for field in ("X: 1", "Authorization: Bearer ", "Cookie: palimpsest_admin="):
            assert (await served.ask(request("GET", "/-/metrics", field))).status == 401
        assert (await served.ask(request("GET", "/-/metrics?token="))).status == 401


async def test_the_link_of_the_start_gives_a_cookie_that_opens_the_page(served: Served) -> None:
    got = await served.ask(request("GET", f"/-/?token={TOKEN}"))
    assert (got.status, got.find(b"location")) == (303, b"/-/")
    cookie, *attributes = got.find(b"set-cookie").decode().split("; ")
    assert {"HttpOnly", "Path=/-/", "SameSite=strict"} <= set(attributes)
    page = await served.ask(request("GET", "/-/", f"Cookie: {cookie}"))
    assert (page.status, b"<h1>palimpsest</h1>" in page.body) == (200, True)


async def test_a_token_that_is_no_plain_word_works_by_cookie_too(plan: Plan) -> None:
    async with serving(with_server(plan, admin_token='a;b "c"')) as served:
        got = await served.ask(request("GET", "/-/?token=a%3Bb+%22c%22"))
        cookie = got.find(b"set-cookie").decode().rpartition("; HttpOnly")[0]
        assert (await served.ask(request("GET", "/-/", f"Cookie: {cookie}"))).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "localhost@evil.example"]
)
@PAGES
async def test_a_host_that_is_not_ours_is_refused_whatever_the_token(served: Served, path: str, host: str) -> None:
    got = await served.ask(request("GET", path, BEARER, host=host))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["", "[::1", "a b", "\xe9", "//", ":8484"])
async def test_a_host_that_is_none_is_refused(served: Served, host: str) -> None:
    assert (await served.ask(request("GET", "/-/metrics", BEARER, host=host))).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8484", "[::1]:8484", "10.1.2.3", "good.example:1"]
)
async def test_loopback_addresses_and_named_hosts_are_ours(plan: Plan, host: str) -> None:
    async with serving(with_server(plan, allowed_hosts=("Good.example",))) as served:
        assert (await served.ask(request("GET", "/-/metrics", BEARER, host=host))).status == 200


async def test_every_host_may_be_allowed(plan: Plan) -> None:
    async with serving(with_server(plan, allowed_hosts=("*",))) as served:
        assert (await served.ask(request("GET", "/-/metrics", BEARER, host="any.example"))).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "http://[", "http://localhost.evil", "file://"]
)
async def test_a_foreign_page_is_refused_whatever_the_token(served: Served, origin: str) -> None:
    got = await served.ask(request("GET", "/-/metrics", BEARER, f"Origin: {origin}", host="localhost"))
    assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "forbidden")


async def test_our_own_page_may_ask(served: Served) -> None:
    got = await served.ask(request("GET", "/-/metrics", BEARER, "Origin: http://localhost:8", host="localhost:8"))
    assert got.status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/anything"])
async def test_a_foreign_host_cannot_spend_our_key(upstream: ScriptedUpstream, path: str) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(Plan(upstream.url, api_key="own-key")) as served:
        assert (await served.ask(request("GET", path, host="evil.example"))).status == 403
        assert upstream.accepted == 0
        assert (await served.ask(request("GET", path, host="localhost"))).status == 200


async def test_without_a_key_of_ours_any_host_will_do(served: Served, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(b"ok"))
    assert (await served.ask(request("GET", "/v1/models", host="any.example"))).status == 200


def test_the_name_that_is_not_known_is_told_with_the_setting_that_allows_it() -> None:
    with pytest.raises(Refused, match=r"'evil\.example' .*server\.allowed_hosts"):
        AccessRules(ServerPolicy()).check_host(((b"host", b"Evil.example:1"),))
