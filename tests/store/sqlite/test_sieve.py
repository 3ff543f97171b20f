from hypothesis import given
from hypothesis import strategies as st

from proxy.store.sqlite.sieve import Sieve


@given(st.lists(st.text(max_size=30)), st.sampled_from([1, 2, 64]))
def test_what_was_put_in_is_never_denied(names: list[str], size: int) -> None:
    sieve = Sieve(size)
    for name in names:
        sieve.add(name)
    assert all(map(sieve.may_hold, names))


def test_it_denies_nearly_all_else() -> None:
    sieve = Sieve(1024)
    assert not any(sieve.may_hold(f"other {i}") for i in range(100))
    for i in range(400):
        sieve.add(f"name {i}")
    assert sum(sieve.may_hold(f"other {i}") for i in range(10_000)) < 200  # 10 expected


def test_one_that_is_overfull_denies_nothing_and_has_not_grown() -> None:
    sieve = Sieve(16)
    for i in range(1000):
        sieve.add(f"name {i}")
    assert all(sieve.may_hold(f"other {i}") for i in range(100))
    assert len(sieve._bits) == 16
