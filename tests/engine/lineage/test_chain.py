"""A body's messages as a chain: the preamble is outside, and what repeats is not read again."""

import json
from collections.abc import Sequence

from proxy.engine.lineage.chain import Chain, make_chain, read_messages
from proxy.model.lineage import extend_chain
from proxy.wire.body import ByteRange, SplitBody, split_body
from proxy.wire.chat_completions import ChatCompletions
from proxy.wire.identity import Item
from proxy.wire.responses import Responses

ROOT, OTHER = b"r" * 16, b"o" * 16


class Counting(ChatCompletions):
    """Counts the messages that are read."""

    def __init__(self) -> None:
        self.count = 0

    def read_items(self, content: bytes, spans: Sequence[ByteRange]) -> list[Item]:
        self.count += len(spans)
        return super().read_items(content, spans)


def split(*messages: tuple[str, str]) -> SplitBody:
    body = split_body(json.dumps({"messages": [{"role": r, "content": c} for r, c in messages]}).encode(), "messages")
    assert body is not None
    return body


def make(form: ChatCompletions, body: SplitBody, known: Chain | None = None, shared: int = 0) -> Chain:
    return make_chain(read_messages(form, body, known, shared, ROOT), known, ROOT)


SYSTEM, HI, THERE, MORE = ("system", "s"), ("user", "hi"), ("assistant", "there"), ("user", "more")


def test_leading_system_messages_are_no_part_of_the_chain() -> None:
    form = ChatCompletions()
    plain, ordered = make(form, split(HI)), make(form, split(SYSTEM, ("developer", "d"), HI))
    assert (plain.nodes, plain.preamble.count, ordered.preamble.count) == (ordered.nodes, 0, 2)
    other = make(form, split(("system", "t"), ("developer", "d"), HI))
    assert len({each.preamble.system for each in (plain, ordered, other)}) == 3
    assert len(make(form, split(HI, SYSTEM)).nodes) == 2
    assert list(plain.nodes) == extend_chain(ROOT, [item.form for item in plain.items])


def test_what_is_shared_is_not_read_again() -> None:
    form = Counting()
    before = make(form, split(SYSTEM, HI))
    form.count = 0
    body = split(SYSTEM, HI, THERE, MORE)
    after = make(form, body, before, 2)
    assert form.count == 2
    assert after == make(form, body)


def test_nothing_is_taken_over_within_the_preamble_or_from_another_root() -> None:
    form = Counting()
    before = make(form, split(SYSTEM, HI))
    form.count = 0
    assert make(form, split(SYSTEM, MORE), before, 1) == make(form, split(SYSTEM, MORE))
    elsewhere = make_chain(read_messages(form, split(SYSTEM, HI, MORE), before, 2, OTHER), before, OTHER)
    assert (form.count, elsewhere.root) == (7, OTHER)
    assert not set(elsewhere.nodes) & set(before.nodes)


def test_a_cut_in_the_shared_part_keeps_what_comes_before_it() -> None:
    form = ChatCompletions()
    long, short = split(SYSTEM, HI, THERE, MORE), split(SYSTEM, HI, ("assistant", "no"))
    assert make(form, short, make(form, long), 2) == make(form, short)


def test_a_plain_string_is_a_message_and_nothing_is_none() -> None:
    form = Responses()
    for content, count in ((b'{"input":"hi"}', 1), (b'{"input":[]}', 0), (b'{"input":7}', 0), (b"{}", 0)):
        body = split_body(content, "input")
        assert body is not None
        chain = make_chain(read_messages(form, body, None, 0, ROOT), None, ROOT)
        assert (len(chain.nodes), len(chain.items)) == (count, count)


class CountingResponses(Responses):
    """Counts how often instructions are read."""

    def __init__(self) -> None:
        self.count = 0

    def read_instructions(self, member: bytes) -> bytes:
        self.count += 1
        return super().read_instructions(member)


def instruct(orders: object, *said: str, known: Chain | None = None, form: Responses | None = None) -> Chain:
    items = [{"role": "user", "content": text} for text in said]
    body = split_body(json.dumps({"input": items, "instructions": orders}).encode(), "input")
    assert body is not None
    shared = len(known.items) if known is not None else 0
    return make_chain(read_messages(form or Responses(), body, known, shared, ROOT), known, ROOT)


def test_orders_beside_the_conversation_tell_who_the_model_is_to_be() -> None:
    nothing, helper, titler = (instruct(orders, "hi") for orders in (None, "You help.", "You make titles."))
    assert len({each.preamble.system for each in (nothing, helper, titler)}) == 3
    assert nothing.nodes == helper.nodes == titler.nodes
    assert nothing.preamble == instruct("", "hi").preamble


def test_orders_that_are_known_are_not_read_again_and_others_are() -> None:
    form = CountingResponses()
    first = instruct("You help.", "hi", form=form)
    again = instruct("You help.", "hi", "more", known=first, form=form)
    assert (form.count, again.preamble) == (1, first.preamble)
    for orders in ("You make titles.", None):
        other = instruct(orders, "hi", "more", known=first, form=form)
        assert other == instruct(orders, "hi", "more")
        assert other.preamble.system != first.preamble.system


def test_of_more_messages_than_are_looked_at_none_is_taken_over_from_what_is_known() -> None:
    known = make(ChatCompletions(), split(HI, THERE))
    body = split(HI, THERE, MORE)
    assert not make(ChatCompletions(), SplitBody(body.content, body.members, ()), known, 2).nodes
