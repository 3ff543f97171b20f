"""Messages as they come back from clients: spelled anew, and read.

Rule: nothing here knows a wire; what a wire's clients change stands in that wire's test.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from hypothesis import strategies as st

from proxy.wire.body import split_body
from proxy.wire.format import Format
from proxy.wire.identity import Item

Message = dict[str, Any]
Change = Callable[[Message, Random], None]

# Few letters, so that two texts are often nearly the same; control characters, and what spellings differ about.
texts = st.text(st.sampled_from(' ab"\\/\n\t\x1b\x7fé\u2028😀'), max_size=5)
ids = st.sampled_from(["call_1", "call_2", "f:0"])
names = st.sampled_from(["f", "g"])
values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 0.5, 1.5e-7, 2**53 + 1, 10**30, ""]) | texts,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(texts, each, max_size=3),
    max_leaves=4,
)
inputs = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def spell(value: object, random: Random) -> str:
    """The value as one of many serializers would write it."""
    gap = random.choice(["", " "])
    return json.dumps(
        _shuffle(value, random), ensure_ascii=random.random() < 0.5, separators=("," + gap, ":" + gap), allow_nan=True
    )


def spell_like_javascript(value: object, random: Random) -> str:
    """The same, with 1 written as 1.0 or 1 whatever it was."""
    return spell(_waver(value, random), random)


def read(form: Format, bodies: Sequence[str]) -> list[Item]:
    """The items spelled like this, read as a conversation."""
    content = f'{{"{form.items_key}":[{", ".join(bodies)}]}}'.encode("utf-8", "surrogatepass")
    split = split_body(content, form.items_key)
    assert split is not None
    return form.read_items(content, split.items)


def read_one(form: Format, value: object) -> Item:
    """The item a value is."""
    (item,) = read(form, [json.dumps(value)])
    return item


def mutate(message: Message, changes: Sequence[Change], random: Random) -> Message:
    """The message after these changes, one upon the other."""
    changed = deepcopy(message)
    for change in changes:
        change(changed, random)
    return changed


def pairwise_different(form: Format, messages: Sequence[object]) -> None:
    """Assert that no two of these have the same form, alone and read together."""
    alone = [read_one(form, message).form for message in messages]
    assert all(len(each) == 16 for each in alone)
    clashes = [(a, b) for i, a in enumerate(messages) for j, b in enumerate(messages[:i]) if alone[i] == alone[j]]
    assert clashes == []
    assert [item.form for item in read(form, [json.dumps(message) for message in messages])] == alone


def _shuffle(value: object, random: Random) -> object:
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: _shuffle(value[key], random) for key in keys}
    return [_shuffle(each, random) for each in value] if isinstance(value, list) else value


def _waver(value: object, random: Random) -> object:
    if isinstance(value, dict):
        return {key: _waver(each, random) for key, each in value.items()}
    if isinstance(value, list):
        return [_waver(each, random) for each in value]
    return float(value) if type(value) is int and abs(value) < 2**53 and random.random() < 0.5 else value
