"""Memory: traces of a conversation, facts of reports, and what a model is shown of them."""
