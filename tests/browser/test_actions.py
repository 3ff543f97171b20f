"""What a person does on the pages: each action by its button, with its price said before, and its effect in the log."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.asking import find_demo, read, read_bytes, send
from tests.browser.chromium import Watched, watch
from tests.browser.test_looks import AXE, settle
from tests.journeys.provider import run_provider
from tests.journeys.running import TOKEN, Running, run_proxy
from tests.support.managing import make_history, spell

SOON = 20_000  # milliseconds
STEPS = 28
HISTORY = make_history(STEPS, 300)


def check_axe(page: Page) -> None:
    """Nothing is at fault in what is shown now."""
    settle(page)
    page.evaluate(AXE.read_text("utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in violations] == []


def open_session(browser: Browser, site: Running) -> tuple[Watched, str]:
    """The page of the session of the demo, and its id."""
    session: str = find_demo(site)["id"]
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session}")
    settle(watched.page)
    return watched, session


def test_a_message_is_brought_back_and_let_go(browser: Browser, site: Running) -> None:
    watched, session = open_session(browser, site)
    page = watched.page
    expect(page.locator("#pins")).to_contain_text("No pinned message")
    call = read(site, f"/sessions/{session}/epochs")["items"][-1]["call"]
    watched.open(f"/-/sessions/{session}/calls/{call}")
    page.get_by_role("button", name="Bring back").first.click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text(re.compile(r"[\d,]+ tokens\. They cost about (< )?\$"), timeout=SOON)
    assert read(site, f"/sessions/{session}/pins")["items"] == [], "the price is said before anything is done"
    check_axe(page)
    dialog.get_by_role("button", name="Bring back").click()
    expect(page.locator(".toast")).to_contain_text("Pinned", timeout=SOON)
    (pinned,) = read(site, f"/sessions/{session}/pins")["items"]
    watched.open(f"/-/sessions/{session}")
    expect(page.locator("#pins")).to_contain_text(pinned["text"].split("\n")[0][:40], timeout=SOON)
    check_axe(page)
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator("#pins")).to_contain_text("No pinned message", timeout=SOON)
    assert read(site, f"/sessions/{session}/pins")["items"] == []
    watched.check()


def test_the_raw_view_of_a_shortened_call_has_the_recorded_bytes(browser: Browser, site: Running) -> None:
    session = find_demo(site)["id"]
    call = read(site, f"/sessions/{session}/epochs")["items"][-1]["call"]
    path = f"/-/api/sessions/{session}/exchanges/{call}"
    own, sent = (read_bytes(site, f"{path}/{part}").decode() for part in ("held", "sent"))
    assert own != sent
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session}/calls/{call}")
    settle(watched.page)
    watched.page.get_by_role("button", name="Raw", exact=True).click()
    watched.page.wait_for_selector(".raw pre")
    left, right = (each.evaluate("x => x.textContent") for each in watched.page.locator(".raw pre").all())
    assert left.split("\n\n", 1)[1][:100_000] == own[:100_000]
    assert right[:100_000] == sent[:100_000]
    watched.check()


def test_a_call_in_which_the_model_recalled_shows_its_last_prompt_and_the_sum(browser: Browser, site: Running) -> None:
    session = find_demo(site)["id"]
    line = read(site, f"/sessions/{session}/timeline")
    at = next(i for i, rounds in enumerate(line["rounds"]) if rounds > 1 and not line["is_auxiliary"][i])
    assert line["input"][at] > line["sent"][at] > 0
    assert line["client"][at] > line["sent"][at]
    watched = watch(browser, site.origin, TOKEN)
    watched.open(f"/-/sessions/{session}/calls/{line['n'][at]}")
    settle(watched.page)
    expect(watched.page.locator("#strip")).to_contain_text(f"{line['input'][at]:,} in all {line['rounds'][at]} rounds")
    expect(watched.page.locator("#lede")).not_to_contain_text(re.compile(r"^0 tokens"))
    watched.check()


def test_what_is_added_to_a_call_is_shown(browser: Browser, site: Running) -> None:
    watched, session = open_session(browser, site)
    line = read(site, f"/sessions/{session}/timeline")
    is_main = [not (side or ours) for side, ours in zip(line["is_side"], line["is_auxiliary"], strict=True)]
    added = sorted(ms for ms, main in zip(line["overhead_ms"], is_main, strict=True) if main)
    assert all(0 < ms < 60_000 for ms in added)
    cell = watched.page.locator("#strip > div", has_text="Added to a call")
    expect(cell).to_contain_text(f"{added[len(added) // 2]:.1f} ms")


def test_hits_say_whether_the_model_sees_them(browser: Browser, site: Running) -> None:
    hits = read(site, "/search?q=carrier")["hits"]
    assert {hit["visibility"] for hit in hits} >= {"in_short"}
    watched = watch(browser, site.origin, TOKEN)
    watched.open("/-/search?q=carrier")
    settle(watched.page)
    for name, told in (("sent", "sent"), ("in_short", "in short"), ("not_sent", "not sent")):
        count = sum(hit["visibility"] == name for hit in hits)
        tags = watched.page.locator(".hit-head .tag").filter(has_text=re.compile(f"^{told}$"))
        expect(tags).to_have_count(count, timeout=SOON)
    watched.check()


@pytest.fixture(scope="module")
def talking(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that has carried a long conversation, and whose upstream can still be asked."""
    with (
        run_provider() as provider,
        run_proxy(tmp_path_factory.mktemp("talking"), provider.base_url, "--ceiling", "4000") as proxy,
    ):
        for step in range(14, STEPS + 1):
            send(proxy, spell(HISTORY[: 2 + 2 * step]), {"x-palimpsest-session": "talk"})
        yield proxy


