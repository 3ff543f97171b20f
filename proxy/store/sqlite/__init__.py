"""The log in one SQLite file: one thread writes, readers have their own connections."""
