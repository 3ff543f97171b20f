"""Memory of the newest."""

from collections import OrderedDict

from proxy.engine.compaction.bounded import keep_newest


def test_what_was_kept_longest_ago_goes_first() -> None:
    known: OrderedDict[str, int] = OrderedDict()
    assert [keep_newest(known, name, number, 2) for number, name in enumerate("abac")] == [0, 1, 2, 3]
    assert known == {"a": 2, "c": 3}
