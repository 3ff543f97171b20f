"""Who may see our own pages, and whose page may spend our key."""

import json

import pytest

from proxy.server.access import AccessRules, make_cookie
from proxy.server.errors import Refused
from proxy.server.policy import ServerPolicy
from tests.support.scripted import ScriptedUpstream, answer, request
from tests.support.serving import TOKEN, Plan, Served, serving, with_server

COOKIE = make_cookie(TOKEN)
BEARER = f"Authorization: Bearer {TOKEN}"
CLOSED = (
    *("/-/", "/-/metrics", "/-/unknown", "/-/api/sessions", "/-/api", "/-/api/openapi.json", "/-/sessions.json"),
    *("/-/search", "/-/static/page.js", "/-/api/search?q=x", "/-/api/refs/abcdefgh23"),
)
EVERY = (*CLOSED, "/-/live", "/-/ready")


@pytest.mark.parametrize(
    "field",
    [
        "X: 1",
        "Authorization: Bearer wrong",
        f"Authorization: Basic {TOKEN}",
        f"Authorization: Bearer {TOKEN}x",
        "Authorization: Bearer",
        "Cookie: palimpsest_admin=wrong",
        f"Cookie: palimpsest_admin={TOKEN}",
        f"Authorization: Bearer {make_cookie(TOKEN)}",
        f"Cookie: other={TOKEN}",
        f"X-Api-Key: {TOKEN}",
    ],
)
async def test_our_pages_are_closed_without_the_token(served: Served, upstream: ScriptedUpstream, field: str) -> None:
    for path in CLOSED:
        got = await served.ask(request("GET", path, field))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (401, "unauthorized"), path
        assert TOKEN.encode() not in got.body
    assert upstream.accepted == 0


BROWSER = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize("path", ["/-/", "/-/sessions/abc", "/-/api/health"])
async def test_a_person_without_the_token_is_told_how_to_get_in(served: Served, path: str) -> None:
    got = await served.ask(request("GET", path, BROWSER))
    assert got.status == 401 and got.find(b"content-type").startswith(b"text/html")
    assert got.find(b"x-frame-options") == b"DENY"
    assert b"palimpsest open" in got.body and b'name="token"' in got.body and TOKEN.encode() not in got.body
    asked = await served.ask(request("POST", path, BROWSER))
    assert asked.status == 401 and json.loads(asked.body)["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(
    "field",
    [
        BEARER,
        f"authorization: bearer  {TOKEN}",
        f"Cookie: a=b; palimpsest_admin={COOKIE}",
        f"Cookie: palimpsest_admin=stale; palimpsest_admin={COOKIE}",
    ],
)
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
    assert set(attributes) == {"HttpOnly", "Path=/-/", "SameSite=strict"}
    assert TOKEN not in cookie
    page = await served.ask(request("GET", "/-/", f"Cookie: {cookie}"))
    assert (page.status, b"<title>Sessions" in page.body) == (200, True)


async def test_a_token_that_is_no_plain_word_works_by_cookie_too(plan: Plan) -> None:
    async with serving(with_server(plan, admin_token='a;b "c"')) as served:
        got = await served.ask(request("GET", "/-/?token=a%3Bb+%22c%22"))
        cookie = got.find(b"set-cookie").decode().partition("; ")[0]
        assert (await served.ask(request("GET", "/-/", f"Cookie: {cookie}"))).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "localhost@evil.example"]
)
async def test_a_host_that_is_not_ours_is_refused_whatever_the_token(served: Served, host: str) -> None:
    for path in EVERY:
        got = await served.ask(request("GET", path, BEARER, host=host))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "forbidden"), path


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
    for path in EVERY:
        got = await served.ask(request("GET", path, BEARER, f"Origin: {origin}", host="localhost"))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "forbidden"), path


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


# --- whose page may have calls carried (BEHAVIOUR B39) ---------------------------------------------------------------

CHAT = "/v1/chat/completions"
FOREIGN = pytest.mark.parametrize(
    "fields",
    [
        ("Origin: https://evil.example",),
        ("Origin: null",),
        ("Origin: http://localhost.evil.example",),
        ("Origin: http://localhost@evil.example",),
        ("Origin: http://127.0.0.1:8484.evil.example",),
        ("Origin: http://localhost", "Origin: http://evil.example"),
        ("Origin: http://10.1.2.3:8484",),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: Cross-Site", "Sec-Fetch-Mode: no-cors"),
    ],
)
KNOWN = pytest.mark.parametrize(
    "fields",
    [
        (),
        ("Origin: http://localhost:3000",),
        ("Origin: https://LOCALHOST",),
        ("Origin: http://app.localhost",),
        ("Origin: http://127.0.0.1:1", "Sec-Fetch-Site: cross-site"),
        ("Origin: http://[::1]:3000",),
        ("Origin: https://App.Example", "Sec-Fetch-Site: cross-site"),
        ("Sec-Fetch-Site: none",),
        ("Sec-Fetch-Site: same-site",),
    ],
)
CALLS = (("POST", CHAT), ("GET", "/v1/models"), ("OPTIONS", CHAT), ("GET", "/"), ("POST", "/x?key=a"))


