"""Clients of providers' servers, and what is known of their models: windows, prices, tokens, outlines of files."""
