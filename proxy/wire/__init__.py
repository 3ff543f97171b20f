"""The client's and provider's formats. Rule: pure functions on bytes and values; the wire JSON is the truth."""
