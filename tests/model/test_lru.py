import pytest

from proxy.model.lru import LruCache


def test_the_least_recently_used_entry_is_evicted_above_the_count() -> None:
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (list(cache), list(cache.values()), len(cache), cache.weight) == (["a", "c"], [1, 3], 2, 2)


def test_peek_and_contains_do_not_count_as_use() -> None:
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert "a" in cache
    assert cache.peek("z") is None
    assert cache.get("z") is None
    cache.put("c", 3)
    assert "a" not in cache


def test_entries_are_evicted_until_the_weight_fits() -> None:
    evicted: list[tuple[str, bytes]] = []
    cache = LruCache[str, bytes](10, weigh=lambda key, value: len(value), on_evict=lambda *entry: evicted.append(entry))
    cache.put("a", b"aaaa")
    cache.put("b", b"bbb")
    cache.put("c", b"cccccccc")
    assert evicted == [("a", b"aaaa"), ("b", b"bbb")]
    assert (list(cache), cache.weight) == (["c"], 8)


def test_an_entry_put_again_is_weighed_again_and_not_told_as_evicted() -> None:
    evicted: list[object] = []
    cache = LruCache[str, bytes](10, weigh=lambda key, value: len(value), on_evict=lambda *entry: evicted.append(entry))
    cache.put("a", b"aaaa")
    cache.put("b", b"b")
    cache.put("a", b"aa")
    assert (list(cache), cache.weight, evicted) == (["b", "a"], 3, [])


def test_an_entry_heavier_than_the_limit_goes_at_once() -> None:
    cache = LruCache[str, bytes](4, weigh=lambda key, value: len(value))
    cache.put("a", b"aaaa")
    cache.put("big", b"bigger")
    assert list(cache) == []


@pytest.mark.parametrize("weigh", [None, lambda key, value: value])
def test_what_is_removed_weighs_nothing_any_more(weigh: None) -> None:
    cache = LruCache[str, int](100, weigh=weigh)
    for key, value in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        cache.put(key, value)
    assert cache.pop("b") == 2
    assert cache.pop("b") is None
    assert cache.pop_oldest() == ("a", 1)
    assert cache.weight == (2 if weigh is None else 7)
    cache.clear()
    assert (cache.weight, len(cache), list(cache)) == (0, 0, [])
    with pytest.raises(KeyError):
        cache.pop_oldest()
