"""What is sent upstream in the log: it grows with what is new, and can be put together again."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine.context.session_caches import SentBodies
from proxy.engine.conversations.bodies import BodyCache
from proxy.engine.request import ManagedRequest
from proxy.model.exchange import SessionKey
from proxy.model.manifest import Manifest
from proxy.wire.body import count_shared, split_after
from proxy.wire.rendering import apply
from tests.support.managing import SESSION, make_history, make_subject, spell
from tests.support.rebuilding import Log

TOOLS = [{"type": "function", "function": {"name": "bash", "description": "d" * 3000}}]
HISTORY = make_history(12)


def send(sent: SentBodies, subject: ManagedRequest, messages: list[Any], log: Log | None = None) -> Manifest:
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
    assert [json.loads(each.content or b"") for each in more.slices] == HISTORY[20:22]
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


LEDGER = (b'{"role":"user","content":"a ledger"}',)


def go_on(before: ManagedRequest | None, messages: list[Any], **members: Any) -> ManagedRequest:
    """A request as reception hands it on: what it shares with the one before holds its places in the same sequence."""
    subject = make_subject(messages, tools=TOOLS, **members)
    content = subject.split.content
    split = split_after(content, "messages", before.split, count_shared(content, before.split)) if before else None
    return replace(subject, split=split) if split is not None else subject


def rewrite(
    sent: SentBodies, subject: ManagedRequest, log: Log, depth: int = 8, rendered: tuple[bytes, ...] = LEDGER
) -> int:
    """How many slices the manifest of a request under an epoch brings to the log."""
    content = apply(subject.split, subject.chain.preamble.count, depth, rendered)
    manifest = sent.keep(subject, content, depth)
    log.take(manifest)
    assert log.rebuild(manifest.recipe, SESSION.tenant) == content
    return len(manifest.slices)


def refuse(*arguments: Any) -> Any:
    raise AssertionError("nothing is to be looked for")


def test_what_is_behind_an_epoch_is_taken_from_the_clients_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, log = SentBodies(1 << 20), Log()
    first = go_on(go_on(None, HISTORY[:14]), HISTORY[:16], metadata={"n": "x" * 600})
    assert rewrite(sent, first, log) == 9
    second = go_on(first, HISTORY[:18], metadata={"n": "y" * 700})
    monkeypatch.setattr(BodyCache, "find", refuse)
    assert rewrite(sent, second, log) == 2
    assert rewrite(sent, go_on(second, HISTORY[:18], metadata={}), log) == 0
    third = go_on(second, HISTORY[:20])
    assert rewrite(sent, third, log) == 2
    monkeypatch.undo()
    other = [*HISTORY[:17], {"role": "user", "content": "another way"}, *HISTORY[18:20]]
    assert rewrite(sent, go_on(third, other), log) == 3


def test_what_reception_did_not_compare_is_looked_for() -> None:
    sent, log = SentBodies(1 << 20), Log()
    rewrite(sent, go_on(None, HISTORY[:16]), log)
    assert rewrite(sent, go_on(None, HISTORY[:18]), log) == 2
    sent.keep(go_on(None, HISTORY[:18]), spell(HISTORY[:3]))  # what is not sent under an epoch has no source
    assert rewrite(sent, go_on(None, HISTORY[:18]), log) == 0


def test_a_body_that_does_not_end_as_the_clients_has_no_source() -> None:
    sent, log = SentBodies(1 << 20), Log()
    first = go_on(go_on(None, HISTORY[:14]), HISTORY[:16])
    content = apply(first.split, first.chain.preamble.count, 8, LEDGER)
    at = content.rindex(b"function_6")
    log.take(sent.keep(first, content[:at] + b"FUNCTION_6" + content[at + 10 :], 8))
    assert rewrite(sent, go_on(first, HISTORY[:18]), log) > 2
