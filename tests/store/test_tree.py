from proxy.model.log import BranchRow, Call
from proxy.store.tree import Tree
from tests.store.samples import make_chain, make_key, make_mark, make_step

A, B = make_chain("a", "!b")


def test_an_answer_says_more_than_the_same_node_in_a_request() -> None:
    tree = Tree()
    seen = make_chain("a", "b")[1]
    assert tree.lacks(B) and not tree.has_answer(B.node)
    tree.nodes[seen.node, False] = seen
    assert not tree.lacks(seen)
    tree.nodes[B.node, True] = B
    assert not tree.lacks(B) and tree.has_answer(B.node)
    assert not tree.lacks(type(B)(B.node, B.parent, False))


def test_a_tree_is_stored_whole_and_each_tip_once() -> None:
    mark = make_mark("call:1", A)
    tree = Tree(nodes={(A.node, False): A}, parents={A.node: b""}, marks={"call:1": mark})
    tree.steps = {2: make_step("e2", [A], relation="retry"), 1: make_step("e1", [A], relation="root")}
    stored = tree.store(make_key())
    assert (stored.key, stored.tips, stored.nodes, stored.marks) == (make_key(), (A.node,), (A,), (mark,))
    assert tree.list_branches({1: "e1", 2: "e2"}) == [
        BranchRow(A.node, 1, (Call(1, "e1", 1), Call(2, "e2", 1)), "root", b"", False)
    ]
