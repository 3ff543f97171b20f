"""Erasing sessions: on a person's request, for their age, and for the size of the log."""
