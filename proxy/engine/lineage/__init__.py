"""Which conversation a request belongs to, and which of its messages are known."""
