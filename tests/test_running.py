"""Where a server runs, and how commands find it."""

import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proxy.config import Settings, load_settings
from proxy.lab.upstream import serve_application
from proxy.model.errors import NotFound, StoreUnavailable, UpstreamUnreachable
from proxy.running import ask_server, find_address, find_admin_token, find_link, find_server, note_address

LIMIT = 300.0


def settings_in(data: Path, **flags: object) -> Settings:
    """Settings with their data in a directory."""
    upstreams = [{"name": "first", "base_url": "http://127.0.0.1:9/v1"}, {"name": "second", "models": ["m-*"]}]
    return load_settings(None, {"data": str(data), "upstreams": upstreams, **flags})


def test_a_configured_token_is_taken_and_none_is_kept(tmp_path: Path) -> None:
    assert find_admin_token(settings_in(tmp_path, **{"server.admin_token": "mine"})) == "mine"
    assert list(tmp_path.iterdir()) == []


def test_a_made_token_stays_the_same_and_is_the_owners_only(tmp_path: Path) -> None:
    token = find_admin_token(settings_in(tmp_path))
    assert len(token) >= 32
    assert find_admin_token(settings_in(tmp_path)) == token
    assert (tmp_path / "admin-token").stat().st_mode & 0o777 == 0o600


def test_a_token_that_cannot_be_kept_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"admin-token: .*choose --data"):
        find_admin_token(settings_in(tmp_path / "file"))


def test_a_server_is_asked_with_the_token_that_it_has_kept(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "data", **{"server.port": 9})
    with pytest.raises(NotFound, match=r"choose --data, or --admin-token"):
        ask_server(settings, "/sessions/a/compact", b"")
    assert not (tmp_path / "data").exists()
    find_admin_token(settings)
    with pytest.raises(
        UpstreamUnreachable, match=r"answers at http://127\.0\.0\.1:9; start it by `.* --data .*data`, or"
    ):
        ask_server(settings, "/sessions/a/compact", b"")


def test_a_server_is_found_at_the_port_that_it_listens_on(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with note_address(settings, 4321):
        assert find_address(settings) == "http://127.0.0.1:4321"
        assert find_address(settings_in(tmp_path, **{"server.port": 9})) == "http://127.0.0.1:9"
    assert find_address(settings) == "http://127.0.0.1:8484"


def serve_live(response: Response) -> Starlette:
    async def live(request: Request) -> Response:
        return response

    return Starlette(routes=[Route("/-/live", live)])


def test_a_server_that_is_noted_and_does_not_answer_is_none(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    assert find_server(settings) == ()
    with serve_application(serve_live(PlainTextResponse("no"))) as port, note_address(settings, port):
        assert find_server(settings) == (), "another program listens there now"
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"], "which judge what is in its log"


def test_a_server_that_answers_is_found_with_its_upstreams(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    upstreams = tuple(policy.base_url for policy in settings.upstream_policies())
    with serve_application(serve_live(JSONResponse({"status": "live"}))) as port, note_address(settings, port):
        until = time.monotonic() + LIMIT
        while not (found := find_server(settings)):  # its port is known before it listens
            assert time.monotonic() < until
        assert found == (f"http://127.0.0.1:{port}", *upstreams)


def test_an_address_that_cannot_be_kept_keeps_no_server_from_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_in(tmp_path / "nowhere")
    with note_address(settings, 4321):
        assert find_address(settings) == "http://127.0.0.1:8484"
    assert "commands may not find this server" in caplog.text


def test_the_link_has_the_token_as_an_address_spells_it(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with pytest.raises(NotFound, match=r"choose --data, or --admin-token"):
        find_link(settings)
    token = find_admin_token(settings)
    with serve_application(serve_live(JSONResponse({"status": "live"}))) as port, note_address(settings, port):
        until = time.monotonic() + LIMIT
        while not find_server(settings):  # its port is known before it listens
            assert time.monotonic() < until
        assert find_link(settings) == f"http://127.0.0.1:{port}/-/?token={token}"
        assert find_link(settings_in(tmp_path, **{"server.admin_token": "a;b&c"})).endswith("/-/?token=a%3Bb%26c")


def test_there_is_no_link_to_a_server_that_has_ended(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **{"server.port": 9})
    find_admin_token(settings)
    with pytest.raises(UpstreamUnreachable, match=rf"no page to open; `palimpsest serve --data {tmp_path}` shows"):
        find_link(settings)
