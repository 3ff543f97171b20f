"""What is sent upstream in the log: it grows with what is new, and can be put together again."""

import json
from typing import Any

import pytest

from proxy.engine.managing.sent import SentBodies
from proxy.engine.managing.subject import Subject
from proxy.model.exchange import SessionKey
from proxy.model.manifest import Manifest
from tests.support.managing import SESSION, make_history, make_subject, spell
from tests.support.rebuilding import Log

TOOLS = [{"type": "function", "function": {"name": "bash", "description": "d" * 3000}}]
HISTORY = make_history(12)


def send(sent: SentBodies, subject: Subject, messages: list[Any], log: Log | None = None) -> Manifest:
    content = spell(messages, tools=TOOLS)
    manifest = sent.keep(subject, content)
    if log is not None:
        log.take(manifest)
        assert log.rebuild(manifest.recipe, SESSION.tenant) == content
    return manifest


def test_a_second_body_brings_only_what_is_new() -> None:
    sent, log = SentBodies(1 << 20), Log()
    subject = make_subject(HISTORY)
    assert len(send(sent, subject, HISTORY[:20], log).slices) == 20
    more = send(sent, subject, HISTORY[:22], log)
    assert [json.loads(each.content) for each in more.slices] == HISTORY[20:22]
    assert more.blobs == ()


def test_after_an_epoch_it_is_what_stands_behind_the_first_edit() -> None:
    sent, log = SentBodies(1 << 20), Log()
    subject = make_subject(HISTORY)
    send(sent, subject, HISTORY[:20], log)
    cut = [*HISTORY[:2], {"role": "user", "content": "a ledger"}, *HISTORY[18:22]]
    assert len(send(sent, subject, cut, log).slices) == 5


def test_sessions_and_views_lean_on_their_own_only() -> None:
    sent = SentBodies(1 << 20)
    send(sent, make_subject(HISTORY), HISTORY)
    other = make_subject(HISTORY, session=SessionKey("s2", SESSION.tenant, "main", "family"))
    assert len(send(sent, other, HISTORY).slices) == len(HISTORY)
    assert len(send(sent, make_subject(HISTORY), HISTORY).slices) == 0


@pytest.mark.parametrize("content", [b"not JSON", b'{"messages":[]}', b'{"messages":[],"messages":[1]}'])
def test_what_has_no_messages_to_be_found_is_kept(content: bytes) -> None:
    log, manifest = Log(), SentBodies(1 << 20).keep(make_subject(HISTORY), content)
    log.take(manifest)
    assert (log.rebuild(manifest.recipe), manifest.slices, manifest.size) == (content, (), len(content))


def test_after_clearing_everything_is_brought_again() -> None:
    sent = SentBodies(1 << 20)
    send(sent, make_subject(HISTORY), HISTORY)
    sent.clear()
    again = send(sent, make_subject(HISTORY), HISTORY, Log())
    assert len(again.slices) == len(HISTORY)


def test_no_more_is_remembered_than_may_be() -> None:
    sent = SentBodies(10_000)
    send(sent, make_subject(HISTORY), HISTORY)
    assert len(send(sent, make_subject(HISTORY), HISTORY).slices) == len(HISTORY)
