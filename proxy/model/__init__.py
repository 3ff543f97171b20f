"""Values every room shares. Rule: frozen data and pure functions; no I/O, no clock, no chance."""