@FOREIGN
@pytest.mark.parametrize("api_key", ["own-key", ""])
async def test_a_foreign_page_has_no_call_carried(
    upstream: ScriptedUpstream, api_key: str, fields: tuple[str, ...]
) -> None:
    upstream.answer_with(answer(b"ok", "Access-Control-Allow-Origin: *"))
    ambient = ("Cookie: session=abc; palimpsest_admin=x",)
    async with serving(with_server(Plan(upstream.url, api_key=api_key), allowed_origins=("https://a.example",))) as own:
        for method, path in CALLS:
            got = await own.ask(request(method, path, *fields, *ambient))
            assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "foreign_origin"), (method, path)
            assert got.all(b"access-control-allow-origin") == []
        assert (upstream.accepted, own.archive.appended) == (0, [])


@KNOWN
@pytest.mark.parametrize("api_key", ["own-key", ""])
async def test_every_other_client_has(upstream: ScriptedUpstream, api_key: str, fields: tuple[str, ...]) -> None:
    upstream.answer_with(answer(b"ok"))
    plan = with_server(Plan(upstream.url, api_key=api_key), allowed_origins=("https://app.example",))
    async with serving(plan) as own:
        for method, path in CALLS:
            assert (await own.ask(request(method, path, *fields))).status == 200, (method, path)


@FOREIGN
async def test_a_page_that_has_a_key_of_its_own_spends_that_and_not_ours(
    upstream: ScriptedUpstream, fields: tuple[str, ...]
) -> None:
    upstream.answer_with(answer(b"ok", "Access-Control-Allow-Origin: *"))
    for field in ("Authorization: Bearer k", "X-Api-Key: k"):
        async with serving(Plan(upstream.url)) as served:
            got = await served.ask(request("POST", CHAT, *fields, field, body=b"{}"))
            assert (got.status, got.find(b"access-control-allow-origin")) == (200, b"*")
        async with serving(Plan(upstream.url, api_key="own-key")) as served:
            assert (await served.ask(request("POST", CHAT, *fields, field, body=b"{}"))).status == 403


async def test_every_origin_may_be_allowed(plan: Plan) -> None:
    async with serving(with_server(plan, allowed_origins=("*",))) as served:
        assert (await served.ask(request("GET", "/-/live"))).status == 200
    rules = AccessRules(ServerPolicy(allowed_origins=("*",), has_own_key=True))
    rules.check_call(((b"host", b"localhost"), (b"origin", b"null")))


async def test_an_answer_for_all_pages_is_for_the_page_that_asked(upstream: ScriptedUpstream) -> None:
    shared = ("Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true", "X-Other: 1")
    upstream.answer_with(answer(b"ok", *shared))
    async with serving(Plan(upstream.url, api_key="own-key")) as served:
        got = await served.ask(request("GET", "/v1/models", "Origin: http://localhost:3000"))
        assert got.find(b"access-control-allow-origin") == b"http://localhost:3000"
        assert (got.find(b"vary"), got.find(b"x-other")) == (b"origin", b"1")
        assert got.all(b"access-control-allow-credentials") == []
        got = await served.ask(request("GET", "/v1/models"))
        assert (got.all(b"access-control-allow-origin"), got.find(b"x-other")) == ([], b"1")


async def test_an_upstream_cannot_set_the_cookie_of_our_pages(served: Served, upstream: ScriptedUpstream) -> None:
    ours = ("Set-Cookie: palimpsest_admin=evil; Path=/-/", "Set-Cookie:  =palimpsest_admin=evil", "Set-Cookie: a=b")
    upstream.answer_with(answer(b"ok", *ours))
    for method in ("GET", "POST"):
        got = await served.ask(request(method, CHAT, body=b"{}"))
        assert (got.status, got.all(b"set-cookie")) == (200, [b"a=b"])


# --- who is let in where callers are told apart ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((), 401),
        (("Authorization: Bearer other",), 401),
        (("Authorization: Bearer team-key2",), 401),
        (("X-User: team",), 401),
        (("Authorization: Bearer team-key",), 200),
        (("X-Api-Key: second-key",), 200),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_only_tenants_call_where_one_is_required(
    upstream: ScriptedUpstream, fields: tuple[str, ...], status: int, path: str
) -> None:
    upstream.answer_with(answer(b"ok"))
    plan = with_server(Plan(upstream.url, api_key="own-key"), tenant_keys=("team-key", "second-key"))
    async with serving(plan) as served:
        got = await served.ask(request("POST", path, *fields, body=b"{}"))
        assert (got.status, upstream.accepted) == (status, int(status == 200))
        if status == 401:
            assert json.loads(got.body)["error"]["code"] == "unauthorized"
            assert served.archive.appended == []


