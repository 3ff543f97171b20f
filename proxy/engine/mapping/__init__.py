"""Operators: one model call, or one agent, for each item of a list, a bounded number at a time."""
