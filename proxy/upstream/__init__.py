"""The way out. Rule: everything that knows how to reach a provider, and nothing that knows why."""
