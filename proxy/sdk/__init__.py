"""The engine without HTTP, for Python programs: life cycle, names and errors. It contains no rules."""
