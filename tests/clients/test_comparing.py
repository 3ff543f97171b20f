"""Comparing: each way in which a run through the proxy can differ is seen, and a run without a difference is fine."""

from dataclasses import replace

import pytest

from tests.clients.client import Client, Expected, Tree, fill
from tests.clients.comparing import (
    Run,
    check_run,
    compare_log,
    compare_runs,
    drop_cut,
    drop_listings,
    find_difference,
)
from tests.clients.logs import Recorded
from tests.clients.script import CONTENT, Script
from tests.clients.upstream import Exchange

CLIENT = Client("some", "pip", (), Expected(2, (Tree(("root append",)),)))
CALLS = (Exchange("POST", "/v1/x?a=1", b'{"n":1}', b"one"), Exchange("POST", "/v1/x", f"{CONTENT} 2".encode(), b"two"))
RUN = Run((0, 0), b"Done: turn 1.", CALLS, (("copy.txt", b"x"),))
LOG = tuple(
    Recorded("chat", call.method, call.target.split("=")[0], "complete", call.body, call.body, call.answer)
    for call in CALLS
)


def test_the_same_is_the_same() -> None:
    assert list(compare_runs(CLIENT, RUN, RUN)) == []
    assert list(check_run(CLIENT, RUN)) == []
    assert list(compare_log(CALLS, LOG)) == []


@pytest.mark.parametrize(
    ("through", "word"),
    [
        (replace(RUN, codes=(0, 1)), "exit codes"),
        (replace(RUN, output=b"Done: turn 2."), "output"),
        (replace(RUN, files=()), "files that differ: copy.txt"),
        (replace(RUN, recording=CALLS[:1]), "calls"),
        (replace(RUN, recording=CALLS[::-1]), "call 1"),
        (replace(RUN, recording=(CALLS[0], replace(CALLS[1], body=CALLS[1].body + b" "))), "call 2: at byte"),
        (replace(RUN, recording=(CALLS[0], replace(CALLS[1], target="/v1/y"))), "call 2"),
        (replace(RUN, recording=(CALLS[0], replace(CALLS[1], method="PUT"))), "call 2"),
    ],
)
def test_a_difference_is_seen(through: Run, word: str) -> None:
    faults = list(compare_runs(CLIENT, RUN, through))
    assert faults
    assert faults[0].startswith(word)


def test_only_what_a_client_names_is_forgiven() -> None:
    through = replace(RUN, recording=(replace(CALLS[0], body=b'{"n":2}'), CALLS[1]))
    lenient = replace(CLIENT, normal=lambda body: body.replace(b"2", b"1"))
    assert list(compare_runs(lenient, RUN, through)) == []
    assert list(compare_runs(replace(CLIENT, is_ordered=False), RUN, replace(RUN, recording=CALLS[::-1]))) == []


@pytest.mark.parametrize(
    ("client", "run", "word"),
    [
        (CLIENT, replace(RUN, codes=(0, 3)), "exit codes (0, 3)"),
        (CLIENT, replace(RUN, output=b"no"), "the last answer is not in the output"),
        (CLIENT, replace(RUN, recording=CALLS[:1]), "no request carries what a tool read"),
        (replace(CLIENT, script=Script(prose="x")), replace(RUN, files=()), "the file that the answer holds"),
    ],
)
def test_a_run_that_was_none_is_seen(client: Client, run: Run, word: str) -> None:
    [fault] = check_run(client, run)
    assert fault.startswith(word)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"request": b"other"}, 2),
        ({"sent": b"other"}, 2),
        ({"received": b"other"}, 4),
        ({"target": "/v1/y"}, 4),
        ({"completeness": "truncated"}, 1),
        ({"completeness": ""}, 1),
    ],
)
def test_a_log_with_other_bytes_is_seen(change: dict[str, object], count: int) -> None:
    assert len(list(compare_log(CALLS, (LOG[0], replace(LOG[1], **change))))) == count  # type: ignore[arg-type]


def test_a_call_that_the_log_lacks_or_has_twice_is_seen() -> None:
    assert len(list(compare_log(CALLS, LOG[:1]))) == 2
    assert len(list(compare_log(CALLS, (*LOG, LOG[0])))) == 2


def test_of_a_call_that_a_kill_cut_off_the_log_may_have_a_part() -> None:
    cut = (CALLS[0], replace(CALLS[1], is_cut=True))
    for received, completeness in ((b"two", "complete"), (b"t", "truncated"), (b"", "")):
        log = (LOG[0], replace(LOG[1], received=received, completeness=completeness))
        assert list(compare_log(*drop_cut(cut, log))) == []
    assert list(compare_log(*drop_cut(cut, LOG[:1]))) == []
    assert list(compare_log(*drop_cut(cut, (LOG[0], replace(LOG[1], received=b"other")))))
    again = (*cut, CALLS[1])
    rows = (LOG[0], replace(LOG[1], received=b"", completeness=""), LOG[1])
    assert list(compare_log(*drop_cut(again, rows))) == []
    assert list(compare_log(*drop_cut(again, rows[:2])))


def test_a_difference_is_shown_where_it_is() -> None:
    assert find_difference(b"abc", b"abd") == "at byte 2: b'abc' is now b'abd'"
    assert find_difference(b"abc", b"ab") == "at byte 2: b'abc' is now b'ab'"


def test_places_are_filled_in() -> None:
    assert fill("$origin/v1 {x}", {"origin": "http://h"}) == "http://h/v1 {x}"
    with pytest.raises(KeyError):
        fill("$nowhere", {})


def test_a_listing_that_the_proxy_asks_for_is_no_call_of_the_client() -> None:
    listing = Exchange("GET", "/v1/models?limit=9", b"", b"{}")
    through = replace(RUN, recording=(*CALLS, listing))
    assert drop_listings(RUN, through) == RUN
    assert drop_listings(through, through) == through
