"""Clients of upstreams, the catalog of their models (windows, prices), and token counting."""
