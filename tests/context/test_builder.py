"""Plans: what stays, what goes, and that it always fits where it can."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.builder import ContextBuilder
from proxy.context.policy import BuilderPolicy
from proxy.context.turns import split_groups
from proxy.model.plan import ContextPlan, Written
from proxy.wire.validity import Rules, find_faults, judge_history
from tests.support.views import (
    Message,
    act,
    call,
    count,
    list_texts,
    render,
    result,
    said,
    see,
    splice,
    user,
    view,
)

BUILDER = ContextBuilder(BuilderPolicy(), count)
REFERENCE = re.compile(r"\bref:([a-z0-9]{10})")

NOTHING = ContextPlan(0, (), (), 0)

_WORDS = st.sampled_from(
    ["proxy/engine/relay.py", "read_shape", "NULL", "and so on", "\n", "ref:abcdefghij", "[tool: x"]
)
_texts = st.builds(
    lambda words, times: "; ".join(words) * times,
    st.lists(_WORDS, min_size=1, max_size=5),
    st.sampled_from([1, 9, 200]),
)
_steps = st.lists(st.tuples(st.sampled_from(["user", "said", "call", "calls", "skill"]), _texts), max_size=25)


def write(steps: list[tuple[str, str]]) -> list[Message]:
    """A history of these steps that ends with what a model has to answer."""
    messages = [user("begin")]
    for i, (kind, text) in enumerate([*steps, ("call", "ls")]):
        if kind == "user":
            messages.append(user(text))
        elif kind == "said":
            messages.append(said(text))
        elif kind == "calls":
            messages.append(call(f"c{i}", text))
            messages[-1]["tool_calls"] += call(f"d{i}", "ls")["tool_calls"]
            messages += [result(f"c{i}", text), result(f"d{i}", f"{i}")]
        else:
            messages += act(f"c{i}", "ls", text, name="skill" if kind == "skill" else "shell")
    return messages


def measure(messages: list[Message], plan: ContextPlan) -> int:
    return sum(see(message).tokens for message in render(messages, plan))


@settings(max_examples=150, deadline=None)
@given(_steps, st.sampled_from([1500, 3000, 6000, 20_000]), st.integers(0, 500), st.booleans())
def test_a_plan_is_valid_fits_and_keeps_what_must_stay(
    steps: list[tuple[str, str]], ceiling: int, head: int, is_minimal: bool
) -> None:
    messages = write(steps)
    seen = view(messages, ceiling, head)
    plan = BUILDER.minimal(seen) if is_minimal else BUILDER.build(seen)
    sent = render(messages, plan)
    shapes = [each.shape for each in seen.messages]
    groups = split_groups(shapes)
    kept = {edit.place for edit in plan.edits if not isinstance(edit, Written)}
    assert plan.through in {0, *(group.stop for group in groups)}
    assert all(
        len(kept & set(range(g.start, g.stop))) in (0, g.stop - g.start) for g in groups if g.stop <= plan.through
    )
    assert find_faults(judge_history(shapes), splice(plan, seen), Rules()) == ()
    named = {id for text in list_texts(plan) for id in REFERENCE.findall(text)}
    assert named == {each.id for each in plan.references}
    assert all(0 <= each.start < each.stop <= len(messages) for each in plan.references)
    newest = [message for message in messages if message["role"] == "user"]
    assert newest[-1] in sent
    assert (
        all(message in sent for message in newest[-2:])
        or is_minimal
        or measure(newest[-2:], NOTHING) > 0.3 * seen.budget.usable
    )
    assert measure(messages, plan) <= plan.tokens
    assert head + plan.tokens <= seen.budget.usable or count(newest[-1]["content"]) + head > 0.3 * seen.budget.usable
