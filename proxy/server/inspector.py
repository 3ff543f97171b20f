"""The page at `/-/`. Rule: what the start-up link opens; turns the token in the link into a cookie and forgets it."""

import html
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from proxy.server.access import START_PAGE
from proxy.wire.headers import OWN_COOKIE

_CONTENT = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>palimpsest</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root {{ color-scheme: light dark; font: 16px/1.6 ui-serif, Georgia, serif }}
  main {{ max-width: 38rem; margin: 12vh auto; padding: 0 1.25rem }}
  h1 {{ font-weight: 500; letter-spacing: .01em; margin-bottom: .25rem }}
  code, dd {{ font-family: ui-monospace, monospace; font-size: .92em }}
  dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; margin: 1.5rem 0 }}
  dt {{ opacity: .7 }} dd {{ margin: 0; overflow-wrap: anywhere }} a {{ color: inherit }}
</style>
<main><h1>palimpsest</h1><p>Every call is kept as it came; in mode manage, what long sessions send is
shorter where that pays. What was done is in the log, call by call.</p>
<dl>{rows}</dl>
<p>Read the log with <code>palimpsest sessions</code> and <code>palimpsest show SESSION</code>,
or as JSON: <a href="/-/api/sessions">sessions</a>. State: <a href="/-/ready">ready</a>,
<a href="/-/metrics">metrics</a>.</p></main></html>
"""


class Inspector:
    """The page; `facts` are its rows, as label and text."""

    def __init__(self, facts: tuple[tuple[str, str], ...]) -> None:
        rows = "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in facts)
        self._page = _PAGE.format(rows=rows)

    async def show(self, request: Request) -> Response:
        """The page, or, from the start-up link, the way to it with the token as a cookie."""
        token = request.query_params.get("token")
        if token is None:
            return HTMLResponse(self._page, headers={"content-security-policy": _CONTENT})
        answer = RedirectResponse(START_PAGE, 303)
        cookie = OWN_COOKIE.decode()
        answer.set_cookie(cookie, quote(token, safe=""), httponly=True, samesite="strict", path=START_PAGE)
        return answer
