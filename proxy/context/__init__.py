"""What is sent in place of what: pure decisions about a context."""
