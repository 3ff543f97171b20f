"""The page of a call begins with what was said; the page of a conversation has all of it, and links to each message."""

import itertools
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from proxy.context.pricing import format_money
from proxy.lab.upstream import serve_application
from tests.browser.asking import read, send
from tests.browser.chromium import Watched, watch
from tests.browser.scripted import APPLICATION, DONE, MODEL, REPEATED, SHORT, WORDS, Agent, tell_story
from tests.browser.test_actions import check_axe
from tests.browser.test_looks import settle
from tests.journeys.running import TOKEN, Running, run_proxy

SOON = 20_000  # milliseconds
LONG = 3000  # messages
LAST_OF_LOOP = 22  # the call
REFUSED = 43


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that has carried the story, a short session, and one that came with a long history."""
    with (
        serve_application(APPLICATION) as port,
        run_proxy(tmp_path_factory.mktemp("told"), f"http://127.0.0.1:{port}/v1", "--ceiling", "8000") as proxy,
    ):
        agent = tell_story(proxy)
        agent.messages.append({"role": "user", "content": "Thank you. Is the server up?"})
        agent.send(None)
        short = Agent(proxy, "short")
        short.ask("What does HTTP 529 mean?", "Overloaded.")
        short.ask("And 503?", "Unavailable.")
        history = [
            {"role": ("user", "assistant")[i % 2], "content": f"message {i} of a long talk"} for i in range(LONG)
        ]
        resumed = {"model": MODEL, "messages": [*history, {"role": "user", "content": "Go on."}]}
        send(proxy, json.dumps(resumed).encode(), {"x-palimpsest-session": "long", "x-palimpsest-mode": "observe"})
        yield proxy


def find(proxy: Running, name: str) -> str:
    found: str = next(each for each in read(proxy, "/sessions")["items"] if each["name"] == name)["id"]
    return found


def show(browser: Browser, proxy: Running, name: str, path: str = "", *, width: int = 1440) -> tuple[Watched, Page]:
    watched = watch(browser, proxy.origin, TOKEN, width=width)
    watched.open(f"/-/sessions/{find(proxy, name)}{path}")
    settle(watched.page)
    return watched, watched.page


# --- the page of a call ----------------------------------------------------------------------------------------------


def test_a_call_shows_first_what_is_new_and_the_answer_with_its_reasoning_and_calls(
    browser: Browser, told: Running
) -> None:
    watched, page = show(browser, told, "shop", "/calls/37")
    heads = page.locator("main h2").all_inner_texts()
    assert heads[:3] == ["New in this call", "Answer", "What became of the client\u2019s tokens"]
    added, answer = page.locator("#added"), page.locator("#answer")
    expect(added.locator("li")).to_have_count(1)
    expect(added).to_contain_text("read_file")
    expect(added).to_contain_text("def tax_3_29(wheel, spoke=29)")
    expect(answer).to_contain_text("The price could be rounded in stock_3.py. I read it before I change anything.")
    expect(answer).to_contain_text("I look at stock_3.py.")
    expect(answer.locator(".tcall")).to_contain_text("path: shop/stock_3.py")
    check_axe(page)
    watched.open(f"/-/sessions/{find(told, 'shop')}/calls/42")
    settle(page)
    assert "".join(answer.locator(".said").inner_text().split()) == "".join(re.sub(r"[*`]", "", DONE % 4).split())
    watched.check()


@pytest.mark.parametrize("path", ["/calls/37", "/calls/2"], ids=["rewritten", "verbatim"])
def test_the_newest_message_is_never_folded_away(browser: Browser, told: Running, path: str) -> None:
    watched, page = show(browser, told, "shop", path)
    newest = page.locator("#cmp .newest")
    expect(newest).to_have_count(1)
    expect(newest.locator(".txt.out").last).to_be_visible()
    request = read(told, f"/sessions/{find(told, 'shop')}/exchanges/{path.rsplit('/', 1)[-1]}")["request"]
    assert newest.locator(".txt.out").last.evaluate("x => x.textContent") == request["messages"][-1]["content"]
    watched.check()


def test_a_refusal_is_the_answer_and_the_last_call_leads_nowhere(browser: Browser, told: Running) -> None:
    watched, page = show(browser, told, "shop", f"/calls/{REFUSED}")
    expect(page.locator("#added")).to_contain_text("Is the server up?")
    expect(page.locator("#answer")).to_contain_text("the model is overloaded")
    expect(page.locator("#acts a", has_text=str(REFUSED - 1))).to_have_count(1)
    expect(page.locator("#acts a[aria-label^='Next']")).to_have_count(0)
    page.keyboard.press("]")
    page.wait_for_timeout(300)
    assert page.url.endswith(f"/calls/{REFUSED}")
    watched.check()


@pytest.mark.parametrize("n", [28, 40])
def test_the_bars_of_a_call_stay_in_their_card(browser: Browser, told: Running, n: int) -> None:
    watched, page = show(browser, told, "shop", f"/calls/{n}")
    right = page.locator("#stack").evaluate("x => x.getBoundingClientRect().right")
    bars = [each.evaluate("x => x.getBoundingClientRect().right") for each in page.locator("#stack rect").all()]
    assert len(bars) > 2
    assert max(bars) <= right + 1
    watched.check()


# --- the conversation ------------------------------------------------------------------------------------------------


def test_a_conversation_has_its_turns_who_said_what_and_calls_as_a_line(browser: Browser, told: Running) -> None:
    watched, page = show(browser, told, "shop")
    page.get_by_role("link", name="Conversation").click()
    page.wait_for_url("**/conversation")
    page.wait_for_selector("html[data-drawn]", state="attached")
    turns = page.locator("#turns .words").all_inner_texts()
    assert len(turns) == 5
    assert [words.startswith(turn.rstrip("\u2026")) for words, turn in zip(WORDS, turns, strict=False)] == [True] * 4
    assert page.locator(".msg.user .said").all_inner_texts() == [*WORDS, "Thank you. Is the server up?"]
    line = page.locator("#c2 .tcall")
    expect(line.locator("summary")).to_contain_text("read_file")
    expect(line.locator("summary")).to_contain_text("shop/price_0.py")
    assert line.evaluate("x => x.querySelector('summary').getBoundingClientRect().height") < 40
    expect(page.get_by_text("def price_0_29(wheel")).to_have_count(0)
    line.locator("summary").click()
    expect(line).to_contain_text("def price_0_29(wheel, spoke=29)")
    expect(page.locator("#c2 .tcall.back")).to_have_count(1)  # what is not sent any more is seen as such
    expect(page.locator("#c41 .tcall.back")).to_have_count(0)
    check_axe(page)
    watched.check()


def test_a_loop_is_marked_where_it_is(browser: Browser, told: Running) -> None:
    watched, page = show(browser, told, "shop", f"/conversation?message={LAST_OF_LOOP}#c{LAST_OF_LOOP}")
    expect(page.locator(f"#c{LAST_OF_LOOP}")).to_contain_text("5 in a row")
    expect(page.locator(f"#c{LAST_OF_LOOP}")).to_be_in_viewport()
    watched.open(f"/-/sessions/{find(told, 'shop')}")
    settle(page)
    expect(page.locator("#chart .m-loop")).to_have_count(1)
    expect(page.locator("#events")).to_contain_text("run was called 5 times in a row with the same arguments")
    (mark,) = [
        each for each in read(told, f"/sessions/{find(told, 'shop')}/timeline")["marks"] if each["kind"] == "loop"
    ]
    assert mark["n"] == LAST_OF_LOOP - 2
    assert REPEATED[0] in mark["text"]
    watched.check()


def test_branches_have_the_words_of_the_user_and_lead_to_their_conversation(browser: Browser, told: Running) -> None:
    watched, page = show(browser, told, "shop")
    names = page.locator("#branches a")
    assert names.all_inner_texts() == ["\u201cThank you. Is the server up?\u201d", f"\u201c{SHORT}\u201d"]
    names.last.click()
    page.wait_for_url("**/conversation?branch=*")
    page.wait_for_selector("html[data-drawn]", state="attached")
    expect(page.locator(".msg.user .said").last).to_have_text(SHORT)
    expect(page.locator("#meta")).to_contain_text("a branch, not the newest conversation")
    branched = page.locator(".msg").last.get_attribute("id")
    # its messages are found by their names alone, too
    watched.open(f"/-/sessions/{find(told, 'shop')}/conversation?message={str(branched)[1:]}#{branched}")
    expect(page.locator(f"#{branched}")).to_contain_text("Laufr\u00e4dern")
    watched.check()


def test_of_a_long_conversation_a_window_is_in_the_document(browser: Browser, told: Running) -> None:
    watched, page = show(browser, told, "long", "/conversation")
    messages = page.locator(".msg")
    expect(page.locator("#meta")).to_contain_text("3,001 messages")
    expect(page.locator("#turns li")).to_have_count(LONG // 2 + 1)
    expect(messages.last).to_contain_text("Go on.")
    expect(messages.last).to_be_in_viewport()
    assert messages.count() <= 500
    first = messages.first.get_attribute("id")
    page.locator("#before button").click()
    expect(page.locator(f"#{first}")).to_have_count(1)
    expect(messages.first).not_to_have_attribute("id", str(first))
    page.locator("#turns a").nth(700).click()
    expect(page.locator(".msg.target")).to_contain_text("message 1400 of a long talk", timeout=SOON)
    expect(page.locator(".msg.target")).to_be_in_viewport()
    for _ in range(12):  # however far one reads, the document does not grow
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(100)
    assert messages.count() <= 500
    address = page.url
    watched.open("/-/")
    page.goto(address)
    expect(page.locator(".msg.target")).to_contain_text("message 1400 of a long talk", timeout=SOON)
    expect(page.locator(".msg.target")).to_be_in_viewport()
    watched.check()


def test_a_message_that_is_cut_is_shown_whole_by_a_button(browser: Browser, told: Running) -> None:
    agent = Agent(told, "wordy")
    agent.ask("Tell me all.", "Word. " * 2000 + "The end.")
    watched, page = show(browser, told, "wordy", "/conversation")
    expect(page.locator("#talk")).not_to_contain_text("The end.")
    page.get_by_role("button", name="Show all of it").click()
    expect(page.locator("#talk")).to_contain_text("The end.", timeout=SOON)
    watched.check()


def test_new_messages_come_in_while_one_reads(browser: Browser, told: Running) -> None:
    agent = Agent(told, "live")
    agent.ask("Are you there?", "Yes.")
    watched, page = show(browser, told, "live", "/conversation")
    expect(page.locator(".msg")).to_have_count(2)
    agent.ask("And now?", "Still.")
    expect(page.locator(".msg")).to_have_count(4, timeout=60_000)
    expect(page.locator("#turns li")).to_have_count(2)
    watched.check()


# --- the page of a session -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1440])
def test_a_short_session_stays_in_its_cards(browser: Browser, told: Running, width: int) -> None:
    watched, page = show(browser, told, "short", width=width)
    said = page.locator("#events li")
    expect(said).to_have_text("Nothing but calls so far: each went out as the client wrote it.")
    words = said.evaluate(
        "x => { const r = new Range(); r.selectNodeContents(x); return r.getBoundingClientRect().width; }"
    )
    assert words > 240
    edges = "x => [x.getBoundingClientRect().left, x.getBoundingClientRect().right]"
    left, right = page.locator("#chart svg").evaluate(edges)
    bars = [each.evaluate(edges) for each in page.locator("#chart rect:is(.cache-ok, .cache-no)").all()]
    assert bars
    assert [bar for bar in bars if bar[0] < left or bar[1] > right] == []
    watched.check()


def test_what_is_reserved_is_not_what_lies_above_the_ceiling(browser: Browser, told: Running) -> None:
    window = read(told, f"/sessions/{find(told, 'shop')}/context?messages=false")["window"]
    watched, page = show(browser, told, "shop")
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#legend tbody tr").all()
    }
    assert rows["Reserved"][:2] == ["for the response", f"{window['output_reserve']:,}"]
    beyond = window["window"] - window["high"] - window["output_reserve"]
    assert rows["Not used"][:2] == [f"above the ceiling, {window['ceiling']:,}", f"{beyond:,}"]
    watched.check()


def test_many_marks_in_one_place_are_one_sign_with_their_number(browser: Browser, told: Running) -> None:
    session = find(told, "shop")

    def fill(route: Route) -> None:
        """A hundred epochs, at calls that follow each other."""
        line = route.fetch().json()
        columns = {name: [column[i % 30] for i in range(600)] for name, column in line.items() if name != "marks"}
        columns["n"] = list(range(1, 601))
        mark = {"kind": "epoch", "title": "An epoch opened", "text": "", "money": 0.1, "tokens": 1}
        route.fulfill(json={**columns, "marks": [{**mark, "n": 5 + 6 * i} for i in range(99)]})

    watched = watch(browser, told.origin, TOKEN, width=820)
    watched.page.route("**/timeline?*", fill)
    watched.open(f"/-/sessions/{session}")
    settle(watched.page)
    signs = watched.page.locator("#chart .m-epoch")
    places = sorted(each.evaluate("x => x.getBoundingClientRect().left") for each in signs.all())
    assert 10 < len(places) < 99
    assert min(b - a for a, b in itertools.pairwise(places)) >= 8
    assert sum(int(each) for each in watched.page.locator("#chart .sign-n").all_text_contents()) > 50


def test_nothing_false_is_said_while_a_page_loads(browser: Browser, told: Running) -> None:
    session = find(told, "shop")
    for path, waiting, false in (
        (
            "",
            r".*/-/api/.*(timeline|context|epochs|pins).*",
            ("no call has ended", "0 misses", "Nothing but calls", "soft mark"),
        ),
        ("/calls/37", r".*/-/api/.*", ("nothing was changed", "no price", "verbatim", "were not counted", "Nothing:")),
    ):
        watched = watch(browser, told.origin, TOKEN)
        watched.page.route(re.compile(waiting), lambda route: None)  # never answered
        watched.open(f"/-/sessions/{session}{path}")
        said = watched.page.locator("main").inner_text()
        assert [each for each in false if each in said] == []
        expect(watched.page.locator("[aria-busy=true]").first).to_be_attached()
        watched.page.context.close()


def test_the_list_of_sessions_has_what_was_spent(browser: Browser, told: Running) -> None:
    watched = watch(browser, told.origin, TOKEN)
    spent = next(each for each in read(told, "/sessions")["items"] if each["name"] == "shop")["spent"]["money"]
    row = watched.page.locator("tbody tr", has_text="Customers pay a cent")
    expect(row.locator(".c-spent")).to_have_text(format_money(spent))
    watched.check()
