"""The index of the log for search, in a file of its own that can be made anew from the log at any time."""
