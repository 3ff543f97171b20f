"""A conversation from the inside: calls that this process makes itself, and what their answers say."""
