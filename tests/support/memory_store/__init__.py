"""A log in memory for tests that need no file: the contracts under `tests/store` hold for it as for SQLite."""
