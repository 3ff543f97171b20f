"""Where records rest. Rule: a store inserts what it is given; ids, times and meaning come from the engine."""
