"""The demonstration: a coding session that we wrote, its agent and its upstream, with the real proxy between them."""
