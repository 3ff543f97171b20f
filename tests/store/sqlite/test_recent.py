from proxy.store.sqlite.recent import Recent


def test_what_was_put_in_is_found_until_it_ages() -> None:
    recent: Recent[int, str] = Recent(10)
    for key in range(1000):
        recent.put(key, str(key))
    # far beyond the limit: a batch must find all it added itself
    assert all(recent.get(key) == str(key) for key in range(1000))
    assert recent.get(1000) is None


def test_what_is_not_asked_for_is_let_go_after_two_generations() -> None:
    recent: Recent[int, str] = Recent(2)
    recent.put(1, "a")
    recent.put(2, "b")
    recent.age()
    recent.put(3, "c")
    assert recent.get(1) == "a"  # asked for: it is young again
    recent.age()
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("a", None, "c")


def test_below_the_limit_nothing_is_let_go() -> None:
    recent: Recent[int, str] = Recent(3)
    recent.put(1, "a")
    for _ in range(5):
        recent.age()
    assert recent.get(1) == "a"


def test_the_memory_is_bounded_by_two_limits() -> None:
    recent: Recent[int, str] = Recent(5)
    for key in range(100):
        recent.put(key, "x")
        recent.age()
    assert sum(recent.get(key) is not None for key in range(100)) <= 10


def test_clearing_forgets_both_generations() -> None:
    recent: Recent[int, str] = Recent(1)
    recent.put(1, "a")
    recent.age()
    recent.put(2, "b")
    recent.clear()
    assert (recent.get(1), recent.get(2)) == (None, None)
