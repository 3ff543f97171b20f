"""Clients that clear old tool outputs themselves, for `python -m benchmarks.replay_wires --clears NAME`.

The rule: an output is cleared in the client's own history, once and for good, by the notice that such a client writes;
never one that the model has not seen. The thresholds are those of the clients, in the tokens of the replay kit.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.chat_wires import ChatMessage

Measure = Callable[[ChatMessage], int]
Clear = Callable[[list[ChatMessage], Measure], None]

_NOTICE = "[Old tool result content cleared]"
_CLEARED = "_cleared"  # such keys are not sent
_PROTECTED, _WORTH_IT = 40_000, 20_000  # tokens of outputs


def clear_nothing(messages: list[ChatMessage], measure: Measure) -> None:
    """Clear nothing."""


def clear_but_three(messages: list[ChatMessage], measure: Measure) -> None:
    """Clear all outputs but the newest three once they have 40,000 tokens, as Claude Code's microcompact does."""
    outputs = _list_outputs(messages)
    old = outputs[:-3]
    if _sum(messages, outputs, measure) > _PROTECTED and _sum(messages, old, measure) >= _WORTH_IT:
        _replace(messages, old)


def clear_old_turns(messages: list[ChatMessage], measure: Measure) -> None:
    """Clear what lies behind two turns and the newest 40,000 tokens of outputs, as opencode's prune does.

    It looks when the user has written, and only clears 20,000 tokens or more.
    """
    turns = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if messages[-1]["role"] != "user" or len(turns) < 2:
        return
    outputs = [place for place in _list_outputs(messages) if place < turns[-2]]
    old = list(_list_behind(messages, outputs, measure))
    if _sum(messages, old, measure) >= _WORTH_IT:
        _replace(messages, old)


def clear_but_last(messages: list[ChatMessage], measure: Measure, kept: int) -> None:
    """Clear all outputs but the newest so many with each call, as SWE-agent and OpenHands do if told to."""
    _replace(messages, _list_outputs(messages)[:-kept])


CLIENTS: dict[str, Clear] = {
    "none": clear_nothing,
    "microcompact": clear_but_three,
    "prune": clear_old_turns,
    "last-20": partial(clear_but_last, kept=20),
    "last-5": partial(clear_but_last, kept=5),
}


def _list_outputs(messages: Sequence[ChatMessage]) -> list[int]:
    return [place for place, each in enumerate(messages) if each["role"] == "tool" and _CLEARED not in each]


def _list_behind(messages: Sequence[ChatMessage], outputs: Sequence[int], measure: Measure) -> Iterator[int]:
    newer = 0
    for place in reversed(outputs):
        newer += measure(messages[place])
        if newer > _PROTECTED:
            yield place


def _sum(messages: Sequence[ChatMessage], places: Sequence[int], measure: Measure) -> int:
    return sum(measure(messages[place]) for place in places)


def _replace(messages: list[ChatMessage], places: Sequence[int]) -> None:
    for place in places:  # without the kit's digest of it, `_k`
        plain = {name: value for name, value in messages[place].items() if not name.startswith("_")}
        messages[place] = plain | {"content": _NOTICE, _CLEARED: True}
