"""A session's messages as they are kept between calls: bodies, what the log has of them, and what was measured."""
