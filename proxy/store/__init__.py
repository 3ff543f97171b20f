"""Storage of records: what may be stored, and a log in one SQLite file."""
