"""Numbers on the pages are those of the API, and those are what plain SQL on the log says."""

import re
import sqlite3

from playwright.sync_api import Browser, expect

from proxy.context.pricing import format_money
from tests.browser.asking import find_demo, read, send
from tests.browser.chromium import Watched, watch
from tests.journeys.running import TOKEN, Running


def ask_log(proxy: Running, query: str, *values: object) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{proxy.data}/log.db?mode=ro", uri=True) as connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


def read_strip(watched: Watched) -> dict[str, str]:
    """The figures at the top of a page by their labels."""
    rows = watched.page.locator(".strip > div").all()
    return {row.locator("dt").inner_text(): row.locator("dd.big").inner_text() for row in rows}


def write(number: float) -> str:
    return f"{number:,.0f}"


def test_the_session_page_shows_what_the_log_has(browser: Browser, site: Running) -> None:
    session = find_demo(site)
    ((calls, output),) = ask_log(
        site,
        "SELECT count(DISTINCT x.seq), sum(r.output) FROM exchange x JOIN session s ON s.id = x.session"
        " LEFT JOIN reading r ON r.exchange = x.seq WHERE s.key = ? AND x.kind = 'managed'",
        session["id"],
    )
    assert (session["calls"], session["output_tokens"]) == (calls, output)
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session['id']}")
    assert f"{calls} calls" in watched.page.locator("#meta").inner_text()
    figures = read_strip(watched)
    assert figures["Client\u2019s history"] == f"{write(session['window_tokens']['client'])} tok"
    assert figures["Sent upstream"] == f"{write(session['window_tokens']['sent'])} tok"
    assert figures["Saved, net"].startswith(f"${session['saved']['money']:.2f} {session['saved']['share'] * 100:.0f} %")
    assert figures["Read from cache"] == f"{session['cache_read_share'] * 100:.1f} %"
    window = read(site, f"/sessions/{session['id']}/context?messages=false")["window"]
    legend = watched.page.locator("#legend tbody tr").all()
    shown = {row.locator("th").inner_text(): row.locator("td.num").first.inner_text() for row in legend}
    assert shown["Tool output"] == write(next(k["tokens"] for k in window["kinds"] if k["kind"] == "output"))
    assert shown["Free"] == write(window["high"] - window["used"])
    assert watched.page.locator("#events .title", has_text=re.compile(r"Epoch \d opened")).count() == session["epochs"]
    watched.check()


def test_an_epoch_shows_its_cost_and_what_it_paid_back(browser: Browser, site: Running) -> None:
    session = find_demo(site)
    epoch = read(site, f"/sessions/{session['id']}/epochs")["items"][0]
    ((before, after),) = ask_log(site, "SELECT tokens_before, tokens_after FROM epoch WHERE id = ?", epoch["id"])
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session['id']}/epochs/1")
    figures = read_strip(watched)
    assert (figures["Before"], figures["After"]) == (
        f"{write(float(str(before)))} tok",
        f"{write(float(str(after)))} tok",
    )
    assert figures["It cost"] == format_money(epoch["cost"]["money"])
    assert figures["Paid back so far"] == format_money(epoch["paid_back"]["money"])
    assert epoch["explanation"] in watched.page.locator("#lede").inner_text()
    watched.check()


def test_the_list_of_sessions_adds_up(browser: Browser, site: Running) -> None:
    sessions, savings = read(site, "/sessions")["items"], read(site, "/savings")["estimate"]
    watched = watch(browser, site.origin, TOKEN)
    expect(watched.page.locator(".strip")).to_contain_text("net")
    figures = read_strip(watched)
    assert figures["Live now"].endswith(f"of {len(sessions)}")
    assert figures["Saved"] == f"${savings['money']:.2f} {savings['share'] * 100:.0f} %"
    row = watched.page.locator("tbody tr", has_text="demo-agent")
    assert row.locator(".c-saved").inner_text() == f"${find_demo(site)['saved']['money']:.2f}"
    watched.check()


def test_originals_are_what_the_client_sent(browser: Browser, site: Running) -> None:
    session = find_demo(site)["id"]
    watched = watch(browser, site.origin, TOKEN)
    compared = 0
    for epoch in read(site, f"/sessions/{session}/epochs")["items"]:
        n = epoch["call"]
        request = read(site, f"/sessions/{session}/exchanges/{n}")["request"]
        messages = [each for each in request["messages"] if each["role"] not in ("system", "developer")]
        watched.open(f"/-/sessions/{session}/calls/{n}")
        for change in read(site, f"/sessions/{session}/exchanges/{n}/diff")["changes"]:
            if change["stop"] - change["start"] != 1 or messages[change["start"]]["role"] != "tool":
                continue
            row = watched.page.locator(".cmp-row", has_text=f"message {change['start'] + 1}").first
            row.locator("[data-orig]").click()
            assert row.locator(".full .txt").evaluate("x => x.textContent") == messages[change["start"]]["content"]
            compared += 1
    assert compared >= 10
    watched.check()


def test_the_raw_view_has_the_bytes_of_the_client(browser: Browser, site: Running) -> None:
    body = '{ "messages" : [{"role":"user", "content":"caf\\u00e9 \\"quoted\\" é"}],\n\t"model": "m",  "n": 1.0 }'
    send(site, body.encode(), {"x-palimpsest-session": "bytes"})
    session = next(each for each in read(site, "/sessions")["items"] if each["name"] == "bytes")["id"]
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session}/calls/1")
    watched.page.get_by_role("button", name="Raw", exact=True).click()
    watched.page.wait_for_selector(".raw pre")
    client, sent = (each.evaluate("x => x.textContent") for each in watched.page.locator(".raw pre").all())
    assert (client.split("\n\n", 1)[1], sent) == (body, body)
    watched.check()