def open_talk(browser: Browser, proxy: Running) -> tuple[Watched, str]:
    """The page of the session that can go on, and its id."""
    session: str = next(each for each in read(proxy, "/sessions")["items"] if each["name"] == "talk")["id"]
    watched = watch(browser, proxy.origin, TOKEN)
    watched.open(f"/-/sessions/{session}")
    settle(watched.page)
    return watched, session


def test_the_next_epoch_is_seen_before_it_opens(browser: Browser, talking: Running) -> None:
    site = talking
    watched, session = open_talk(browser, site)
    page = watched.page
    page.get_by_role("button", name="Compact now").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("tokens would become about", timeout=SOON)
    check_axe(page)
    dialog.get_by_role("link", name="What would go").click()
    page.wait_for_url("**/epochs/next")
    page.wait_for_selector("html[data-drawn]", state="attached")
    settle(page)
    found = read(site, f"/sessions/{session}/epochs/next")
    expect(page.locator("#strip")).to_contain_text(f"{found['tokens_before']:,}")
    expect(page.locator("#lede")).to_contain_text("Nothing of this is stored or sent yet")
    check_axe(page)
    watched.check()


def test_a_session_is_exported(browser: Browser, site: Running) -> None:
    watched, session = open_session(browser, site)
    with watched.page.expect_download() as waiting:
        watched.page.get_by_role("link", name="Export").click()
    path = Path(waiting.value.path())
    assert path.read_bytes() == read_bytes(site, f"/-/api/sessions/{session}/export?form=jsonl")
    watched.check()


