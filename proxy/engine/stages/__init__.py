"""Features of a call, one file for each."""
