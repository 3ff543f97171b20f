"""Values that every layer shares: frozen data and pure functions, without I/O, clock or randomness."""
