"""Use cases over ports: the engine owns tasks and order, and does no I/O of its own."""
