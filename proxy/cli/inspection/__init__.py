"""The commands that show what is in the log, and those that change what is sent of a session."""
