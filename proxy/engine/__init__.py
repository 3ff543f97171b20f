"""Use cases over ports. Rule: owns tasks and order, does no I/O of its own."""
