"""Requests to a running proxy, as a program makes them."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.journeys.running import TOKEN, Running

CHAT = "/v1/chat/completions"


def read_bytes(proxy: Running, path: str) -> bytes:
    """The bytes at a path of the API."""
    request = urllib.request.Request(proxy.origin + path, headers={"authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        content: bytes = response.read()
        return content


def read(proxy: Running, path: str) -> Any:
    """The document at a path of the API."""
    return json.loads(read_bytes(proxy, f"/-/api{path}"))


def find_demo(proxy: Running) -> Any:
    """The session of the demo."""
    return next(each for each in read(proxy, "/sessions")["items"] if each["name"] == "demo")


def send(proxy: Running, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A client's call; the response, whatever its status."""
    request = urllib.request.Request(
        proxy.origin + CHAT, body, {"content-type": "application/json", "authorization": "Bearer sk-test", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            content: bytes = response.read()
    except urllib.error.HTTPError as error:
        content = error.read()
    return content


def list_views(proxy: Running) -> dict[str, str]:
    """The paths of all views, of the session of the demo."""
    session = find_demo(proxy)["id"]
    return {
        "sessions": "/-/",
        "session": f"/-/sessions/{session}",
        "conversation": f"/-/sessions/{session}/conversation",
        "call": f"/-/sessions/{session}/calls/{read(proxy, f'/sessions/{session}/epochs')['items'][-1]['call']}",
        "epoch": f"/-/sessions/{session}/epochs/3",
        "summaries": f"/-/sessions/{session}/summaries",
        "search": "/-/search?q=carrier",
        "health": "/-/health",
    }
