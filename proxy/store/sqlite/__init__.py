"""The log in one SQLite file: one thread writes, readers have connections of their own."""
