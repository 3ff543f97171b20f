"""`palimpsest doctor` as users run it: beside a server, without one, and where nothing has effect."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.journeys.provider import Provider, run_provider
from tests.journeys.running import TOKEN, run_proxy

SECONDS = 120.0


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with run_provider() as running:
        yield running


def run_doctor(
    data: Path, upstream: str = "", *options: str, token: str = TOKEN, **settings: str
) -> tuple[int, dict[str, Any], str]:
    """Run it; the exit code, its findings by name, and what it says on standard error."""
    stated = ["--upstream", upstream] if upstream else []
    ended = subprocess.run(
        [sys.executable, "-m", "proxy", "doctor", "--json", "--data", str(data), *stated, *options],
        env={**os.environ, "PALIMPSEST_SERVER__ADMIN_TOKEN": token, **settings},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    found = json.loads(ended.stdout)["findings"] if ended.stdout else []
    return ended.returncode, {each["name"]: each for each in found}, ended.stderr.decode()


def test_beside_a_server_everything_is_examined(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url) as proxy:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        head = {"content-type": "application/json", "authorization": "Bearer sk-doctor"}
        urllib.request.urlopen(urllib.request.Request(f"{proxy.base_url}/chat/completions", body, head)).close()
        before = len(provider.seen)
        code, found, trouble = run_doctor(tmp_path, provider.base_url)
        seen = provider.seen[before:]
        request = urllib.request.Request(f"{proxy.origin}/-/api/doctor", headers={"authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as response:
            served = json.loads(response.read())
    assert (code, trouble) == (0, "")
    states = {name: each["state"] for name, each in found.items()}
    assert states.pop("model m") == "warning"  # nobody knows its window
    assert set(states.values()) == {"ok"}, found
    assert proxy.origin in found["server"]["sentence"] and proxy.origin in found["clients"]["sentence"]
    assert found["shortening"]["facts"]["sent_tokens"] < 0.5 * found["shortening"]["facts"]["client_tokens"]
    assert [(each.method, each.target) for each in seen] == [("GET", "/v1/models")] * 2  # directly, and through it
    names = {each["name"] for each in served["findings"]}
    assert {"mode", "store", "records", "disk", "traffic", "clients"} <= names and served["version"]


def test_without_settings_those_of_the_server_are_examined(tmp_path: Path) -> None:
    listed = {"object": "list", "data": [{"id": "m.gguf", "object": "model", "meta": {"n_ctx": 16384}}]}
    routes = [Route("/v1/models", lambda _: JSONResponse(listed))]
    with (
        serve_application(Starlette(routes=routes)) as port,
        run_proxy(tmp_path, f"http://127.0.0.1:{port}/v1", "--ceiling", "6000"),
    ):
        code, found, _ = run_doctor(tmp_path)
    assert code == 0 and found["upstream 127.0.0.1"]["state"] == "ok", found
    assert found["model m.gguf"]["facts"]["window"] == 16384
    assert found["model m.gguf"]["facts"]["high_mark"] == 5820
    assert found["shortening"]["facts"]["sent_tokens"] < 6000
    assert "one request at a time" in found["local 127.0.0.1"]["sentence"]


def test_of_several_upstreams_each_is_examined_as_the_server_uses_it(tmp_path: Path) -> None:
    with run_provider() as first, run_provider() as second:
        upstreams = [
            {"name": "claude", "base_url": first.base_url, "models": ["claude-*"], "api_key": "sk-ours-for-claude"},
            {"name": "rest", "base_url": second.base_url, "window": 32_000},
        ]
        with run_proxy(tmp_path, "", UPSTREAMS=json.dumps(upstreams)):
            code, found, trouble = run_doctor(tmp_path)
            for options in ((), ("--admin-token", "another")):
                unknown = run_doctor(tmp_path, "", *options, token="")
                assert (
                    unknown[0] == 0 and "does not take this command's admin token" in unknown[1]["server"]["sentence"]
                )
                assert "--admin-token" in unknown[1]["server"]["advice"]
            with_token = run_doctor(tmp_path, "", "--admin-token", TOKEN, token="")[1]
        keys = {value for each in second.seen for name, value in each.headers if name in ("authorization", "x-api-key")}
    assert (code, trouble) == (0, "")
    states = {name: each["state"] for name, each in found.items()}
    assert states.pop("traffic") == "warning" and set(states.values()) == {"ok"}, found
    assert {"upstream claude", "upstream rest", "gateway rest", "model claude-sonnet-4-5"} <= states.keys()
    assert "gateway claude" not in states and with_token.keys() == found.keys()
    assert keys == set()
    assert not (tmp_path / "admin-token").exists()


def test_an_upstream_that_does_not_respond_is_told_once(tmp_path: Path) -> None:
    with run_proxy(tmp_path, "http://127.0.0.1:9/v1"):
        code, found, _ = run_doctor(tmp_path)
    assert (code, found["upstream 127.0.0.1"]["state"]) == (1, "fault")
    assert not [name for name in found if name.startswith("gateway ")], found


def test_a_server_in_bypass_is_a_fault(provider: Provider, tmp_path: Path) -> None:
    with run_proxy(tmp_path, provider.base_url, "--mode", "bypass"):
        code, found, _ = run_doctor(tmp_path, provider.base_url)
    assert code == 1 and found["server"]["state"] == "fault"


def test_settings_without_effect_are_a_fault(provider: Provider, tmp_path: Path) -> None:
    code, found, _ = run_doctor(tmp_path, provider.base_url, PALIMPSEST_MODE="bypass")
    assert code == 1 and found["mode"]["state"] == "fault" and "shortening" not in found
    assert found["server"]["state"] == "warning"


def test_an_upstream_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with run_provider() as gone:
        address = gone.base_url
    code, found, _ = run_doctor(tmp_path, address)
    assert code == 1 and found["upstream 127.0.0.1"]["state"] == "fault"
    assert list(tmp_path.iterdir()) == []