# --- loops (BEHAVIOUR B40) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_call_that_comes_back_is_refused_and_not_recorded(
    plan: Plan, upstream: ScriptedUpstream, path: str
) -> None:
    upstream.answer_with(answer(b"ok"))
    async with serving(with_server(plan, hop_id="own-id")) as served:
        first = await served.ask(
            request("POST", path, "X-Palimpsest-Hop: a,own-id2", "X-Palimpsest-Hop: b", body=b"{}")
        )
        assert (first.status, upstream.requests[0].find(b"x-palimpsest-hop")) == (200, b"a, own-id2, b, own-id")
        recorded = len(served.archive.appended)
        hop = upstream.requests[0].find(b"x-palimpsest-hop").decode()
        again = await served.ask(
            request("POST", path, f"X-Palimpsest-Hop: {hop}", "Authorization: Bearer k", body=b"{}")
        )
        assert (again.status, json.loads(again.body)["error"]["code"]) == (508, "loop_detected")
        assert (len(upstream.requests), len(served.archive.appended)) == (1, recorded)


# --- what a browser may do with our pages ----------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "else"])
async def test_a_page_of_another_site_does_not_reach_ours(served: Served, site: str) -> None:
    for path in EVERY:
        got = await served.ask(request("GET", path, BEARER, f"Sec-Fetch-Site: {site}"))
        assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "forbidden"), path


@pytest.mark.parametrize("site", ["none", "same-origin"])
async def test_an_address_that_is_typed_and_our_own_links_do(served: Served, site: str) -> None:
    assert (await served.ask(request("GET", "/-/api/sessions", BEARER, f"Sec-Fetch-Site: {site}"))).status == 200


@pytest.mark.parametrize("field", ["X: 1", BEARER])
async def test_our_answers_are_shown_in_no_frame_and_tell_no_address(served: Served, field: str) -> None:
    for path in EVERY:
        got = await served.ask(request("GET", path, field))
        assert (got.find(b"referrer-policy"), got.find(b"x-frame-options")) == (b"no-referrer", b"DENY"), path


async def test_probes_need_no_token(served: Served) -> None:
    for path in ("/-/live", "/-/ready"):
        assert (await served.ask(request("GET", path))).status == 200


# --- the metrics, for a scraper that knows the server by another name ------------------------------------------------

SCRAPER = "Authorization: Bearer scrape"


async def test_the_token_of_the_metrics_opens_them_under_any_name_and_nothing_else(plan: Plan) -> None:
    async with serving(with_server(plan, metrics_token="scrape")) as served:
        got = await served.ask(request("GET", "/-/metrics", SCRAPER, host="palimpsest:8484"))
        assert (got.status, b"palimpsest_" in got.body) == (200, True)
        for path in CLOSED:
            if path != "/-/metrics":
                assert (await served.ask(request("GET", path, SCRAPER))).status == 401
                assert (await served.ask(request("GET", path, SCRAPER, host="palimpsest:8484"))).status == 403
        assert (await served.ask(request("POST", "/-/metrics", SCRAPER))).status == 401


@pytest.mark.parametrize(
    ("fields", "host", "status"),
    [
        ((), "localhost", 401),
        (("Authorization: Bearer other",), "localhost", 401),
        (("Authorization: Bearer scrape",), "evil.example", 200),
        (("Authorization: Bearer scrape", "Origin: http://evil.example"), "evil.example:1", 403),
        (("Authorization: Bearer scrape", "Sec-Fetch-Site: cross-site"), "localhost", 403),
        (("Cookie: palimpsest_admin=scrape",), "localhost", 401),
        ((BEARER,), "localhost", 200),
        ((BEARER,), "palimpsest:8484", 403),
    ],
)
async def test_the_metrics_open_to_either_token(plan: Plan, fields: tuple[str, ...], host: str, status: int) -> None:
    async with serving(with_server(plan, metrics_token="scrape")) as served:
        assert (await served.ask(request("GET", "/-/metrics", *fields, host=host))).status == status
        assert (await served.ask(request("GET", "/-/metrics?token=scrape", host=host))).status in (401, 403)


async def test_without_a_token_of_the_metrics_none_opens_them(served: Served) -> None:
    for field in ("Authorization: Bearer ", "Authorization: Bearer", "X: 1"):
        assert (await served.ask(request("GET", "/-/metrics", field))).status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/-/metrics"),
        ("GET", "/-/sessions/x"),
        ("GET", "/-/search"),
        ("GET", "/-/static/page.js"),
        ("GET", "/-/api/sessions"),
        ("GET", "/-//"),
        ("GET", "/%2d/"),
        ("POST", "/-/"),
        ("HEAD", "/-/"),
        ("GET", "//-/"),
    ],
)
async def test_the_token_in_an_address_opens_the_page_and_nothing_else(served: Served, method: str, path: str) -> None:
    assert (await served.ask(request(method, f"{path}?token={TOKEN}"))).status == 401
