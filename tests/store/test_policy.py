from pathlib import Path

from proxy.store.policy import StorePolicy


def test_the_defaults_are_those_of_the_settings() -> None:
    policy = StorePolicy(Path("log.db"))
    assert (policy.durability, policy.max_bytes) == ("normal", 0)
    assert policy.spool_bytes >= 16 * 1024 * 1024
    assert policy.batch_ms <= 1000  # what is not urgent waits a second at most (port `Archive`)
