"""Groups: calls with all their results, wherever a client put them."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.context.turns import Group, split_groups
from proxy.model.shapes import Shape

USER = Shape("user")


def call(*ids: str) -> Shape:
    return Shape("assistant", ids)


def answer(*ids: str) -> Shape:
    return Shape("tool", (), ids)


def test_parallel_calls_go_with_all_their_results() -> None:
    assert split_groups([USER, call("a", "b"), answer("a"), answer("b"), call("c"), answer("c"), USER]) == [
        Group(0, 1, has_calls=False),
        Group(1, 4, has_calls=True),
        Group(4, 6, has_calls=True),
        Group(6, 7, has_calls=False),
    ]


def test_reasoning_goes_with_what_it_led_to() -> None:
    thought = Shape("assistant", reasoning=b"x")
    assert split_groups([thought, call("a"), answer("a"), thought, Shape("assistant")]) == [
        Group(0, 3, has_calls=True),
        Group(3, 5, has_calls=False),
    ]


def test_a_result_far_behind_its_call_holds_what_is_between() -> None:
    groups = split_groups([call("a"), USER, call("b"), answer("a"), USER, answer("b"), USER])
    assert groups == [Group(0, 6, has_calls=True), Group(6, 7, has_calls=False)]


def test_an_id_used_again_is_answered_behind_its_newest_use() -> None:
    groups = split_groups([call("a"), answer("a"), USER, call("a"), USER, answer("a")])
    assert [group.start for group in groups] == [0, 2, 3]


def test_a_result_without_a_call_goes_with_what_it_stands_behind() -> None:
    assert split_groups([answer("x"), USER, answer("y")]) == [Group(0, 1, has_calls=True), Group(1, 3, has_calls=True)]


_ids = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
_shapes = st.builds(Shape, st.sampled_from(["user", "assistant", "tool"]), _ids, _ids)


@given(st.lists(_shapes, max_size=12))
def test_groups_cover_everything_once_and_part_no_call_from_its_result(shapes: list[Shape]) -> None:
    groups = split_groups(shapes)
    assert [place for group in groups for place in range(group.start, group.stop)] == list(range(len(shapes)))
    for place, shape in enumerate(shapes):
        for result in shape.results:
            callers = [i for i in range(place + 1) if result in shapes[i].calls]
            if callers:
                assert sum(group.start <= callers[-1] and place < group.stop for group in groups) == 1
