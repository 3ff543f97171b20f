"""Findings are made once while there is room for them."""

import threading

import pytest

from proxy.context.message_features import MessageFeatures, extract_features
from proxy.engine.context import epoch_planner
from proxy.engine.context.epoch_planner import FeatureCache
from proxy.model.messages import Message, ToolCall


def say(number: int, size: int = 100) -> Message:
    return Message("tool", f"output {number} of src/module_{number}.py " + "x" * size, (), ("call",))


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What was looked at, in order."""
    seen: list[Message] = []

    def look(told: Message) -> MessageFeatures:
        seen.append(told)
        return extract_features(told)

    monkeypatch.setattr(epoch_planner, "extract_features", look)
    return seen


def test_a_message_is_studied_once(studied: list[Message]) -> None:
    known = FeatureCache(1 << 20)
    assert [known.find(say(1)) for _ in range(3)] == [extract_features(say(1))] * 3
    assert studied == [say(1)]


def test_what_was_used_least_recently_goes_first(studied: list[Message]) -> None:
    known = FeatureCache(4000)
    for number in (1, 2, 1, 3, 4, 1, 2):
        known.find(say(number, 400))
    assert known.weight <= 4000
    assert studied == [say(number, 400) for number in (1, 2, 3, 4, 2)]


def test_what_is_larger_than_all_room_is_not_kept(studied: list[Message]) -> None:
    known = FeatureCache(1000)
    large = Message("assistant", "", (ToolCall("c", "bash", "word " * 1000),))
    assert known.find(large) == known.find(large)
    assert (known.weight, len(studied)) == (0, 2)


def test_threads_may_ask_at_once() -> None:
    known = FeatureCache(20_000)
    wrong: list[int] = []

    def ask() -> None:
        wrong.extend(number for number in [*range(40)] * 5 if known.find(say(number)) != extract_features(say(number)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < known.weight <= 20_000
