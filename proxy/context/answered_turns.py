"""Short answers of the assistant that stay with the user's turns: a turn and its answer stay or leave together."""

from math import ceil

from proxy.context.conversation import ConversationIndex
from proxy.context.user_messages import OlderMessages

# Tokens of an answer that is as short as a line which tells it. Pairs leave in steps of this share of their room, so
# that the same ones are left out for several epochs.
_SHORT_ANSWER, _PAIRS_STRIDE = 48, 0.25


def keep_pairs(
    index: ConversationIndex, older: OlderMessages, least: int, room: float
) -> tuple[OlderMessages, frozenset[int]]:
    """Return the older turns that are sent, and the steps of short answers to them that are sent, too.

    Both together may have `room` tokens. Beyond it a turn and its answer leave together, the oldest first; but while
    all words of the user are sent, only answers do. The first turn stays.
    """
    answers = {form.step: form.step + 1 for form in older.shown if _has_short_answer(index, form.step, least)}
    sizes = {form.step: form.tokens for form in older.shown}
    has_all_words = not older.spare and not any(form.is_cut for form in older.shown)
    excess = sum(sizes.values()) + sum(index.steps[i].tokens for i in answers.values()) - room
    stride = max(1.0, _PAIRS_STRIDE * room)
    left_out = ceil(excess / stride) * stride if excess > 0 else 0.0
    gone = set[int]()
    for turn in [*answers][: -1 if answers else 0]:
        if left_out <= 0:
            break
        is_whole = not has_all_words and turn != older.shown[0].step
        left_out -= index.steps[answers.pop(turn)].tokens + (sizes[turn] if is_whole else 0)
        gone |= {turn} if is_whole else set()
    shown = tuple(form for form in older.shown if form.step not in gone)
    spare = older.spare + sum(sizes[turn] for turn in gone)
    return OlderMessages(shown, spare), frozenset(answers.values())


def _has_short_answer(index: ConversationIndex, turn: int, least: int) -> bool:
    """Return whether the turn at a step has an answer of few tokens, without calls, and the next turn follows."""
    if turn + 2 > least or turn + 2 >= len(index.steps):
        return False
    step, answer, following = index.steps[turn : turn + 3]
    has_calls = step.has_calls or answer.has_calls
    return (answer.kind, following.kind) == ("step", "user") and not has_calls and answer.tokens <= _SHORT_ANSWER