def test_it_is_compacted_and_reverted_each_with_its_price(browser: Browser, talking: Running) -> None:
    site = talking
    watched, session = open_talk(browser, site)
    page = watched.page
    before = read(site, f"/sessions/{session}/epochs?limit=1000")["items"]
    page.get_by_role("button", name="Compact now").click()
    page.locator("dialog").get_by_role("button", name="Compact", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("tokens", timeout=SOON)
    opened = read(site, f"/sessions/{session}/epochs?limit=1000")["items"]
    assert (len(opened), opened[-1]["why"]) == (len(before) + 1, "manual")
    button = page.get_by_role("button", name=f"Revert epoch {opened[-1]['n']}")
    button.click(timeout=SOON)
    expect(page.locator("dialog")).to_contain_text("The next call costs about", timeout=SOON)
    page.locator("dialog").get_by_role("button", name="Cancel").click()
    assert len(read(site, f"/sessions/{session}/epochs?limit=1000")["items"]) == len(opened)
    button.click()
    page.locator("dialog").get_by_role("button", name="Revert", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("is reverted", timeout=SOON)
    undone = read(site, f"/sessions/{session}/epochs?limit=1000")["items"]
    assert (undone[-1]["why"], undone[len(opened) - 1]["state"]) == ("revert", "reverted")
    # what was undone is not offered again, nor the undoing
    expect(page.get_by_role("button", name=re.compile(rf"Revert epoch {undone[-1]['n']}\b"))).to_have_count(
        0, timeout=SOON
    )
    watched.check()


def test_a_session_is_erased_only_once_that_was_confirmed(browser: Browser, talking: Running) -> None:
    watched, session = open_talk(browser, talking)
    page = watched.page
    if not read(talking, f"/sessions/{session}/summaries")["items"]:
        page.get_by_role("button", name="Compact now").click()
        page.locator("dialog").get_by_role("button", name="Compact", exact=True).click()
        expect(page.locator(".toast")).to_contain_text("tokens", timeout=SOON)
    page.get_by_role("button", name="Erase").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("are deleted for good", timeout=SOON)
    check_axe(page)
    dialog.get_by_role("button", name="Cancel").click()
    assert read(talking, f"/sessions/{session}/exchanges/1")["request"]
    page.get_by_role("button", name="Erase").click()
    page.locator("dialog").get_by_role("button", name="Erase for good").click()
    page.wait_for_url(f"{talking.origin}/-/")
    watched.check()
    for path, told in (
        (f"/-/sessions/{session}", "What was said is gone for good"),
        (f"/-/sessions/{session}/calls/15", "This call was erased"),
        (f"/-/sessions/{session}/summaries", "erased"),
    ):
        watched.open(path)
        settle(page)
        expect(page.locator("main")).to_contain_text(told, ignore_case=True)
        check_axe(page)


def test_a_store_without_a_session_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with run_provider() as provider, run_proxy(tmp_path, provider.base_url) as proxy:
        watched = watch(browser, proxy.origin, TOKEN)
        page = watched.page
        for path, told in (
            ("/-/", "palimpsest run -- claude"),
            ("/-/health", "no fault"),
            ("/-/search", "Everything ever said is here"),
            ("/-/search?q=zebra", "Nothing found"),
        ):
            watched.open(path)
            settle(page)
            expect(page.locator("main")).to_contain_text(told)
            check_axe(page)
        watched.check()
        watched.open("/-/sessions/unknown")
        settle(page)
        expect(page.locator("main")).to_contain_text("There is no such thing")
        check_axe(page)


def test_sessions_are_filtered_and_walked_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with run_provider() as provider, run_proxy(tmp_path, provider.base_url) as proxy:
        for name, model in (("one", "m-1"), ("two", "m-2"), ("three", "m-2")):
            body = spell([{"role": "user", "content": f"a story of {name}"}]).replace(b"gpt-4o", model.encode())
            send(proxy, body, {"x-palimpsest-session": name})
        watched = watch(browser, proxy.origin, TOKEN)
        page = watched.page
        rows = page.locator("tbody tr:not(.spacer)")
        expect(rows).to_have_count(3, timeout=SOON)
        page.locator("#facets").get_by_role("button", name="m-2").click()
        expect(rows).to_have_count(2, timeout=SOON)
        check_axe(page)
        send(proxy, spell([{"role": "user", "content": "a story of four"}]), {"x-palimpsest-session": "four"})
        page.wait_for_timeout(2500)
        expect(rows).to_have_count(2)  # one of another model does not come in
        page.locator("#facets").get_by_role("button", name="m-2").click()
        expect(rows).to_have_count(4, timeout=SOON)
        page.keyboard.press("/")
        page.keyboard.type("three")
        expect(rows).to_have_count(1, timeout=SOON)
        page.locator("#filter").fill("zebra")
        expect(page.locator("#list")).to_contain_text("No session matches", timeout=SOON)
        page.keyboard.press("Escape")
        expect(rows).to_have_count(4, timeout=SOON)
        page.keyboard.press("?")
        expect(page.locator("dialog")).to_contain_text("Next, previous row")
        check_axe(page)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_url("**/sessions/*")
        page.wait_for_selector("html[data-drawn]", state="attached")
        page.keyboard.press("p")
        expect(page.locator("#tail-note")).to_have_text("paused; calls go on")
        page.get_by_role("slider").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/calls/1")
        page.keyboard.press("g")
        page.keyboard.press("h")
        page.wait_for_url("**/health")
        watched.check()
