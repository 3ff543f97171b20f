"""Histories that the proxy holds for its clients: requests that bring only what is new, and nudges."""
