"""How the ledger of a managed context is known again. Rule: fixed for ever, since logs and other proxies hold it."""

LEDGER_HEAD = "palimpsest ledger 7c1e5b"
"""Stands in the first line of every ledger, as it is: plain ASCII, without anything that JSON would escape."""
