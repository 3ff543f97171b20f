"""Fields, blocks and items that nobody knows go on as they came and where they were, whether or not a request is cut.

Rule: bytes are compared, not values.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import settings

from proxy.context.budget import BudgetPolicy, make_budget
from proxy.context.conversation import PlanInputs
from proxy.engine.context.epoch_planner import PlanJob, compute_plan
from proxy.engine.policy import Provider
from proxy.model.epoch import Kept, Replaced
from proxy.wire import FORMATS
from proxy.wire.body import SplitBody, split_body
from proxy.wire.format import Format
from proxy.wire.json_values import list_elements, load_json, read_member
from proxy.wire.rendering import apply, change_items
from tests.support.managing import make_builder
from tests.support.odd_requests import NEW_KINDS, OddRequests

REQUESTS = 4 * settings().max_examples
# What a tombstone, or a shorter form, writes anew in a message, an item and a result.
_WRITTEN = frozenset({"content", "output", "arguments"})
_BUDGET = make_budget(100_000, 100, None, BudgetPolicy(ceiling_tokens=3_500))
_BUILDER = make_builder()
_NEW = tuple(f'"{kind}"'.encode() for kind in NEW_KINDS)


def make(number: int) -> tuple[Format, SplitBody]:
    """A request, by turns of both wires."""
    odd = OddRequests(number)
    form = FORMATS["responses" if number % 2 else "anthropic_messages"]
    body = odd.make_responses() if number % 2 else odd.make_messages()
    split = split_body(body, form.items_key)
    assert split is not None
    return form, split


def is_unknown(raw: bytes) -> bool:
    """Whether an item, or a part of it, is of a kind that nobody knows."""
    value = load_json(raw)
    assert isinstance(value, dict)
    parts = value["content"] if isinstance(value.get("content"), list) else []
    return any(part.get("type") in NEW_KINDS for part in (value, *parts))


def list_names(raw: bytes) -> list[str]:
    value = load_json(raw)
    assert isinstance(value, dict)
    return list(value)


def check_replaced(raw: bytes, sent: bytes) -> None:
    """What of a message or an item is not written anew is as it came, in its order."""
    names = list_names(sent)
    assert [name for name in names if name != "id"] == [name for name in list_names(raw) if name != "id"]
    for name in set(names) - _WRITTEN:
        assert read_member(sent, name) == read_member(raw, name)
    before, after = (list_elements(read_member(each, "content")) for each in (raw, sent))
    results = [part for part in before if b'"tool_use_id"' in part]
    if results and read_member(raw, "role") == b'"user"':
        for old, new in zip(results, after, strict=False):
            assert list_names(old) == list_names(new)
            for name in set(list_names(old)) - _WRITTEN:
                assert read_member(new, name) == read_member(old, name)


def check_cut(form: Format, split: SplitBody, raws: Sequence[bytes]) -> Counter[str]:
    """Shorten a request. Return what was found to be as it came."""
    tokens, nodes = [len(raw) // 4 for raw in raws], [sha256(raw).digest() for raw in raws]
    job = PlanJob(form.name, list(raws), nodes, tokens, 100, "s", b"secret", Provider(), PlanInputs(_BUDGET))
    made = compute_plan(job, _BUILDER)
    plan, rendered = made.plan, made.rendered
    counts: Counter[str] = Counter()
    stays = set(range(plan.through, len(raws)))
    for edit, sent in zip(plan.edits, rendered, strict=True):
        if isinstance(edit, Kept):
            assert sent == raws[edit.place]
            stays.add(edit.place)
            counts["kept"] += 1
        if isinstance(edit, Replaced):
            check_replaced(raws[edit.place], sent)
            counts["replaced"] += 1
    unknown = {place for place, raw in enumerate(raws) if any(kind in raw for kind in _NEW) and is_unknown(raw)}
    assert unknown <= stays
    counts["unknown"] += len(unknown)
    if plan.through:
        content, items = split.content, split.items
        whole = apply(split, 0, plan.through, rendered)
        assert whole == content[: items[0].start] + b",".join(rendered) + content[items[plan.through - 1].end :]
        counts["cut"] += 1
    return counts


@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(4))
def test_what_nobody_knows_goes_on_as_it_came_and_where_it_was(part: int) -> None:
    counts: Counter[str] = Counter()
    for number in range(part, REQUESTS, 4):
        form, split = make(number)
        raws = [split.content[span.start : span.end] for span in split.items]
        assert len(form.read_items(split.content, split.items)) == len(raws) > 8
        assert change_items(split, 0, dict(enumerate(raws))) == split.content
        counts += check_cut(form, split, raws)
    assert counts["cut"] > 0.5 * REQUESTS / 4
    assert min(counts["kept"], counts["replaced"], counts["unknown"]) > REQUESTS / 10
