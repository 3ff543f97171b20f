import json

import pytest

from proxy.context.conversation import CountedMessage
from proxy.context.strategies.sources import PromptSource, find_source, is_source_kind, read_source_name
from proxy.wire import FORMATS
from tests.support.views import RawMessage, act, said, user


def see(messages: list[RawMessage]) -> list[CountedMessage]:
    decoded = [FORMATS["chat_completions"].decode_message(json.dumps(each).encode()) for each in messages]
    return [CountedMessage(each.message, each.structure, 1) for each in decoded]


def named(name: str, text: str = "look") -> RawMessage:
    return {**user(text), "name": name}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "direct"), ("ann", "direct"), ("broadcaster", "direct"), ("broadcast", "broadcast"),
        ("broadcast:ann", "broadcast:ann"), ("broadcast-ann", "broadcast:ann"), ("broadcast:", "direct"),
    ],
)  # fmt: skip
def test_the_name_of_a_message_tells_its_kind(name: str, kind: str) -> None:
    assert read_source_name(name) == kind


@pytest.mark.parametrize("kind", ["direct", "broadcast", "broadcast:ann", "broadcast:ann b", "tick", "tick:wait"])
def test_these_kinds_are_served(kind: str) -> None:
    assert is_source_kind(kind)


@pytest.mark.parametrize("kind", ["", "tick:now", "broadcast:", "broadcast: x", "broadcast:a\nb", "peer", "direct x"])
def test_no_others_are(kind: str) -> None:
    assert not is_source_kind(kind)


def test_the_newest_source_wins_whatever_its_kind() -> None:
    messages = see([user("a"), said("b"), named("broadcast:ann"), *act("1", "ls", "x"), said("c")])
    assert find_source(messages, {}, 20) == PromptSource(2, "broadcast:ann")


def test_what_a_request_told_goes_before_the_name() -> None:
    messages = see([named("broadcast"), said("b")])
    assert find_source(messages, {0: "broadcast:bob"}, 20) == PromptSource(0, "broadcast:bob")


def test_a_nudge_counts_only_in_the_window_and_other_sources_everywhere() -> None:
    messages = see([user("a"), said("b"), user("go on"), *act("1", "ls", "x"), said("c")])
    found = find_source(messages, {2: "tick"}, 4)
    assert found == PromptSource(2, "tick")
    assert found.is_nudge
    assert find_source(messages, {2: "tick:wait"}, 3) == PromptSource(0, "direct")


def test_without_words_of_the_user_there_is_no_source() -> None:
    assert find_source(see([said("a"), *act("1", "ls", "x")]), {}, 20) is None
