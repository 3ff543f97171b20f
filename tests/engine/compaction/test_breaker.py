"""Models that fail are left alone."""

from proxy.engine.compaction.breaker import Breaker, Breakers


def test_one_failure_is_none() -> None:
    assert Breaker().fail(100.0).allows(100.0)


def test_two_in_a_row_trip_it() -> None:
    breaker = Breaker().fail(90.0).fail(100.0)
    assert not breaker.allows(129.9)
    assert breaker.allows(130.0)


def test_pauses_grow_up_to_a_quarter_of_an_hour() -> None:
    breaker, pauses = Breaker(), []
    for _ in range(20):
        breaker = breaker.fail(0.0)
        pauses.append(breaker.pause)
    assert pauses[:8] == [0, 30, 60, 120, 240, 480, 900, 900]
    assert pauses[-1] == 900


def test_behind_a_pause_one_call_probes() -> None:
    breaker = Breaker().fail(0.0).fail(0.0).begin(30.0)
    assert not breaker.allows(59.9)
    assert breaker.allows(60.0)  # nothing was heard of it
    assert not breaker.fail(31.0).allows(90.9)


def test_before_it_trips_calls_may_stand_side_by_side() -> None:
    assert Breaker().fail(0.0).begin(5.0).allows(5.0)


def test_models_fail_by_themselves_and_one_success_closes() -> None:
    breakers = Breakers()
    for _ in range(2):
        breakers.begin("main", "m", 0.0)
        breakers.note_failure("main", "m", 0.0)
    assert not breakers.allows("main", "m", 1.0)
    assert breakers.allows("main", "n", 1.0)
    assert breakers.allows("other", "m", 1.0)
    breakers.begin("main", "m", 30.0)
    assert not breakers.allows("main", "m", 31.0)
    breakers.note_success("main", "m")
    assert breakers.allows("main", "m", 31.0)
    breakers.note_failure("main", "m", 32.0)
    assert breakers.allows("main", "m", 32.0)


def test_only_so_many_are_remembered() -> None:
    breakers = Breakers()
    for number in range(1026):
        for _ in range(2):
            breakers.note_failure("main", f"m{number}", 0.0)
    assert breakers.allows("main", "m1", 1.0)
    assert not breakers.allows("main", "m2", 1.0)
