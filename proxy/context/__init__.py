"""Decisions about a context, pure. Rule: everything is a function of its arguments; no I/O, no clock, no wire."""
