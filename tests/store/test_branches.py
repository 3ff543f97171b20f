from hypothesis import given
from hypothesis import strategies as st

from proxy.model.log import Call
from proxy.store.sqlite.lineage_queries import ExchangePosition, find_branches, find_parent
from tests.store.samples import make_node


def stand(n: int, tip: bytes, *, is_side: bool = False) -> ExchangePosition:
    return ExchangePosition(n, f"e{n}", tip, n, "branch" if n > 1 else "root", is_side)


def test_where_a_path_forks_the_branch_goes_on_where_a_request_went_first() -> None:
    # 1 - 2 - 4        a node of 3 was there before that of 2, but was asked behind later
    #   \ 3
    parents = {b"1": b"", b"3": b"1", b"2": b"1", b"4": b"2"}
    branches = find_branches(parents, [stand(1, b"1"), stand(2, b"2"), stand(3, b"3"), stand(4, b"4")])
    assert [(branch.tip, branch.left, branch.exchanges) for branch in branches] == [
        (b"4", b"", (Call(1, "e1", 1), Call(2, "e2", 2), Call(4, "e4", 4))),
        (b"3", b"1", (Call(1, "e1", 1), Call(3, "e3", 3))),
    ]


def test_an_answer_that_nobody_went_on_from_is_no_branch() -> None:
    parents = {b"1": b"", b"a": b"1", b"b": b"1"}
    (branch,) = find_branches(parents, [stand(1, b"1")])
    assert (branch.tip, branch.depth, branch.relation) == (b"1", 1, "root")


def test_a_branch_is_beside_the_conversation_if_all_that_is_its_own_is() -> None:
    parents = {b"1": b"", b"2": b"1", b"3": b"1", b"4": b"3"}
    stands = [stand(1, b"1"), stand(2, b"2"), stand(3, b"3", is_side=True), stand(4, b"4")]
    assert [branch.is_side for branch in find_branches(parents, stands)] == [False, False]
    stands[3] = stand(4, b"4", is_side=True)
    assert [branch.is_side for branch in find_branches(parents, stands)] == [False, True]


def test_a_request_that_ended_at_no_node_is_on_no_branch() -> None:
    assert find_branches({}, [stand(1, b"root")]) == []


def test_a_parent_that_is_not_there_begins_a_chain() -> None:
    row = make_node("a")
    assert find_parent({}, row) == b""
    assert find_parent({row.parent: b""}, row) == row.parent


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=30))
def test_every_tip_is_on_a_branch_and_branches_share_only_what_is_before_they_left(
    shape: list[int], ends: list[int]
) -> None:
    names = [b"%d" % i for i in range(len(shape))]
    parents = {name: names[at] if at < i else b"" for i, (name, at) in enumerate(zip(names, shape, strict=True))}
    stands = [stand(n, names[end % len(names)]) for n, end in enumerate(ends, 1)]
    branches = find_branches(parents, stands)
    for branch in branches:
        above = {branch.tip, *_list_above(parents, branch.tip)}
        assert [call.n for call in branch.exchanges] == [each.n for each in stands if each.tip in above]
        assert branch.relation == stands[min(call.n for call in branch.own) - 1].relation
    assert sorted(call.n for branch in branches for call in branch.own) == [each.n for each in stands]
    tips = [branch.tip for branch in branches]
    assert len(set(tips)) == len(tips)
    assert sum(not branch.left for branch in branches) == len({_root(parents, tip) for tip in tips})
    inner = {up for tip in {each.tip for each in stands} for up in _list_above(parents, tip)}
    assert set(tips) == {each.tip for each in stands} - inner


class Counted(dict[bytes, bytes]):
    """Counts how often something is looked up."""

    count = 0

    def __getitem__(self, key: bytes) -> bytes:
        self.count += 1
        return super().__getitem__(key)


def test_it_takes_as_many_steps_as_there_are_nodes_and_edits() -> None:
    turns, edits = 300, 600
    names = [b"%d" % i for i in range(turns)]
    parents = Counted(zip(names, [b"", *names[:-1]], strict=True))
    parents.update({b"e%d" % i: names[-1 - i % 2] for i in range(edits)})
    stands = [stand(n, name) for n, name in enumerate(parents, 1)]
    branches = find_branches(parents, stands)
    assert parents.count < 10 * len(parents)
    assert (len(branches), sum(len(branch.own) for branch in branches)) == (edits, len(stands))
    assert len(branches[-1].exchanges) == turns


def _list_above(parents: dict[bytes, bytes], node: bytes) -> list[bytes]:
    above = []
    while parents[node]:
        node = parents[node]
        above.append(node)
    return above


def _root(parents: dict[bytes, bytes], node: bytes) -> bytes:
    return [node, *_list_above(parents, node)][-1]
