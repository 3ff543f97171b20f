"""Search over recorded messages: pure functions that make terms of text, rank passages and choose lines."""
