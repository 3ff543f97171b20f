"""Figures of sessions: a table derived from the record, and the queries that sum it up."""
