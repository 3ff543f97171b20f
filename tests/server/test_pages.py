"""Our pages: each path with its document, files with their tags, and headers that let nothing recorded run."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.server.access import make_cookie
from proxy.server.pages import PAGES, PageRoute, escape_data, load_files
from tests.support.scripted import ScriptedUpstream, request
from tests.support.serving import TOKEN, Served
from tests.support.whole_server import WholeServer, serving_whole

BEARER = f"Authorization: Bearer {TOKEN}"
EVIL = "</script><script>alert(1)</script><!-- \u2028 \u2029 '\"`${x} &lt;"
DATA = re.compile(rb'<script type="application/json" id="first-data" nonce="([^"]+)">(.*?)</script>', re.DOTALL)


def read_data(body: bytes) -> Any:
    """The document in a page, as a browser takes it out."""
    found = DATA.search(body)
    assert found is not None
    return json.loads(found[2])


@pytest.fixture
async def whole(tmp_path: Path, upstream: ScriptedUpstream) -> AsyncIterator[WholeServer]:
    async with serving_whole(tmp_path, upstream, **{"budget.ceiling_tokens": 4000}) as server:
        yield server


async def test_each_page_comes_with_the_document_that_its_twin_and_the_api_have(whole: WholeServer) -> None:
    session = await whole.talk("talk", 16)
    await whole.client.post(f"/-/api/sessions/{session}/compact", json={"level": 3})
    for page in PAGES:
        names = {"id": session, "n": "1"}
        query = f"?{page.needs}=file" if page.needs else ""
        got = await whole.client.get(f"/-{page.path.format(**names)}{query}")
        status = 409 if page.path.endswith("/next") else 200  # after a compaction nothing is left to cut
        assert (got.status_code, got.headers["content-type"]) == (status, "text/html; charset=utf-8"), page
        assert page.title in got.text
        twin = await whole.client.get(f"/-{page.twin.format(**names)}{query}")
        api = await whole.client.get(f"/-{page.document.format(**names)}{query}")
        assert twin.headers["content-type"] == "application/json"
        assert f'"{twin.url.path}{query}"' in got.text
        if page.needs:  # what the index finds by now
            assert read_data(got.content).keys() == twin.json().keys() == {"hits", "is_complete", "behind"}
            continue
        assert _forget_age(read_data(got.content)) == _forget_age(twin.json()) == _forget_age(api.json()), page


def _forget_age(document: Any) -> Any:
    """The document without what grows from one request to the next."""
    return {**document, "index": None} if "index" in document else document


async def test_a_page_of_what_is_unknown_says_so(whole: WholeServer) -> None:
    got = await whole.client.get("/-/sessions/nobody")
    assert (got.status_code, got.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "no session begins with 'nobody'" in read_data(got.content)["error"]["message"]
    assert (await whole.client.get("/-/sessions/nobody.json")).json()["error"]["code"] == "not_found"


async def test_a_page_that_needs_a_query_waits_for_it(whole: WholeServer) -> None:
    got = await whole.client.get("/-/search")
    assert (got.status_code, read_data(got.content)) == (200, None)
    assert (await whole.client.get("/-/search.json")).status_code == 400


async def test_what_was_recorded_stays_data(whole: WholeServer) -> None:
    session = await whole.talk("talk", 2)
    body = {"model": EVIL, "messages": [{"role": "user", "content": EVIL}]}
    fields = {"x-palimpsest-session": "talk", "authorization": "Bearer k"}
    sent = await whole.client.post("/v1/chat/completions", json=body, headers=fields)
    last = (await whole.client.get(f"/-/api/sessions/{session}")).json()["session"]["calls"]
    got = await whole.client.get(f"/-/sessions/{session}/calls/{last}")
    assert (sent.status_code, got.status_code) == (200, 200)
    assert read_data(got.content)["request"] == body
    assert got.content.count(b"<script") == 3
    assert b"alert(1)</script" not in got.content


@pytest.mark.parametrize("text", [EVIL, "\u2028", "</SCRIPT", "<!--<script>", "\ud800", "\x00\x7f"])
def test_data_means_the_same_once_it_is_escaped(text: str) -> None:
    written = json.dumps({text: [text]}, ensure_ascii=not text.isprintable()).encode("utf-8", "replace")
    escaped = escape_data(written)
    assert json.loads(escaped) == json.loads(written)
    assert not re.search(b"<|\xe2\x80[\xa8\xa9]", escaped)


async def test_only_what_has_the_nonce_of_the_response_runs(served: Served) -> None:
    seen = set()
    for _ in range(2):
        got = await served.ask(request("GET", "/-/", BEARER))
        policy = got.find(b"content-security-policy").decode()
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
        seen.add(nonce)
        assert policy == (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:;"
            " font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
            " require-trusted-types-for 'script'"
        )
        tags = re.findall(rb"<(?:script|link rel=\"stylesheet\"|style)[^>]*>", got.body)
        assert len(tags) == 4
        assert all(f'nonce="{nonce}"'.encode() in tag for tag in tags)
        assert not re.search(rb"\son\w+=|javascript:|style=", got.body)
        assert (got.find(b"referrer-policy"), got.find(b"x-frame-options")) == (b"no-referrer", b"DENY")
        assert (got.find(b"cache-control"), got.find(b"cross-origin-opener-policy")) == (b"no-store", b"same-origin")
    assert len(seen) == 2


async def test_settings_are_shown_as_text(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstreams = [{"name": "one", "base_url": "http://127.0.0.1:9/<b>x</b>"}]
    async with serving_whole(tmp_path, upstream, upstreams=upstreams) as server:
        got = await server.client.get("/-/health")
        assert "<b>" not in got.text
        assert any("<b>x</b>" in each["text"] for each in read_data(got.content)["settings"])


async def test_files_are_kept_by_their_digest(served: Served) -> None:
    page = await served.ask(request("GET", "/-/", BEARER))
    for path in re.findall(r'(?:href|src)="(/-/static/[^"]+)"', page.body.decode()):
        got = await served.ask(request("GET", path, BEARER))
        tag = got.find(b"etag").decode()
        assert (got.status, got.find(b"cache-control")) == (200, b"private, max-age=31536000, immutable")
        assert got.find(b"x-content-type-options") == b"nosniff"
        assert tag.strip('"') in path
        plain = await served.ask(request("GET", path.partition("?")[0], BEARER))
        assert (plain.body, plain.find(b"cache-control")) == (got.body, b"private, no-cache")
        again = await served.ask(request("GET", path, BEARER, f'If-None-Match: "x", W/{tag}'))
        assert (again.status, again.body, again.find(b"etag")) == (304, b"", tag.encode())
        other = await served.ask(request("GET", path, BEARER, 'If-None-Match: "x"'))
        assert (other.status, other.body) == (200, got.body)
        assert (await served.ask(request("GET", path))).status == 401


@pytest.mark.parametrize("name", ["page.html", "no.js", "%2e%2e%2fpages.py", "..", "page.js%00"])
async def test_there_are_no_other_files(served: Served, name: str) -> None:
    got = await served.ask(request("GET", f"/-/static/{name}", BEARER))
    assert (got.status, got.find(b"content-type")) in ((404, b"application/json"), (400, b"application/json"))


def test_a_file_has_a_type_and_the_tag_of_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    (tmp_path / "page.html").write_text("2")
    first = load_files(tmp_path)["a.js"]
    (tmp_path / "a.js").write_text("2")
    second = load_files(tmp_path)["a.js"]
    assert list(load_files(tmp_path)) == ["a.js"]
    assert (first.media, second.content) == ("text/javascript; charset=utf-8", b"2")
    assert first.tag != second.tag


def test_a_twin_is_beside_its_page() -> None:
    assert [page.twin for page in PAGES[:2]] == ["/sessions.json", "/sessions/{id}.json"]
    assert PageRoute("/x", "x", "X", "/api/x").twin == "/x.json"


async def test_the_state_of_the_server_is_a_document(whole: WholeServer) -> None:
    told = (await whole.client.get("/-/api/health")).json()
    assert (told["status"], told["reasons"], told["upstreams"]) == ("ready", [], {"scripted": {"circuit": "closed"}})
    assert (told["log"]["problem"], told["log"]["dropped"]) == ("", 0)
    assert {"label": "mode", "text": "manage"} in told["settings"]


async def test_a_cookie_opens_pages_and_their_documents(served: Served) -> None:
    cookie = f"Cookie: palimpsest_admin={make_cookie(TOKEN)}"
    for path in ("/-/", "/-/sessions.json", "/-/search", "/-/api/sessions"):
        assert (await served.ask(request("GET", path, cookie))).status == 200
